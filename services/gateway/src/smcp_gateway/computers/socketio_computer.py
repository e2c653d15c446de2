"""One Socket.IO Computer in one office: the gateway answers its NATS subject for it.

Calls are kept by `smcp_bus.owner`, as for native Computers. During an office switch one connection is served in two
offices, by two objects.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from smcp_bus import exact_json, registry_contract, subjects
from smcp_bus.bus import Headers, Incoming, Note, Reply, Subscription
from smcp_bus.callers import Rights, check_listed, read_only_hints, with_caller
from smcp_bus.dispatch import Answer, Call, Dispatcher, Handler
from smcp_bus.outbox import Outbox
from smcp_bus.ownership import CLOSED_REPLY, MOVING_REPLY, RunningCall, Seat, Stop, owned
from smcp_bus.registry_contract import Claim, PendingAnswer, PendingQuestion, same_tenure
from smcp_bus.subjects import request_handler, to_reply
from smcp_bus.tracing import bus_spans, carried, log_fields
from smcp_gateway.computers.answers import expected_fields, large_result, of_acknowledgement, read_error, result_of
from smcp_gateway.computers.subscriptions import Subscriptions
from smcp_gateway.sockets.packet import LARGE, event_frame, request_frame
from smcp_gateway.sockets.session import Session
from smcp_proto.catalog import CATALOG
from smcp_proto.errors import GONE, NO_ANSWER, SmcpError, TimedOut, TooLarge, Unavailable
from smcp_proto.schemas import SubscribeResourceReq, UnsubscribeResourceReq
from smcp_proto.schemas.tools import PROGRESS_BY, TOOL_PROGRESS, ToolCallReq
from smcp_proto.tool_results import time_limit

if TYPE_CHECKING:
    from smcp_gateway.computers.computer_table import ComputerTable

CANCEL_EVENT: Final = "notify:tool_call_cancel"
CANCEL_GRACE_S: Final = 0.9
"""How long a Computer may take to answer a call that was cancelled (seconds). The Agent's gateway waits for 1 s."""

Answered = Callable[[bytes | SmcpError], None]


class SocketIoComputer:
    def __init__(self, session: Session, office: str, name: str, table: "ComputerTable") -> None:
        self.session = session
        self.office = office
        self.name = name
        self.claim: Claim | None = None
        self.seat = Seat(office, name, CANCEL_GRACE_S)
        self._tenure: int | None = None
        self.confirmed = -1
        """Generation of the ownership in which the registry has confirmed the claim."""
        self.subscription: Subscription | None = None
        self.subscriptions = Subscriptions(table.quotas.subscriptions(session, office))
        self.updates = Outbox(
            partial(table.registry.tell, (office, "computer", name)),
            partial(table.background.until_done, "sending updates", once=True),
            office=office,
            computer=name,
            may_tell=lambda: not self.closed,
        )
        self._table = table
        self.read_only_hints: dict[str, bool] = {}
        """What it listed when it was asked last (`callers.read_only_hints`), until it announces a change."""
        self._waiting: dict[int, Callable[[SmcpError], None]] = {}
        self.closed = False
        self.handle = owned(self._handle, self._refusal)
        self._loop = asyncio.get_running_loop()
        handlers: dict[str, Handler] = {
            "client:tool_call": self._tool_call,
            "client:resources/subscribe": self._subscribe,
            "client:resources/unsubscribe": self._unsubscribe,
            registry_contract.PENDING.event: self._pending,
        }
        self._dispatcher = Dispatcher(
            handlers,
            otherwise=lambda row: self._query,
            tracing=bus_spans(),
            observe=log_fields,
            max_values=table.settings.max_values,
        )
        self._dispatch = request_handler(self._dispatcher)

    @property
    def is_open(self) -> bool:
        """Whether calls run: it is a member, and confirmed in the present ownership."""
        return not self.closed and self._table.is_open(self.confirmed)

    @property
    def takes_calls(self) -> bool:
        """Whether a call of this process may run here now: its claim is confirmed, and its client stays."""
        return self.is_open and not self.session.leaving

    def granted(self, claim: Claim, tenure: int | None) -> None:
        self.claim = claim
        self.seat.confirmed(new_tenure=not same_tenure(self._tenure, tenure))
        self._tenure = tenure

    def _refusal(self) -> Reply | None:
        if self.is_open:
            return None
        return MOVING_REPLY if self.claim is None and not self.closed else CLOSED_REPLY

    async def _handle(self, incoming: Incoming) -> Reply:
        verb = subjects.verb_of(incoming.subject)
        if self.session.leaving and verb != registry_contract.PENDING.verb and not self._knows(verb, incoming):
            return MOVING_REPLY  # the next owner runs it
        return await self._dispatch(incoming)

    async def ask(self, subject: str, call: Call, headers: Headers, note: Note | None) -> Reply:
        """Answer a call of this process as one that came over the bus, but not by way of JSON. See `takes_calls`."""
        answer = await self._dispatcher.dispatch(
            call.row, call.caller, call.payload, deadline=call.deadline, headers=headers, subject=subject, note=note
        )
        return to_reply(answer)

    def close(self) -> None:
        """It is no longer a member: new requests are refused, pending ones are answered 503. Idempotent."""
        self.closed = True
        self.subscriptions.clear()
        for fail in list(self._waiting.values()):
            fail(_gone())

    def _knows(self, verb: str, incoming: Incoming) -> bool:
        if verb != "tool_call":
            return False
        try:
            request = ToolCallReq.model_validate_json(incoming.body)
        except ValidationError:
            return False
        return self._table.owner.knows(self.seat, request.agent, request.req_id)

    async def _pending(self, question: PendingQuestion, call: Call) -> PendingAnswer:
        return self._table.owner.pending(self.seat, question, self._dispatcher)

    async def _query(self, request: Any, call: Call) -> Answer:
        answer: asyncio.Future[bytes | SmcpError] = self._loop.create_future()

        def answered(outcome: bytes | SmcpError) -> None:
            if not answer.done():
                answer.set_result(outcome)

        left = call.deadline - self._loop.time()
        withdraw = self._ask(call, answered)
        try:
            async with asyncio.timeout(time_limit(left, left)):
                outcome = await answer
        except TimeoutError:
            raise TimedOut(NO_ANSWER) from None
        finally:
            withdraw()
        if isinstance(outcome, bytes):
            if len(outcome) > exact_json.SMALL_BYTES:  # the Agent's gateway looks whether it is an error
                await exact_json.check_cost(outcome, self._table.settings.max_values, "the answer")
            else:
                outcome = read_error(outcome, expected_fields(call.row))
        if isinstance(outcome, SmcpError):
            raise outcome
        return Answer(outcome)

    async def _subscribe(self, request: SubscribeResourceReq, call: Call) -> Answer:
        return await self.subscriptions.subscribe(request, partial(self._query, request, call))

    async def _unsubscribe(self, request: UnsubscribeResourceReq, call: Call) -> Answer:
        return await self.subscriptions.unsubscribe(request, partial(self._query, request, call))

    async def _tool_call(self, request: ToolCallReq, call: Call) -> Answer:
        if call.note is not None:
            call = replace(call, payload={**call.payload, PROGRESS_BY: TOOL_PROGRESS})

        def start(running: RunningCall) -> Stop:
            answered = partial(self._settle, running)

            async def ask_if_allowed(rights: Rights) -> None:
                try:
                    await self._check_tool(rights, request, call)
                    withdraws.append(self._ask(call, answered))
                except SmcpError as error:
                    answered(error)

            def stop(why: str) -> None:
                for withdraw in withdraws:
                    withdraw()
                if why != "cancelled":  # a cancel has reached the office already
                    name = {"agent": request.agent, "req_id": request.req_id}
                    cancelled = exact_json.written(with_caller(name, call.caller, self.session.caller_key))
                    self._table.transport.send(self.session, event_frame(CANCEL_EVENT, cancelled))

            withdraws: list[Callable[[], object]] = []
            rights = call.caller.rights
            if rights is not None and rights.restricts_tools:  # the call counts as begun meanwhile
                withdraws.append(self._table.transport.spawn(ask_if_allowed(rights)).cancel)
            else:
                withdraws.append(self._ask(call, answered))
            return stop

        left, subject = call.deadline - self._loop.time(), call.caller.subject
        body = await self._table.owner.call(self.seat, request, left, start, subject=subject, note=call.note)
        return Answer(body)

    def _settle(self, running: RunningCall, outcome: bytes | SmcpError) -> None:
        if isinstance(outcome, bytes) and len(outcome) > exact_json.SMALL_BYTES:
            self._table.transport.spawn(self._settle_large(running, outcome))
        else:
            self._table.owner.settle(running, result_of(outcome) if isinstance(outcome, bytes) else outcome)

    async def _settle_large(self, running: RunningCall, answer: bytes) -> None:
        outcome: bytes | SmcpError
        try:
            outcome = await large_result(answer, self._table.settings.max_values)
        except TooLarge as error:
            outcome = error
        self._table.owner.settle(running, outcome)

    async def _check_tool(self, rights: Rights, request: ToolCallReq, call: Call) -> None:
        """Look at what the Computer lists: a published one checks nothing, and has several names for a tool."""
        known = hints = self.read_only_hints
        if request.tool_name not in hints:
            payload = {"agent": request.agent, "req_id": request.req_id, "computer": self.name}
            caller = replace(call.caller, rights=Rights(holder=rights.holder))  # to say why a tool is refused
            row = CATALOG["client:get_tools"]
            answer = await self._query(None, replace(call, row=row, payload=payload, caller=caller))
            with suppress(ValueError):
                hints = await read_only_hints(answer.body)
            # with a key it may list others to another caller; and up to 1 MiB, as its names may have 32 MiB
            may_keep = self.session.caller_key is None and len(answer.body) <= exact_json.ONE_STEP
            if may_keep and self.read_only_hints is known:  # it has announced no change meanwhile
                self.read_only_hints = hints
        check_listed(rights, hints, request.tool_name)

    def _ask(self, call: Call, answered: Answered) -> Callable[[], None]:
        """Emit the request, and have `answered` called once. Returns what stops waiting for it."""
        session, table = self.session, self._table
        body = exact_json.written(with_caller(call.payload, call.caller, session.caller_key, carried()))
        number = next(session.ask_ids)
        frame = request_frame(number, call.row.event, body)
        if frame.size >= session.max_message:
            raise TooLarge(
                "the request is larger than this Computer takes in one message",
                details={"limit": session.max_message, "size": len(body)},
            )
        sending: asyncio.Task[None] | None = None

        def withdraw() -> None:
            if self._waiting.pop(number, None) is not None:
                session.asks.pop(number, None)
                if sending is not None and sending is not asyncio.current_task():
                    sending.cancel()

        def end(outcome: bytes | SmcpError) -> None:
            withdraw()
            answered(outcome)

        def send() -> None:
            if self.closed or not table.transport.send(session, frame):
                end(_gone())

        async def send_after() -> None:
            await session.send_queue.wait_writable()
            send()

        self._waiting[number] = end
        session.asks[number] = lambda argument: end(of_acknowledgement(argument, table.bus.max_body))
        if frame.size >= LARGE and not session.closed and not session.send_queue.has_room:
            sending = self._loop.create_task(send_after())
        else:
            send()
        return withdraw


def _gone() -> Unavailable:
    return Unavailable("the Computer is gone", details={"may_have_run": True, GONE: True})
