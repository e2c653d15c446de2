"""`client:*`: relays a request to the Computer that it names, and the answer back.

Nothing is looked up first: the owner that serves the Computer's subject answers. A request that surely has not run is
retried here: nobody served the subject, its owner was not ready, or there is no connection to NATS. Any other request
is not retried: it may have run, and the Agent's SDK repeats it by `req_id`.
"""

import asyncio
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import orjson
from opentelemetry.trace import Span, use_span
from pydantic import BaseModel, ValidationError

from smcp_bus import exact_json, subjects
from smcp_bus.bus import BodyTooLarge, BusError, Headers, NoResponder, NotConnected, Reply, RequestTimedOut
from smcp_bus.callers import Rights, SeatKey, to_headers, without_tools
from smcp_bus.dispatch import Answer, Call
from smcp_bus.headers import ERROR, NOT_RUN, PROGRESS, REQ_ID
from smcp_bus.nats.client import MAX_CHUNK
from smcp_bus.ownership import MOVING
from smcp_bus.registry_client import to_error
from smcp_bus.tool_progress import ProgressThrottle
from smcp_bus.tracing import carried, link, sent
from smcp_gateway.calls import CallTable, PendingCall
from smcp_gateway.computers.answers import error_in, expected_fields
from smcp_gateway.computers.computer_table import ComputerTable
from smcp_gateway.sockets.packet import event_frame, largest_reply, too_large
from smcp_gateway.sockets.session import Session, Sessions
from smcp_proto import errors, tool_results
from smcp_proto.backoff import Backoff
from smcp_proto.errors import Internal, NotAllowed, SmcpError, Unavailable
from smcp_proto.schemas import AgentCallData
from smcp_proto.schemas.tools import ON_BEHALF, REPEAT, TOLD_OF_PROGRESS, OnBehalf, ToolCallReq
from smcp_proto.validation import malformed, refused

_below: Final = partial(use_span, record_exception=False, set_status_on_exception=False)

WAIT_S: Final = 4.5
"""How long a request waits for NATS, or a member that nobody answers for (s); counted anew where the Computer moves."""
FIND_S: Final = 0.5
"""How long a registry may take to say, at the end of that, whether the member moves (seconds). Of one that was moving
it is asked for `WAIT_S`: a registry that is slow for a moment must not end a wait that may take 30 s."""
DEEPEST: Final = 200
"""Levels of an answer, as many as `exact_json.read` takes: clients' readers of JSON have bounds, too."""
_LOOKED_FOR: Final = tool_results.FAILURE_FIELDS | {"code", "message"}
NO_JSON: Final = "the Computer's answer is not JSON"
TOO_DEEP: Final = f"the Computer's answer is nested more than {DEEPEST} levels deep"


@dataclass(eq=False, repr=False)
class Relay:
    computers: ComputerTable
    calls: CallTable
    sessions: Sessions
    requests: dict[str, int] = field(default_factory=lambda: {"here": 0, "bus": 0}, init=False)
    """Requests to Computers, by where their owners are."""
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop, init=False)

    async def __call__(self, request: BaseModel, call: Call) -> Answer:
        """Relay a request. Raises NotAllowed (the Agent's key or token is not for that Computer or tool), NotFound (it
        is not in the office), TimedOut, Unavailable (`details.may_have_run`), Internal (see `checked`), TooLarge (see
        `exact_json.check_cost`), BusError, or what the Computer answered."""
        caller, office, agent = call.caller, call.caller.office, call.caller.name
        assert office is not None  # the dispatcher lets only members pass
        assert agent is not None
        pending = PendingCall(
            session=caller.session,
            office=office,
            computer=_target(request)[1],
            agent=agent,
            req_id=call.req_id,
            tracked=call.row.seconds is None,
            span=call.span,
        )
        if call.payload.get(REPEAT):
            pending.happened("smcp.repeat")
        if isinstance(request, ToolCallReq) and request.a2c_progress is True:
            pending.progress = self._progress(pending)
        _check(caller.rights, request)
        if isinstance(request, ToolCallReq) and request.a2c_on_behalf is not None:
            self._delegate(call, request.a2c_on_behalf)
            _check(call.caller.rights, request)
        pending.subject, rights = call.caller.subject, call.caller.rights
        try:
            answer = await self.calls.run(pending, self._relay(pending, call))
        finally:
            call.sent = pending.on_wire
        if rights is not None and rights.restricts_tools:
            session = self.sessions.get(caller.session)
            if session is not None and len(answer.body) > largest_reply(session.max_message):
                raise too_large(len(answer.body), session.max_message)
            answer.body = await without_tools(rights, call.row.event, answer.body)
        return answer

    async def cancel(self, request: AgentCallData, call: Call) -> None:
        """Tell the office; a call of the same name that waits here is settled by its Computer, or soon after by us.
        Raises Unavailable: no registry answers; the call goes on."""
        if (user := call.payload.get(ON_BEHALF)) is not None:
            try:
                self._delegate(call, OnBehalf.model_validate(user))
            except ValidationError as error:
                raise refused(ON_BEHALF, malformed(error).message) from None
        caller, body = call.caller, exact_json.written(call.payload)
        # its time runs from here: a registry that is slow to acknowledge must not make the Agent wait longer
        cancelled = self.calls.cancel(caller.session, request.req_id, now=self._loop.time())
        for each in cancelled:
            link(each.span)
        try:
            await self.computers.registry.tell(
                caller.seat, call.row.verb, body, req_id=request.req_id, caller=caller.subject
            )
        except (SmcpError, BusError):
            for each in cancelled:  # but not those that an earlier cancel has sent
                each.cancelled_at = None
            raise

    def _delegate(self, call: Call, user: OnBehalf) -> None:
        """Replace the Agent's subject and rights by those of its user. Raises Malformed: it may not call for users."""
        session = self.sessions.get(call.caller.session)
        principal = None if session is None else session.principal
        if principal is None or not principal.grants.delegates:
            raise refused(ON_BEHALF, "is only for an Agent whose key or token has `delegates`")
        call.caller = replace(call.caller, subject=user.identity, rights=principal.rights.narrowed(user))
        call.payload = {name: value for name, value in call.payload.items() if name != ON_BEHALF}

    def _progress(self, pending: PendingCall) -> ProgressThrottle:
        def send(body: bytes) -> None:
            if (session := self.sessions.get(pending.session)) is not None:
                self.computers.transport.send(session, event_frame(TOLD_OF_PROGRESS, body))

        call = {"agent": pending.agent, "computer": pending.computer, "req_id": pending.req_id}
        return ProgressThrottle(send, self.computers.owner.notes, call)

    async def _relay(self, pending: PendingCall, call: Call) -> Answer:
        subject = subjects.client(pending.office, pending.computer, call.row.verb)
        session = self.sessions.get(pending.session)
        if call.payload.get(REPEAT) and (session is None or self.calls.was_suspended_since(session.connected_at)):
            call.payload = {**call.payload, REPEAT: True}  # it may have been sent before this process was suspended
        with sent(subject, call.span) as span:
            headers = {**call.headers, **carried(span)}
            if call.caller.rights is not None:
                headers |= to_headers(call.caller)
            if call.payload.get("req_id") != call.req_id:  # it has none: its owner is asked after it by ours
                headers[REQ_ID] = call.req_id
            if pending.progress is not None:
                headers[PROGRESS] = "1"
            try:
                reply = await self._until_run(subject, headers, pending, call, span)
                if ERROR in reply.headers:
                    error = to_error(reply) if len(reply.body) <= errors.LONGEST_ERROR else Internal("is not read")
                    raise errors.error_of_computer(int(error.code), error.message, error.details, len(reply.body))
                expected = expected_fields(call.row)
                most = exact_json.MAX_VALUES if session is None else session.max_values
                if len(reply.body) > exact_json.ONE_STEP:
                    return await _checked_in_slices(reply.body, most, expected, session)
                await exact_json.check_cost(reply.body, most, "the answer")
                return checked(reply.body, expected)
            except BodyTooLarge:  # nothing was sent
                pending.not_run()
                raise
            except RequestTimedOut:
                if pending.tracked:
                    body = orjson.dumps({"agent": pending.agent, "req_id": pending.req_id})
                    seat: SeatKey = pending.office, "agent", pending.agent
                    tell = partial(self.computers.registry.tell, seat, "tool_call_cancel", body, caller=pending.subject)
                    with _below(span):
                        self.computers.background.until_done("cancelling a late call", tell, once=True)
                raise errors.TimedOut(errors.NO_ANSWER, details={"may_have_run": True}) from None

    async def _until_run(self, subject: str, headers: Headers, pending: PendingCall, call: Call, span: Span) -> Reply:
        """Send the request, again and again for as long as nobody has run it. The first tries follow at once."""
        backoff: Backoff | None = None
        until: float | None = None
        find_s = FIND_S
        while True:
            now = self._loop.time()
            pending.sent(now)
            offline: NotConnected | None = None
            moving = False
            try:
                reply = await self._ask(subject, headers, pending, call, span)
                if NOT_RUN not in reply.headers:
                    return reply
                moving = reply.headers[NOT_RUN] == MOVING
            except NoResponder:
                pass
            except NotConnected as error:
                offline = error
            pending.not_run()
            refusal = offline or Unavailable("the Computer is not available now", details={"may_have_run": False})
            now = self._loop.time()
            first = until is None
            until = until or now + WAIT_S
            if first or now >= until:
                if offline is None:
                    with _below(span):
                        moving = await self._moves(pending, min(until + find_s, call.deadline) - now) or moving
                    now = self._loop.time()
                if not first and not moving:
                    raise refusal
            if moving:
                until, find_s = now + WAIT_S, WAIT_S
                pending.happened("smcp.move")
            backoff = backoff or Backoff(first_s=0.03, longest_s=0.6)
            pause = backoff.next()
            if now + pause >= call.deadline:
                raise refusal
            await asyncio.sleep(min(pause, max(until - now, 0.0)))

    async def _ask(self, subject: str, headers: Headers, pending: PendingCall, call: Call, span: Span) -> Reply:
        """Ask the Computer's owner: in this process where that is its owner now, else over the bus."""
        here = self.computers.by_name.get((pending.office, pending.computer), ())
        if (computer := next((each for each in here if each.takes_calls), None)) is not None:
            self.requests["here"] += 1
            pending.watched()  # no connection to the owner can break
            try:
                async with asyncio.timeout_at(call.deadline):
                    return await computer.ask(subject, call, headers, pending.noted if pending.progress else None)
            except TimeoutError:
                raise RequestTimedOut("no answer in time") from None
        self.requests["bus"] += 1
        pending.body = pending.body or exact_json.written(call.payload)  # 8 MiB may take 80 ms
        left = max(call.deadline - self._loop.time(), 0.0)
        reply = await self.computers.bus.request(subject, pending.body, timeout=left, headers=headers, progress=pending)
        if len(reply.body) > MAX_CHUNK:
            span.add_event("smcp.answer_in_chunks", {"bytes": len(reply.body)})
        return reply

    async def _moves(self, pending: PendingCall, timeout: float) -> bool:
        """Whether a Computer that nobody answers for is on its way to another owner; False if no registry says it."""
        try:
            found = await self.computers.registry.find(
                (pending.office, "agent", pending.agent), pending.computer, timeout=timeout, req_id=pending.req_id
            )
        except (SmcpError, BusError):
            return False
        if not found.member:
            raise errors.no_such_computer(pending.computer)
        return found.moving


def _check(rights: Rights | None, request: BaseModel) -> None:
    if rights is not None:
        field, computer = _target(request)
        if not rights.may_ask(computer):
            raise NotAllowed("the key or token is not for this Computer", details={"field": field})
        if isinstance(request, ToolCallReq):
            rights.check_tool(request.tool_name)


def _target(request: BaseModel) -> tuple[str, str]:
    """The field that names the Computer, and its value."""
    field = "computer" if "computer" in type(request).model_fields else "computerId"
    name = getattr(request, field)
    assert isinstance(name, str), "what may go without (`ListResources`) is not relayed as it is"
    return field, name


async def _checked_in_slices(body: bytes, most: int, expected: Collection[str], session: Session | None) -> Answer:
    if session is not None:
        session.check_room(len(body))
    try:
        with nullcontext() if session is None else session.holding(len(body)):
            levels, value = await exact_json.outline(body, most, "the answer", {*_LOOKED_FOR, *expected})
    except ValueError:
        raise Internal(NO_JSON) from None
    if levels > DEEPEST:
        raise Internal(TOO_DEEP)
    if (error := error_in(value, expected, len(body))) is not None:
        raise error
    return Answer(body, failure=tool_results.failure(value))


def checked(body: bytes, expected: Collection[str]) -> Answer:
    """The answer as it goes on. A Computer must not be able to break the Agent's connection with what is not JSON.

    Raises Internal (no JSON, or nested too deeply), or the error that it is, without the header that says so.
    """
    try:
        value = exact_json.read(body)
    except ValueError as unread:
        raise Internal(TOO_DEEP if "recursion limit" in str(unread) else NO_JSON) from None
    if isinstance(value, dict) and "code" in value and (error := error_in(value, expected, len(body))) is not None:
        raise error
    return Answer(body, failure=tool_results.failure(value))
