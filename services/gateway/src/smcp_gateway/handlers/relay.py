"""`client:*`: the event goes to the Computer that it names, and its answer comes back.

Nobody is looked up before a call: who answers on the subject is the Computer. Only where nobody does is the registry
asked, once.
"""

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Protocol

from pydantic import BaseModel

from smcp_bus import exact_json, subjects
from smcp_bus.bus import Admit, Headers, Progress, Reply
from smcp_bus.dispatch import Call, RawJson, to_smcp_error
from smcp_bus.errors import BusError, ConnectionLost, NoResponder, NotConnected, RequestTimedOut
from smcp_bus.headers import NOT_RUN, REQ_ID
from smcp_bus.owner import MOVING
from smcp_bus.registry_client import RegistryClient
from smcp_bus.tracing import sending
from smcp_gateway.calls.pending import NOT_SENT, CallTable, PendingCall
from smcp_gateway.handlers.relayed_answer import checked
from smcp_proto.catalog import TimeClass
from smcp_proto.errors import NotFound, SmcpError, TimedOut, Unavailable
from smcp_proto.schemas.tools import REPEAT

_log = logging.getLogger("smcp_gateway.relay")

RETRY_S: Final = 5.0
"""How long a member that nobody answers for is tried again, at most (seconds)."""
RECONNECTED_S: Final = 0.8
"""For how long a call waits for a connection that broke (seconds). What is lost is told within a second."""
RECONNECTED_ELSEWHERE_S: Final = 3.0
"""For how long it does where there is another node of NATS to connect to: an attempt with what is dead as well may take
2 s."""
ELSEWHERE_S: Final = 5.0
"""For how long a call does that was sent before, with another node: the Computer goes on with it meanwhile."""
RECONNECT_PAUSE_S: Final = 0.05
LOOK_AGAIN: Final = 0.8
"""After this share of it the registry is asked whether the member has begun to move."""
FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 0.4

_MARK: Final = b',"a2c_repeat":%d}'


class Way(Protocol):
    """The way to a Computer: what is asked of it is what is asked of a `smcp_bus.bus.Bus`."""

    async def request(
        self,
        subject: str,
        body: bytes,
        *,
        timeout: float,
        headers: Headers,
        progress: Progress,
        admit: Admit | None,
        payload: Mapping[str, Any] | None,
    ) -> Reply:
        """See `Bus.request`; `payload` is what `body` was parsed to, None where that is not known."""
        ...


TimedOutCall = Callable[[PendingCall], None]


class Relay:
    """Args:
    timed_out: told of each call that timed out here, so that its Computer stops it; must not block.
    has_other_nodes: `Bus.has_other_nodes`.
    """

    def __init__(
        self,
        way: Way,
        registry: RegistryClient,
        calls: CallTable,
        timed_out: TimedOutCall,
        has_other_nodes: Callable[[], bool],
    ) -> None:
        self._way = way
        self._registry = registry
        self._calls = calls
        self._timed_out = timed_out
        self._has_other_nodes = has_other_nodes
        self._loop = asyncio.get_running_loop()

    async def __call__(self, request: BaseModel, call: Call) -> RawJson:
        """Relay one request.

        Raises:
            SmcpError: what the Computer answered; NotFound: no such Computer in the office; TimedOut; Unavailable
                (`details.may_have_run`); Internal: the Computer's answer is not JSON, or nested too deeply. Whatever it
                is, it says `details.may_have_run` where the call was asked again for its lost answer.
            BusError: the bus failed before the Computer had it, or while its answer was awaited.
        """
        caller = call.caller
        assert caller.office is not None
        assert caller.name is not None
        pending = PendingCall(
            session=caller.session,
            office=caller.office,
            computer=_target(request),
            agent=caller.name,
            req_id=call.req_id,
            tracked=call.row.time_class is TimeClass.CALL,
        )
        if _log.isEnabledFor(logging.DEBUG):  # asked first: this is the path of every call
            return await self._logged(pending, call)
        return await self._calls.run(pending, lambda: self._relay(pending, call))

    async def _logged(self, pending: PendingCall, call: Call) -> RawJson:
        began, outcome = self._loop.time(), "aborted"
        try:
            answer = await self._calls.run(pending, lambda: self._relay(pending, call))
        except SmcpError as error:
            outcome = str(error.code)
            raise
        else:
            outcome = "answered"
            return answer
        finally:
            fields = {"verb": call.row.verb, "computer": pending.computer, "agent": pending.agent, "outcome": outcome}
            _log.debug("relayed", extra={**fields, "ms": round(1000 * (self._loop.time() - began), 1)})

    async def _relay(self, pending: PendingCall, call: Call) -> RawJson:
        subject = subjects.client(pending.office, pending.computer, call.row.verb)
        with sending(subject) as trace_headers:
            headers = {**call.headers, **trace_headers}
            if "req_id" not in call.payload:
                headers[REQ_ID] = call.req_id
            return await self._ask(subject, headers, pending, call)

    async def _ask(self, subject: str, headers: Headers, pending: PendingCall, call: Call) -> RawJson:
        body = call.raw if call.raw is not None else exact_json.written(call.payload)
        try:
            return checked(await self._answer(subject, body, headers, pending, call))
        except RequestTimedOut:
            self._timed_out(pending)
            raise TimedOut("the Computer did not answer in time", details={"may_have_run": True}) from None
        except (SmcpError, BusError) as error:
            if not pending.asked_again:
                raise
            # it speaks of the second try, and the first one ran
            refused = to_smcp_error(error)
            refused.details["may_have_run"] = True
            raise refused from None

    async def _send(
        self, subject: str, body: bytes, headers: Headers, pending: PendingCall, call: Call
    ) -> Reply | None:
        """None: nobody ran it.

        A call whose answer was lost has run: whatever answers the second time must have it in its table. It may be
        another process by now, with an empty one, and must not run it then.
        """
        now = self._loop.time()
        if now >= call.deadline:
            details = {"may_have_run": pending.asked_again}
            raise TimedOut("the time was over before the Computer could be asked", details=details)
        pending.sent(now)
        pending.computer_moves = False
        payload: Mapping[str, Any] | None = call.payload
        if pending.asked_again:
            assert pending.first_sent is not None
            body, payload = _marked(body, call.payload.get(REPEAT), now - pending.first_sent), None
        try:
            reply = await self._way.request(
                subject,
                body,
                timeout=call.deadline - now,
                headers=headers,
                progress=pending,
                admit=call.admit,
                payload=payload,
            )
        except NoResponder:
            pending.ask_from, pending.on_wire = NOT_SENT, False
            return None
        pending.ask_from, pending.on_wire = NOT_SENT, False
        pending.computer_moves = reply.headers.get(NOT_RUN) == MOVING
        return None if NOT_RUN in reply.headers else reply

    async def _answer(self, subject: str, body: bytes, headers: Headers, pending: PendingCall, call: Call) -> Reply:
        """What the Computer replies, also where the connection breaks meanwhile, each time that it does: nodes of NATS
        that are restarted one after the other break it more than once.

        It is back in a moment, and what was not sent is sent then. Where it broke while the answer was awaited, the
        Computer goes on with the call, or has ended it, and is asked for its answer.
        """
        lost: BusError | None = None
        until = 0.0
        while True:
            try:
                reply = await self._send(subject, body, headers, pending, call)
                lost = None
                return reply if reply is not None else await self._try_again(subject, body, headers, pending, call)
            except (ConnectionLost, NotConnected) as error:
                if not pending.tracked:
                    raise
                if isinstance(error, ConnectionLost):
                    pending.asked_again = True
                else:
                    pending.ask_from, pending.on_wire = NOT_SENT, False
                if lost is None or isinstance(error, ConnectionLost):
                    lost, until = error, self._loop.time() + self._patience(pending)
            if self._loop.time() >= until:
                raise lost
            await asyncio.sleep(RECONNECT_PAUSE_S)

    def _patience(self, pending: PendingCall) -> float:
        """For how long a connection that broke is waited for (seconds)."""
        if not self._has_other_nodes():
            return RECONNECTED_S
        return ELSEWHERE_S if pending.asked_again else RECONNECTED_ELSEWHERE_S

    async def _try_again(self, subject: str, body: bytes, headers: Headers, pending: PendingCall, call: Call) -> Reply:
        """Nobody was there. A member that moves is waited for: the registry is asked again while it says so."""
        send, pauses = partial(self._send, subject, body, headers, pending, call), _pauses()
        moving = True
        while moving and (began := self._loop.time()) < call.deadline:
            patience = min(began + RETRY_S, call.deadline)
            moving = await self._find(pending, patience - began)
            look = patience if moving else began + LOOK_AGAIN * (patience - began)
            if (reply := await self._retry(send, pauses, look)) is not None:
                return reply
            if not moving:  # it may have begun to since; nobody told the registry then
                moving = await self._moves_now(pending, patience - self._loop.time())
                if (reply := await self._retry(send, pauses, patience)) is not None:
                    return reply
                moving = moving or pending.computer_moves
        raise _not_available(pending)

    async def _retry(
        self, send: Callable[[], Awaitable[Reply | None]], pauses: Iterator[float], until: float
    ) -> Reply | None:
        """Send it again and again until then (loop time). None: nobody ran it."""
        while (left := until - self._loop.time()) > 0:
            await asyncio.sleep(min(left, next(pauses)))
            reply = await send()
            if reply is not None:
                return reply
        return None

    async def _moves_now(self, pending: PendingCall, timeout: float) -> bool:
        """Whether a member that did not move some seconds ago does; where the registry cannot say it does not.

        Raises:
            NotFound: it is a member no more.
        """
        try:
            return await self._find(pending, timeout)
        except Unavailable:
            return False

    async def _find(self, pending: PendingCall, timeout: float) -> bool:
        """Ask the registry after a Computer that nobody answers for: whether it moves.

        Raises:
            NotFound: it is no member; nothing was run.
            NotConnected: there is no connection to ask over.
            Unavailable: the registry cannot say; or the call was sent before, and its answer is lost.
        """
        try:
            found = await self._registry.find(
                pending.office, "agent", pending.agent, pending.computer, timeout=timeout, req_id=pending.req_id
            )
        except (ConnectionLost, NotConnected):
            raise NotConnected("the registry could not be asked") from None  # nothing of the call itself was lost
        except (SmcpError, BusError):
            raise _not_available(pending) from None
        if not found.member and pending.asked_again:
            raise _not_available(pending)
        if not found.member:
            raise NotFound("no such Computer in this office", details={"computer": pending.computer})
        return found.moving


def _pauses() -> Iterator[float]:
    """Seconds between two tries: growing, and never quite the same for all that wait."""
    pause = FIRST_PAUSE_S
    while True:
        yield pause * random.uniform(0.5, 1.5)  # noqa: S311 -- not a secret
        pause = min(2 * pause, LONGEST_PAUSE_S)


def _not_available(pending: PendingCall) -> Unavailable:
    """Nobody ran it; one that is asked again for its lost answer ran the first time."""
    return Unavailable("the Computer is not available now", details={"may_have_run": pending.asked_again})


def _marked(body: bytes, said: bool | int | None, seconds: float) -> bytes:
    """A call's JSON, marked as a repeat. Of a field that stands there twice the last one counts."""
    if said is True:
        return body
    return body.rstrip()[:-1] + _MARK % (int(said or 0) + math.ceil(1000 * seconds))


def _target(request: Any) -> str:
    name = getattr(request, "computer", None) or getattr(request, "computerId", None)
    assert isinstance(name, str), "what may go without (`ListResources`) is not relayed as it is"
    return name
