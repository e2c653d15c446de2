"""A tool call whose elicitations take several requests of its Agent (ADR 0047)."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types

from smcp_bus import exact_json
from smcp_bus.owned_calls import RunningCall, Stop
from smcp_computer.elicitation import (
    ELICITATION,
    CallNames,
    ElicitationRefused,
    Elicitations,
    OpenElicitation,
    check,
    digest,
)
from smcp_computer.tools import Target
from smcp_proto import tool_results
from smcp_proto.schemas.tools import ToolCallReq

if TYPE_CHECKING:
    from smcp_computer.handlers.tool_call import CallRecord, ToolCalls

MAX_KEPT_RESULT: Final = 1024 * 1024
"""The largest result (bytes) that is kept for the Agent's next request: `SMCP_KEEP_RESULTS_BYTES` does not count it."""


GIVE_WAY_S: Final = 60.0
"""How long an unanswered elicitation of a server of MCP 2025 may keep other calls of it from eliciting."""


@dataclass(eq=False)
class PendingCall:
    """A tool call, from its first request to its end. While a server of MCP 2025 waits for the Agent's answer,
    the call runs without a request; the request that brings the answer takes it over.
    """

    calls: "ToolCalls"
    tool: str
    request: ToolCallReq
    running: RunningCall
    record: "CallRecord"
    subject: str
    """The caller's (`Caller.subject`)."""
    target: Target | None = None
    elicited: int = 0
    """Elicitations so far."""
    outcome: bytes | Exception | None = None
    stop: Stop = lambda why: None
    parked_at: float | None = None
    """When the Agent was sent an elicitation that it has not answered (loop time)."""
    unanswered: dict[str, tuple[dict[str, Any], "asyncio.Future[types.ElicitResult]"]] = field(default_factory=dict)
    """The elicitations of a server of MCP 2025 that have no answer yet."""

    @cached_property
    def identity(self) -> tuple[str, str, str, bytes]:
        return self.request.agent, self.subject, self.tool, digest(self.request)

    @property
    def open_count(self) -> int:
        return len(self.unanswered)

    async def elicit(self, params: types.ElicitRequestParams) -> types.ElicitResult | types.ErrorData:
        """The answer to an elicitation of a server of MCP 2025, while its call runs."""
        self.elicited += 1
        key = f"question{self.elicited}"
        request = {"method": ELICITATION, "params": params.model_dump(mode="json", by_alias=True, exclude_none=True)}
        try:
            check({**self._open_requests(), key: request}, self.elicited)  # before anything of it is kept
            if self.calls.at_terminal is not None and self.target is not None:
                answers = await self.calls.at_terminal.answers(self.target, {key: request})
                return types.ElicitResult.model_validate(answers[key])
            answer: asyncio.Future[types.ElicitResult] = asyncio.get_running_loop().create_future()
            self.unanswered[key] = request, answer
            try:
                self._send_to_agent()
                return await answer
            finally:
                del self.unanswered[key]
        except ElicitationRefused as error:
            return types.ErrorData(code=types.INVALID_REQUEST, message=f"elicitation refused: the tool {error}")

    def resume(self, request: ToolCallReq, running: RunningCall, record: "CallRecord") -> None:
        """Continue with the request that brings the answers."""
        record.server, record.outcome, record.why = self.record.server, self.record.outcome, self.record.why
        self.request, self.running, self.record, self.parked_at = request, running, record, None
        for key, answer in (request.input_responses or {}).items():
            if key in self.unanswered and not (future := self.unanswered[key][1]).done():
                future.set_result(types.ElicitResult.model_validate(answer))
        if self.outcome is not None:
            self.calls.settle(self, self.outcome)
            return
        record.ended("aborted")
        self.calls.began(record)
        if any(not future.done() for _, future in self.unanswered.values()):  # sent while the others were answered
            try:
                self._send_to_agent()
            except ElicitationRefused:
                self.close()

    def kept(self, result: bytes) -> bytes:
        """What is kept of a result for which no request waits."""
        if len(result) <= MAX_KEPT_RESULT:
            return result
        why = f"ended before its elicitation was answered, with more than {MAX_KEPT_RESULT} bytes: they are not kept"
        self.record.ended("failed", why)
        return exact_json.written(tool_results.failed(f"the tool {self.tool!r} {why}"))

    def give_way(self) -> None:
        if self.parked_at is not None and asyncio.get_running_loop().time() > self.parked_at + GIVE_WAY_S:
            self.calls.elicitations.withdraw(self)

    def close(self) -> None:
        for _, answer in self.unanswered.values():
            if not answer.done():
                answer.set_result(types.ElicitResult(action="cancel"))

    def _open_requests(self) -> dict[str, dict[str, Any]]:
        return {key: request for key, (request, answer) in self.unanswered.items() if not answer.done()}

    def _send_to_agent(self) -> None:
        if self.running.settled or self.target is None:
            return  # it waits for an answer already: the next request gets this one
        requests = self._open_requests()
        names = CallNames.of(self.request)
        elicitation = OpenElicitation(names, self.subject, self.target, requests, self.elicited, waiting=self)
        result = exact_json.written(self.calls.elicitations.add(elicitation))
        self.record.ended("input_required")
        self.parked_at = asyncio.get_running_loop().time()
        self.calls.settle(self, result)

    def input_required_result(
        self,
        requests: Elicitations,
        elicited: int,
        server_state: str | None = None,
        *,
        withdrawn: Callable[[], None] | None = None,
    ) -> dict[str, Any]:
        """The result that sends elicitations to the Agent. `withdrawn`: of an approval request, called if no answer
        comes."""
        assert self.target is not None
        names = CallNames.of(self.request)
        elicitation = OpenElicitation(names, self.subject, self.target, requests, elicited, server_state)
        if withdrawn is not None:
            elicitation = replace(elicitation, is_approval=True, withdrawn=withdrawn)
        try:
            result = self.calls.elicitations.add(elicitation)
        except ElicitationRefused as error:
            self.record.ended("failed", str(error))
            return tool_results.failed(f"the tool {self.tool!r} {error}")
        self.record.ended("input_required")
        return result
