"""One Socket.IO Computer in its office: the gateway answers its NATS subject for it.

What arrives is emitted to its socket unchanged, and what it acknowledges goes back unchanged. Beside that it is owned
as a native Computer owns itself: nothing runs behind a closed gate, a call runs once, a cancel or the end of its time
settles it, and `pending` is answered from the table of what runs.
"""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import orjson
from pydantic import ValidationError

from smcp_bus import registry_contract, subjects
from smcp_bus.bus import Incoming, Reply, Subscription
from smcp_bus.call_records import digest_of, same_call
from smcp_bus.dispatch import Call, Caller, Dispatcher, RawJson, failed, to_reply
from smcp_bus.headers import ERROR
from smcp_bus.owner import CLOSED_REPLY, MOVING_REPLY
from smcp_bus.registry_contract import Claim, PendingAnswer, PendingQuestion
from smcp_bus.time_limit import time_limit
from smcp_gateway.computers.answered import answered, tool_result
from smcp_gateway.computers.questions import Questions
from smcp_gateway.computers.subscriptions import Subscriptions, Updates, granted
from smcp_gateway.computers.surroundings import Surroundings
from smcp_gateway.sockets.packet import event_frame
from smcp_gateway.sockets.session import Fate, Outcome, Session, settle
from smcp_proto import catalog, tool_results
from smcp_proto.errors import Malformed, TimedOut
from smcp_proto.schemas import SubscribeResourceReq, ToolCallReq, UnsubscribeResourceReq

CANCEL_EVENT: Final = "notify:tool_call_cancel"

RunKey = tuple[str, str]
"""(agent, req_id)"""


@dataclass(slots=True)
class _Running:
    digest: bytes
    tool: str
    limit: float
    answer: "asyncio.Future[Outcome]"
    asked_at: float
    """When it was asked for last (loop time)."""


class OwnedComputer:
    """Args:
    session: the Computer's connection.
    """

    def __init__(self, session: Session, office: str, name: str, around: Surroundings) -> None:
        self.session = session
        self.office = office
        self.name = name
        self.claim: Claim | None = None
        """Once the registry has granted it."""
        self._held_since: float | None = None
        """Since when it has its seat by that claim without interruption (loop time)."""
        self.confirmed = -1
        """Generation of the gate in which the registry has confirmed the claim."""
        self.subscription: Subscription | None = None
        self.subscriptions = Subscriptions()
        self.updates = Updates(partial(around.tell, office, name), around.later, office=office, computer=name)
        self._around = around
        self._questions = Questions(session, around.send, around.room)
        self._loop = asyncio.get_running_loop()
        self._caller = Caller("agent", office)
        self._running: dict[RunKey, _Running] = {}
        self._dispatcher = Dispatcher(
            {
                "client:tool_call": self._tool_call,
                "client:resources/subscribe": self._subscribe,
                "client:resources/unsubscribe": self._unsubscribe,
                registry_contract.PENDING.event: self._pending,
            },
            otherwise=lambda row: self._query,
            passed_on={"client:tool_call"},
            tracing=around.tracing,
            observe=around.observe,
        )

    @property
    def closed(self) -> bool:
        """Whether it is no member any more."""
        return self._questions.ended

    @property
    def is_open(self) -> bool:
        """Whether calls run: it is a member, and was confirmed since the gate was closed last."""
        return not self.closed and self._around.is_open(self.confirmed)

    @property
    def running(self) -> int:
        """How many calls run now."""
        return len(self._running)

    def granted(self, claim: Claim, *, anew: bool) -> None:
        """The registry holds it by that claim; `anew`: it did not do so all the time."""
        self.claim = claim
        if anew:
            self._held_since = self._loop.time()

    async def handle(self, incoming: Incoming) -> Reply:
        """Answer a request on the Computer's subject."""
        verb = subjects.verb_of(incoming.subject)
        if not self.is_open:
            return await self._while_closed(verb, incoming)
        if self.session.leaving and verb != registry_contract.PENDING.verb and not self._knows(verb, incoming):
            return MOVING_REPLY  # whoever takes its place runs it
        return await self._dispatch(verb, incoming)

    def close(self) -> None:
        """It is no member any more: nothing new runs, and what runs is answered 503. Idempotent.

        What its client was asked in another office goes on.
        """
        self._questions.end()
        self.updates.end()

    def cancel(self, agent: str, req_id: str) -> None:
        """An Agent does not want a call any more."""
        running = self._running.get((agent, req_id))
        if running is not None:
            settle(running.answer, Fate.CANCELLED)

    def agent_left(self, agent: str) -> None:
        """An Agent has left the office. If one of its name is back already, it is told to subscribe again."""
        if self.subscriptions.left(agent):
            self.updates.missed()

    def drop_subscriptions(self) -> None:
        """This gateway may have missed that an Agent left."""
        if self.subscriptions.clear():
            self.updates.missed()

    def calls(self, agent: str) -> bool:
        """Whether calls of that Agent run."""
        return any(caller == agent for caller, _ in self._running)

    def abandon(self, agent: str, since: float) -> None:
        """An Agent is gone since then (loop time): its calls are cancelled that nobody asked for again."""
        for (caller, req_id), running in self._running.items():
            if caller == agent and running.asked_at < since and not running.answer.done():
                self._tell_cancelled(agent, req_id)
                settle(running.answer, Fate.CANCELLED)

    def _tell_cancelled(self, agent: str, req_id: str) -> None:
        """To the Computer, which hears of no cancel in its office."""
        told = event_frame(CANCEL_EVENT, orjson.dumps({"agent": agent, "req_id": req_id}))
        self._around.send(self.session, told)

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
            payload=incoming.payload,
        )
        return to_reply(answer)

    async def _while_closed(self, verb: str, incoming: Incoming) -> Reply:
        """Nothing is run; but calls that run here go on, and who waits for them may know that."""
        if verb == registry_contract.PENDING.verb and self._running:
            reply = await self._dispatch(verb, incoming)
            # a call that is not known here may be another owner's: that is not for us to say
            if ERROR not in reply.headers and not orjson.loads(reply.body)["unknown"]:
                return reply
        return MOVING_REPLY if self.claim is None and not self.closed else CLOSED_REPLY

    def _knows(self, verb: str, incoming: Incoming) -> bool:
        """Whether it is a call that runs or ran here, asked for once more."""
        if verb != "tool_call":
            return False
        try:
            request = ToolCallReq.model_validate(orjson.loads(incoming.body))
        except (ValidationError, orjson.JSONDecodeError):
            return False
        run = (request.agent, request.req_id)
        return run in self._running or self._around.records.find((self.office, self.name, *run)) is not None

    async def _pending(self, question: PendingQuestion, call: Call) -> PendingAnswer:
        """Which of these calls are not known here, and which have ended.

        In neither list: calls that run, and calls that ended just now, whose answer is on its way.
        """
        answer = PendingAnswer(unknown=[], ended=[])
        for run in question.calls:
            if run in self._running:
                continue
            key = (self.office, self.name, *run)
            if self._around.records.find(key) is None:
                answer.unknown.append(run)
            elif self._around.records.answered(key):
                answer.ended.append(run)
        return answer

    async def _query(self, request: Any, call: Call) -> RawJson:
        """Any `client:*` but a call of a tool.

        Raises:
            TimedOut, TooLarge, Unavailable, Internal: see `Questions.ask` and `answered`.
        """
        left = call.deadline - self._loop.time()
        outcome = await self._questions.ask(call, time_limit(left, left), self._loop.create_future())
        if outcome is Fate.EXPIRED:
            raise TimedOut("the Computer did not answer in time")
        return RawJson(answered(outcome, self._around.max_body))

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
            Malformed: the `req_id` was used for another call.
            TooLarge: the request is larger than the client takes, or the result than the bus.
            Unavailable: the Computer went while the tool ran; or see `CallRecords.replay`.
            Internal: its answer is no result.
        """
        run, key = (request.agent, request.req_id), (self.office, self.name, request.agent, request.req_id)
        digest = digest_of(request.tool_name, request.params)
        running = self._running.get(run)
        if running is not None:
            same_call(running.digest, digest)
            running.asked_at = self._loop.time()
            return RawJson(self._result(running, await asyncio.shield(running.answer)))
        records = self._around.records
        replayed = records.replay(
            key,
            (self.office, *run),
            tool=request.tool_name,
            digest=digest,
            repeat=request.a2c_repeat,
            held_since=self._held_since,
        )
        if replayed is not None:
            return RawJson(replayed)
        limit = time_limit(request.timeout, call.deadline - self._loop.time())
        running = self._running[run] = _Running(
            digest, request.tool_name, limit, self._loop.create_future(), self._loop.time()
        )
        body: bytes | None = None
        sent = False
        try:
            outcome = await self._questions.ask(call, limit, running.answer)
            sent = True
            if outcome is Fate.EXPIRED:
                self._tell_cancelled(*run)
            body = self._result(running, outcome)
            return RawJson(body)
        finally:
            del self._running[run]
            settle(running.answer, Fate.GONE)
            if sent:
                records.end(key, digest, body)

    def _result(self, running: _Running, outcome: Outcome) -> bytes:
        """The `CallToolResult` as JSON; raises what `answered` raises."""
        if outcome is Fate.EXPIRED:
            return orjson.dumps(tool_results.timed_out(running.tool, running.limit))
        if outcome is Fate.CANCELLED:
            return orjson.dumps(tool_results.cancelled(running.tool))
        return tool_result(answered(outcome, self._around.max_body))
