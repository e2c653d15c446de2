"""One Socket.IO Computer in its office: the gateway answers its NATS subject for it.

What arrives is emitted to its socket unchanged, and what it acknowledges goes back unchanged. Beside that it is owned
as a native Computer owns itself: see `smcp_bus.owner`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import orjson
from pydantic import ValidationError

from smcp_bus import registry_contract, subjects
from smcp_bus.bus import Incoming, Reply, Subscription
from smcp_bus.dispatch import Call, Caller, Dispatcher, Observe, RawJson, Tracing, failed
from smcp_bus.owner import Owner, RunningCall, Stop, time_limit
from smcp_bus.ownership import CLOSED_REPLY, MOVING_REPLY, Seat, owned
from smcp_bus.registry_contract import Claim, PendingAnswer, PendingQuestion, same_tenure
from smcp_bus.requests import to_reply
from smcp_gateway.computers.pending_acks import PendingAcks, Room, Send, tool_result
from smcp_gateway.computers.subscriptions import Later, Subscriptions, Updates, granted
from smcp_gateway.sockets.packet import event_frame
from smcp_gateway.sockets.session import Session
from smcp_proto import catalog
from smcp_proto.errors import Malformed, SmcpError, TimedOut
from smcp_proto.schemas import SubscribeResourceReq, ToolCallReq, UnsubscribeResourceReq

CANCEL_EVENT: Final = "notify:tool_call_cancel"

CANCEL_GRACE_S: Final = 0.9
"""How long a Computer may take to answer a call that was cancelled (seconds). The Agent's gateway waits for 1 s."""


@dataclass(frozen=True, slots=True)
class OwnerDeps:
    """What the Computers on Socket.IO of one gateway share."""

    send: Send
    room: Room
    owner: Owner
    max_body: int
    """Bytes that an answer may have on the bus."""
    tracing: Tracing | None
    observe: Observe | None
    later: Later
    tell: Callable[[str, str, str, bytes], Awaitable[object]]
    """Tells an office as a Computer, with a verb and JSON."""
    is_open: Callable[[int], bool]
    """Whether calls may run of a Computer that the registry confirmed in that generation of the ownership."""


class OwnedComputer:
    """Args:
    session: the Computer's connection.
    """

    def __init__(self, session: Session, office: str, name: str, deps: OwnerDeps) -> None:
        self.session = session
        self.office = office
        self.name = name
        self.claim: Claim | None = None
        """Once the registry has granted it."""
        self.seat = Seat(office, name, CANCEL_GRACE_S)
        self._tenure: int | None = None
        self.confirmed = -1
        """Generation of the ownership in which the registry has confirmed the claim."""
        self.subscription: Subscription | None = None
        self.subscriptions = Subscriptions()
        self.updates = Updates(partial(deps.tell, office, name), deps.later, office=office, computer=name)
        self._deps = deps
        self._acks = PendingAcks(session, deps.send, deps.room, max_body=deps.max_body)
        self.handle = owned(self._handle, self._refusal)
        """Answers a request on the Computer's subject."""
        self._loop = asyncio.get_running_loop()
        self._caller = Caller("agent", office)
        self._dispatcher = Dispatcher(
            {
                "client:tool_call": self._tool_call,
                "client:resources/subscribe": self._subscribe,
                "client:resources/unsubscribe": self._unsubscribe,
                registry_contract.PENDING.event: self._pending,
            },
            otherwise=lambda row: self._query,
            tracing=deps.tracing,
            observe=deps.observe,
        )

    @property
    def closed(self) -> bool:
        """Whether it is no member any more."""
        return self._acks.ended

    @property
    def is_open(self) -> bool:
        """Whether calls run: it is a member, and was confirmed since the ownership was lost last."""
        return not self.closed and self._deps.is_open(self.confirmed)

    def granted(self, claim: Claim, tenure: int | None) -> None:
        """The registry holds it by that claim."""
        self.claim = claim
        self.seat.held(anew=not same_tenure(self._tenure, tenure))
        self._tenure = tenure

    def _refusal(self) -> Reply | None:
        if self.is_open:
            return None
        return MOVING_REPLY if self.claim is None and not self.closed else CLOSED_REPLY

    async def _handle(self, incoming: Incoming) -> Reply:
        verb = subjects.verb_of(incoming.subject)
        if self.session.leaving and verb != registry_contract.PENDING.verb and not self._knows(verb, incoming):
            return MOVING_REPLY  # whoever takes its place runs it
        return await self._dispatch(verb, incoming)

    def close(self) -> None:
        """It is no member any more: nothing new runs, and what runs is answered 503. Idempotent.

        What its client was asked in another office goes on.
        """
        self._acks.end()
        self.updates.end()

    def agent_left(self, agent: str) -> None:
        """An Agent has left the office. If one of its name is back already, it is told to subscribe again."""
        if self.subscriptions.left(agent):
            self.updates.missed()

    def drop_subscriptions(self) -> None:
        """This gateway may have missed that an Agent left."""
        if self.subscriptions.clear():
            self.updates.missed()

    def _tell_cancelled(self, agent: str, req_id: str) -> None:
        """To the Computer, which hears of no cancel in its office."""
        frame = event_frame(CANCEL_EVENT, orjson.dumps({"agent": agent, "req_id": req_id}))
        self._deps.send(self.session, frame)

    async def _dispatch(self, verb: str, incoming: Incoming) -> Reply:
        row = registry_contract.CLIENT_ROWS.get(verb) or catalog.by_verb("client", verb)
        if row is None:
            return to_reply(failed(Malformed("no such event").body()))
        answer = await self._dispatcher.dispatch(
            row,
            self._caller,
            incoming.body,
            deadline=incoming.deadline,
            headers=incoming.headers,
            subject=incoming.subject,
        )
        return to_reply(answer)

    def _knows(self, verb: str, incoming: Incoming) -> bool:
        """Whether it is a call that runs or ran here, asked for once more."""
        if verb != "tool_call":
            return False
        try:
            request = ToolCallReq.model_validate(orjson.loads(incoming.body))
        except (ValidationError, orjson.JSONDecodeError):
            return False
        return self._deps.owner.knows(self.seat, request.agent, request.req_id)

    async def _pending(self, question: PendingQuestion, call: Call) -> PendingAnswer:
        return self._deps.owner.pending(self.seat, question)

    async def _query(self, request: Any, call: Call) -> RawJson:
        """Any `client:*` but a call of a tool.

        Raises:
            TimedOut; TooLarge, Unavailable, Internal: see `PendingAcks`.
        """
        answer: asyncio.Future[bytes] = self._loop.create_future()

        def settle(outcome: bytes | SmcpError) -> None:
            if answer.done():
                return
            if isinstance(outcome, bytes):
                answer.set_result(outcome)
            else:
                answer.set_exception(outcome)

        withdraw = self._acks.ask(call, settle)
        left = call.deadline - self._loop.time()
        late = TimedOut("the Computer did not answer in time")
        timer = self._loop.call_later(time_limit(left, left), settle, late)
        try:
            return RawJson(await answer)
        finally:
            timer.cancel()
            withdraw()

    async def _subscribe(self, request: SubscribeResourceReq, call: Call) -> RawJson:
        """Ask the Computer, and keep what it granted.

        Raises:
            RateLimited: the Agent has too many subscriptions here; the Computer was not asked.
            SmcpError: as `_query`.
        """
        settle, is_granted = self.subscriptions.add(request.agent, request.serverId, request.payload.params.uri), False
        try:
            answer = await self._query(request, call)
            is_granted = granted(answer.body)
        finally:
            settle(is_granted)
        return answer

    async def _unsubscribe(self, request: UnsubscribeResourceReq, call: Call) -> RawJson:
        answer = await self._query(request, call)
        if granted(answer.body):
            self.subscriptions.end(request.agent, request.serverId, request.payload.params.uri)
        return answer

    async def _tool_call(self, request: ToolCallReq, call: Call) -> RawJson:
        """Run the tool, join the call that runs it, or give the result that is kept.

        Raises:
            Malformed, Unavailable: see `Owner.call`.
            TooLarge, Unavailable, Internal: see `PendingAcks`.
        """
        owner = self._deps.owner

        def start(running: RunningCall) -> Stop:
            def answered(outcome: bytes | SmcpError) -> None:
                owner.settle(running, tool_result(outcome) if isinstance(outcome, bytes) else outcome)

            def stop(why: str) -> None:
                withdraw()
                if why != "cancelled":  # of that the office is told
                    self._tell_cancelled(request.agent, request.req_id)

            withdraw = self._acks.ask(call, answered)
            return stop

        return RawJson(await owner.call(self.seat, request, call.deadline - self._loop.time(), start))
