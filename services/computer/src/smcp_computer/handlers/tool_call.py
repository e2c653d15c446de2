"""`client:tool_call`: one tool, run once, with one answer; and the line of the log that each call leaves."""

import asyncio
import logging
import time
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Final

from smcp_bus import exact_json
from smcp_bus.dispatch import Answer, Call
from smcp_bus.owner import Owner
from smcp_bus.ownership import Ownership, RunningCall, Seat, Stop
from smcp_bus.tracing import recorded_trace_id, trace_id_of
from smcp_computer import elicitation
from smcp_computer.access import Access
from smcp_computer.confirmation import ApprovalNeeded, Confirmation, not_confirmed
from smcp_computer.mcp.errors import AnswerTooLarge, CallBrokenOff, ServerError, too_large
from smcp_computer.reshaping import FAILED, NotReshaped, Results
from smcp_computer.tools import Catalogue, History, Target
from smcp_proto import tool_results
from smcp_proto.errors import ANSWER_TOO_LARGE, SmcpError, TooLarge
from smcp_proto.schemas.base import AgentCallData
from smcp_proto.schemas.tools import MAX_TIMEOUT_S, ToolCallReq

_log = logging.getLogger("smcp_computer.tool_call")

INPUT_REQUIRED: Final = "input_required"
"""The `resultType` by which a server of MCP 2026 elicits."""
CHANGED: Final = "was not run: the tool or the Computer's configuration changed while the call waited"
AGAIN_S: Final = 0.25
"""The pause before a call is repeated for a server that elicits nothing; the SDK's own client waits at most as long."""
RECENT: Final = 50
"""Calls of each MCP server, and of tools of none, that are remembered for the user."""


@dataclass(slots=True, eq=False)
class CallRecord:
    """One request for a tool, as far as it has come."""

    tool: str
    agent: str
    server: str = ""
    outcome: str = "repeated"
    """`ok`, `tool_error`, `input_required`, `timeout`, `cancelled`, `not_confirmed`, `refused`, `failed`, `aborted`,
    the code of an error of the protocol, or `repeated`: nothing was run, it joined a call that runs or got the kept
    result."""
    why: str = ""
    """For an outcome that does not say enough."""
    asking: bool = False
    """The user of this Computer is asked whether it may run."""
    at: float = field(default_factory=time.time)
    began: float = field(default_factory=time.perf_counter)
    took: float | None = None
    """Seconds; None while it runs."""

    def ended(self, outcome: str, why: str = "") -> None:
        self.outcome, self.why = outcome, why

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def shown(self) -> dict[str, Any]:
        """For the user; without arguments and result. The outcome is `running` or `asking` while it is in flight."""
        running = "asking" if self.asking else "running"
        outcome, seconds = (running, self.seconds) if self.took is None else (self.outcome, self.took)
        return {"at": self.at, **self._fields(outcome, seconds), "why": self.why}

    def log(self, seconds: float) -> None:
        named = {"mcp_server": self.server, "why": self.why}
        given = {name: value for name, value in named.items() if value}
        _log.info("tool call", extra=self._fields(self.outcome, seconds) | given)

    def _fields(self, outcome: str, seconds: float) -> dict[str, Any]:
        return {"tool": self.tool, "agent": self.agent, "outcome": outcome, "ms": round(1000 * seconds, 1)}


@dataclass(eq=False)
class ToolCalls:
    """Runs the tools of this Computer's calls, each in a task of its own: it outlives the request."""

    catalogue: Catalogue
    owner: Owner
    seat: Seat
    access: Access
    confirmation: Confirmation
    history: History
    results: Results
    _: KW_ONLY
    max_body: int
    start_s: float
    """How long a call of an unknown tool waits for servers that have their first start."""
    elicitations: elicitation.OpenElicitations
    at_terminal: Callable[[Target, elicitation.Elicitations], Awaitable[elicitation.Answers]] | None = None
    """Answers elicitations in place of the Agent."""
    ended: Callable[..., None] = lambda seconds, outcome, *, trace_id: None
    """Called when a call ends, with its duration (seconds) and its outcome (`CallRecord.outcome`)."""

    def __post_init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight: set[CallRecord] = set()
        self.by_server = Counter[tuple[str, ...]]()
        """Calls that an MCP server was to run, by it and their outcome."""
        self._recent: defaultdict[str, deque[CallRecord]] = defaultdict(lambda: deque(maxlen=RECENT))
        """By server, those that ended, the newest last."""

    async def __call__(self, request: ToolCallReq, call: Call) -> Answer:
        """Run the tool, or join the call that runs it. Raises NotAllowed: the caller may not call this tool; TooLarge:
        the result is larger than the bus takes; and as `Owner.call` and `OpenElicitations.take`."""
        labels = {"smcp.req_id": request.req_id, "smcp.office": self.seat.office}
        record = CallRecord(request.tool_name, request.agent)

        def start(running: RunningCall) -> Stop:
            answers = request.input_state is not None or request.input_responses is not None
            answered = self.elicitations.take(request, call.caller.subject) if answers else None
            if answered is not None and answered.keeps_call_open:
                answered.call.resume(request, running, record)
                return answered.call.stop
            pending = elicitation.ToolCall(
                self, request, running, record, call.caller, labels, trace_id_of(call), answered
            )
            # created here, so that the task has the request's context: its span is the parent of the tool's
            task = asyncio.create_task(self._settle(pending), name="tool_call")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

            def stop(why: str) -> None:
                why = "cancelled" if why == "abandoned" else why
                is_unanswered = why == "timeout" and pending.record.asking
                pending.record.ended("not_confirmed" if is_unanswered else why)
                task.cancel(why)

            pending.stop = stop
            return stop

        def timed_out(tool: str, seconds: float) -> dict[str, Any]:
            return (not_confirmed if record.asking else tool_results.timed_out)(tool, seconds)

        try:
            if (target := self.catalogue.find(request.tool_name)) is not None:
                self.access.check(call.caller, target)
            left = call.deadline - asyncio.get_running_loop().time()
            body = await self.owner.call(
                self.seat, request, left, start, subject=call.caller.subject, timed_out=timed_out, note=call.note
            )
            if len(body) > self.max_body:
                raise TooLarge(ANSWER_TOO_LARGE, details={"size": len(body), "limit": self.max_body})
        except SmcpError as error:
            record.ended(str(error.code), str(error))
            raise
        finally:
            # the answer goes first: the line of the log alone would take it a fiftieth longer
            asyncio.get_running_loop().call_soon(self._count_and_log, record, record.seconds, recorded_trace_id())
        return Answer(body)

    def _count_and_log(self, record: CallRecord, seconds: float, traced: str) -> None:
        record.log(seconds)
        if record.server:
            self.by_server[record.server, record.outcome] += 1
        self.ended(seconds, record.outcome, trace_id=traced)

    def held(self) -> dict[str, int]:
        return {**self.owner.held(), "tool_tasks": len(self._tasks), "open_elicitations": len(self.elicitations)}

    def cancel(self, notice: AgentCallData, subject: str = "") -> None:
        """Cancel the call that an Agent does not want any more, if it runs here."""
        self.elicitations.cancel(notice.agent, (notice.req_id, subject))
        self.owner.cancel((self.seat,), self.seat.office, notice.agent, notice.req_id, subject)

    def agent_left(self, agent: str, ownership: Ownership, is_back: Callable[[], bool]) -> None:
        """An Agent has left: where it stays away, its calls are cancelled, those too that wait for its answer."""
        dropped = partial(self.elicitations.cancel, agent)
        self.owner.agent_left(self.seat.office, agent, ownership, is_back, dropped)

    def recent(self) -> Mapping[str, list[dict[str, Any]]]:
        """The calls of each MCP server, the newest first: those in flight, then the last `RECENT` that ended. Under ""
        stand those that came to no server: their tools are unknown, forbidden, or not for their callers."""
        recent: dict[str, list[dict[str, Any]]] = {}
        for record in sorted(self._in_flight, key=lambda record: -record.began):
            recent.setdefault(record.server, []).append(record.shown())
        for server, ended in self._recent.items():
            recent.setdefault(server, []).extend(record.shown() for record in reversed(ended))
        return recent

    def began(self, record: CallRecord) -> None:
        self._in_flight.add(record)

    def _remember(self, record: CallRecord) -> None:
        if record.took is not None:
            return
        record.took = record.seconds
        self._in_flight.discard(record)
        self._recent[record.server].append(record)

    async def aclose(self) -> None:
        """Answer what still runs as broken off, and stop it. Idempotent."""
        self.owner.close()
        self.elicitations.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def settle(self, call: elicitation.ToolCall, outcome: bytes | Exception) -> None:
        """Answer the request to which a call belongs now."""
        self.owner.settle(call.running, outcome)
        self._remember(call.record)

    async def _settle(self, call: elicitation.ToolCall) -> None:
        try:
            # made here: a task that is cancelled before its first step would never await it
            outcome = exact_json.written(await self._run(call))
            call.outcome = call.kept(outcome) if call.running.settled else outcome
        except Exception as error:  # noqa: BLE001 -- handed on to the task that awaits the call, unless it is settled
            call.outcome = error
        except asyncio.CancelledError:  # where somebody else cancelled it than `stop`
            call.outcome = exact_json.written(tool_results.failed("the call was broken off on the Computer"))
            raise
        finally:
            if call.unanswered:
                call.close()
            if call.outcome is not None:
                self.settle(call, call.outcome)

    async def _run(self, call: elicitation.ToolCall) -> dict[str, Any]:
        request, name, limit, record = call.request, call.request.tool_name, call.running.limit, call.record
        record.ended("aborted")
        target = self.catalogue.find(name) or await self.catalogue.awaited(name, min(limit, self.start_s))
        if target is None:
            refused = self.access.unknown_tool(name, call.caller)
            record.ended("refused", refused["content"][0]["text"])
            return refused
        self.access.check(call.caller, target)  # it may not have been there when the call came
        call.target = target
        record.server = target.ref.server
        self.began(record)
        self.catalogue.check(target, request.params)
        try:
            return await self._once_confirmed(call, target)
        except elicitation.ElicitationRefused as error:
            return call.failed(error)
        except AnswerTooLarge as error:
            raise too_large(error) from None
        except CallBrokenOff as error:
            record.ended("cancelled", str(error))
            return tool_results.failed(str(error), **{tool_results.CANCELLED: True})
        except ServerError as error:
            record.ended("failed", str(error))
            return tool_results.failed(str(error))
        except TimeoutError:  # HTTP ended its wait first
            record.ended("timeout")
            return tool_results.timed_out(name, limit)

    async def _once_confirmed(self, call: elicitation.ToolCall, target: Target) -> dict[str, Any]:
        call.record.asking = True
        try:
            refusal = await self._confirmed(call, target)
        except ApprovalNeeded as error:
            return call.open(elicitation.approval(str(error)), is_approval=True)
        finally:
            call.record.asking = False
        if refusal is None:
            await target.supervisor.available(call.running.limit)
            if self.catalogue.find(call.request.tool_name) != target:
                refusal = CHANGED
        if refusal is not None:
            return call.failed(refusal, "refused")
        self.history.called(target.ref.server)
        return await self._called(call, target)

    async def _called(self, call: elicitation.ToolCall, target: Target) -> dict[str, Any]:
        """The tool's result, or its elicitations for the Agent. Raises ElicitationRefused."""
        request, answers = call.request, dict[str, Any]()
        if call.answered is not None and not call.answered.is_approval:
            call.elicited = call.answered.call.elicited
            answers = {"inputResponses": request.input_responses, "requestState": call.answered.server_state}
        while True:
            result = await target.supervisor.call(
                target.ref.tool,
                request.params,
                timeout=MAX_TIMEOUT_S,  # the call's own time ends it before
                labels=call.labels,
                progress=call.running.progress,
                elicitor=call,
                answers={name: value for name, value in answers.items() if value is not None},
            )
            if result.get("resultType") != INPUT_REQUIRED:
                break
            requests, state = result.get("inputRequests") or {}, result.get("requestState")
            call.elicited += len(requests)
            elicitation.check(requests, call.elicited, state)
            if requests and self.at_terminal is None:
                return call.open(requests, state)
            if not requests:  # it asks to be called again, and does not say when
                await asyncio.sleep(AGAIN_S)
            responses = await self.at_terminal(target, requests) if requests and self.at_terminal else None
            answers = {"inputResponses": responses, "requestState": state}
        call.record.ended("tool_error" if result.get("isError") is True else "ok")
        result = tool_results.with_meta(result) if "_meta" in result or "meta" in result else result
        mapper = target.configured.ret_object_mapper if target.configured else None
        vrl, replace = target.supervisor.config.vrl, target.supervisor.host.replace_content
        if not mapper and not vrl:
            return result
        try:
            return await self.results.reshaped(
                result, mapper=mapper, vrl=vrl, replace=replace, tool=target.ref.tool, params=request.params
            )
        except NotReshaped as error:
            call.record.why = f"not reshaped: {error}"
            return {**result, "meta": {**(result.get("meta") or {}), FAILED: True}}

    async def _confirmed(self, call: elicitation.ToolCall, target: Target) -> str | None:
        """Why it may not run; None: it may. Raises ApprovalNeeded."""
        approved = None
        if call.answered is not None:
            if call.answered.call.target != target:
                return CHANGED
            if not call.answered.is_approval:
                return None  # the call that elicited was approved
            approved = (call.request.input_responses or {})[elicitation.APPROVAL]["action"] == "accept"
        return await self.confirmation.refusal(target, call.request, call.caller, call.trace_id, approved=approved)
