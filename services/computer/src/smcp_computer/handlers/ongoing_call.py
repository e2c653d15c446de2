"""A call of a tool over all its requests, as far as it asks its Agent (ADR 0047)."""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import mcp_types as types

from smcp_bus import exact_json
from smcp_bus.owner import RunningCall, Stop
from smcp_computer.questions import ELICITATION, NotAsked, Question, Requests, check
from smcp_computer.tools import Target
from smcp_proto import tool_results
from smcp_proto.schemas.tools import ToolCallReq

if TYPE_CHECKING:
    from smcp_computer.handlers.tool_call import CallRecord, ToolCalls


@dataclass(eq=False)
class Ongoing:
    """The call of a tool, from its first request to its end. While it waits for an answer of the Agent (an MCP server
    of the 2025 era asked, and does not end its call), no request belongs to it; the one with the answer takes over.
    """

    calls: "ToolCalls"
    tool: str
    request: ToolCallReq
    running: RunningCall
    record: "CallRecord"
    subject: str
    """Who called (`Caller.subject`)."""
    target: Target | None = None
    asked: int = 0
    """Questions so far."""
    outcome: bytes | Exception | None = None
    stop: Stop = lambda why: None
    unanswered: dict[str, tuple[dict[str, Any], "asyncio.Future[types.ElicitResult]"]] = field(default_factory=dict)
    """What an MCP server of the 2025 era asks now."""

    @property
    def open(self) -> int:
        return len(self.unanswered)

    async def ask(self, params: types.ElicitRequestParams) -> types.ElicitResult | types.ErrorData:
        """What an MCP server of the 2025 era asks while its call runs."""
        self.asked += 1
        key = f"question{self.asked}"
        request = {"method": ELICITATION, "params": params.model_dump(mode="json", by_alias=True, exclude_none=True)}
        try:
            if self.calls.at_terminal is not None and self.target is not None:
                check({key: request}, self.asked)
                answers = await self.calls.at_terminal.answers(self.target, {key: request})
                return types.ElicitResult.model_validate(answers[key])
            answer: asyncio.Future[types.ElicitResult] = asyncio.get_running_loop().create_future()
            self.unanswered[key] = request, answer
            try:
                self._ask_agent()
                return await answer
            finally:
                del self.unanswered[key]
        except NotAsked as error:
            return types.ErrorData(code=types.INVALID_REQUEST, message=f"nobody is asked: the tool {error}")

    def go_on(self, request: ToolCallReq, running: RunningCall, record: "CallRecord") -> None:
        """A request brings the answers to what was asked."""
        record.server, record.outcome, record.why = self.record.server, self.record.outcome, self.record.why
        self.request, self.running, self.record = request, running, record
        for key, answer in (request.input_responses or {}).items():
            if key in self.unanswered and not (future := self.unanswered[key][1]).done():
                future.set_result(types.ElicitResult.model_validate(answer))
        if self.outcome is not None:
            self.calls.settle(self, self.outcome)
            return
        record.ended("aborted")
        self.calls.began(record)
        if any(not future.done() for _, future in self.unanswered.values()):  # asked while the others were answered
            try:
                self._ask_agent()
            except NotAsked:
                self.close()

    def close(self) -> None:
        for _, answer in self.unanswered.values():
            if not answer.done():
                answer.set_result(types.ElicitResult(action="cancel"))

    def _ask_agent(self) -> None:
        if self.running.settled or self.target is None:
            return  # it waits for an answer already: the next request is asked this
        requests = {key: request for key, (request, answer) in self.unanswered.items() if not answer.done()}
        question = Question(self.request, self.subject, self.target, requests, self.asked, waiting=self)
        result = exact_json.written(self.calls.questions.ask(question))
        self.record.ended("input_required")
        self.calls.settle(self, result)

    def asks(
        self, requests: Requests, asked: int, server_state: str | None = None, *, is_approval: bool = False
    ) -> dict[str, Any]:
        """The result of a call that ends with a question."""
        assert self.target is not None
        question = Question(
            self.request, self.subject, self.target, requests, asked, server_state, is_approval=is_approval
        )
        try:
            result = self.calls.questions.ask(question)
        except NotAsked as error:
            self.record.ended("failed", str(error))
            return tool_results.failed(f"the tool {self.tool!r} {error}")
        self.record.ended("input_required")
        return result
