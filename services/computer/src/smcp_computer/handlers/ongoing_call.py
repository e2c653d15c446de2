"""A call of a tool while it is in flight: its record for the log and the user, and its questions to the Agent."""

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import mcp_types as types

from smcp_bus import exact_json
from smcp_bus.owner import RunningCall, Stop
from smcp_computer.questions import ELICITATION, NotAsked, Question, check
from smcp_computer.tools import Target
from smcp_proto.schemas.tools import ToolCallReq

if TYPE_CHECKING:
    from smcp_computer.handlers.tool_call import ToolCalls

_log = logging.getLogger("smcp_computer.tool_call")


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

    def broken_off(self, why: str) -> None:
        """Something else than its own answer ended it."""
        self.ended("not_confirmed" if why == "timeout" and self.asking else why)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def shown(self) -> dict[str, Any]:
        """For the user; without arguments and result. The outcome is `running` or `asking` while it is in flight."""
        running = "asking" if self.asking else "running"
        outcome, seconds = (running, self.seconds) if self.took is None else (self.outcome, self.took)
        ms = round(1000 * seconds, 1)
        return {
            "at": self.at, "tool": self.tool, "agent": self.agent, "outcome": outcome, "ms": ms, "why": self.why
        }  # fmt: skip

    def log(self, seconds: float) -> None:
        fields: dict[str, object] = {"tool": self.tool, "agent": self.agent, "outcome": self.outcome}
        fields["ms"] = round(1000 * seconds, 1)
        named = {"mcp_server": self.server, "why": self.why}
        _log.info("tool call", extra=fields | {name: value for name, value in named.items() if value})


class Ongoing:
    """The call of a tool, from its first request to its end. While it waits for an answer of the Agent (an MCP server
    of the 2025 era asked, and does not end its call), no request belongs to it; the one with the answer takes over.
    """

    def __init__(self, calls: "ToolCalls", request: ToolCallReq, running: RunningCall, record: CallRecord) -> None:
        self.tool = request.tool_name
        self.request = request
        self.running = running
        self.record = record
        self.subject = running.subject
        self.target: Target | None = None
        self.asked = 0
        self.outcome: bytes | Exception | None = None
        self.stop: Stop = lambda why: None
        self._calls = calls
        self._asked: dict[str, tuple[dict[str, Any], asyncio.Future[types.ElicitResult]]] = {}

    @property
    def open(self) -> int:
        return len(self._asked)

    async def ask(self, params: types.ElicitRequestParams) -> types.ElicitResult | types.ErrorData:
        """What an MCP server of the 2025 era asks while its call runs."""
        self.asked += 1
        key = f"question{self.asked}"
        request = {"method": ELICITATION, "params": params.model_dump(mode="json", by_alias=True, exclude_none=True)}
        try:
            if self._calls.at_terminal is not None and self.target is not None:
                check({key: request}, self.asked)
                answers = await self._calls.at_terminal.answers(self.target, {key: request})
                return types.ElicitResult.model_validate(answers[key])
            answer: asyncio.Future[types.ElicitResult] = asyncio.get_running_loop().create_future()
            self._asked[key] = request, answer
            try:
                self._ask_agent()
                return await answer
            finally:
                del self._asked[key]
        except NotAsked as error:
            return types.ErrorData(code=types.INVALID_REQUEST, message=f"nobody is asked: the tool {error}")

    def go_on(self, request: ToolCallReq, running: RunningCall, record: CallRecord) -> None:
        """A request brings the answers to what was asked."""
        record.server, record.outcome, record.why = self.record.server, self.record.outcome, self.record.why
        self.request, self.running, self.record = request, running, record
        for key, answer in (request.input_responses or {}).items():
            if key in self._asked and not (future := self._asked[key][1]).done():
                future.set_result(types.ElicitResult.model_validate(answer))
        if self.outcome is not None:
            self._calls.settle(self, self.outcome)
            return
        record.ended("aborted")
        self._calls.began(record)
        if any(not future.done() for _, future in self._asked.values()):  # asked while the others were answered
            try:
                self._ask_agent()
            except NotAsked:
                self.close()

    def close(self) -> None:
        for _, answer in self._asked.values():
            if not answer.done():
                answer.set_result(types.ElicitResult(action="cancel"))

    def _ask_agent(self) -> None:
        if self.running.settled or self.target is None:
            return  # it waits for an answer already: the next request is asked this
        requests = {key: request for key, (request, answer) in self._asked.items() if not answer.done()}
        question = Question(self.request, self.subject, self.target, requests, self.asked, waiting=self)
        result = exact_json.written(self._calls.questions.ask(question))
        self.record.ended("input_required")
        self._calls.settle(self, result)
