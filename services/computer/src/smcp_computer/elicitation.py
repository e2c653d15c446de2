"""Elicitation: input that a tool or this Computer needs from a user before a call runs or continues (ADR 0047).

Each elicitation is open under a state, a random name that only the Agent it was sent to knows. The next request for
the same tool with the same parameters brings the state and the answers. A state is used once, and expires.
`ToolCall` is a call over all its requests; `handlers.tool_call` runs it. With SMCP_ELICIT=terminal the user of
this host answers in place of the Agent.
"""

import asyncio
import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
from pydantic import ValidationError

from smcp_bus import exact_json
from smcp_bus.callers import Caller
from smcp_bus.limits import ByteBudget, Grant
from smcp_bus.ownership import RunningCall, Stop
from smcp_computer.json_schema import Schema
from smcp_computer.terminal import YES_OR_NO, Terminal, TerminalGone
from smcp_computer.tools import Target
from smcp_proto import tool_results
from smcp_proto.printable import printable, printable_json
from smcp_proto.schemas.tools import ToolCallReq
from smcp_proto.validation import refused

if TYPE_CHECKING:
    from smcp_computer.handlers.tool_call import CallRecord, ToolCalls

ELICITATION: Final = "elicitation/create"
MAX_PER_CALL: Final = 32
"""Elicitations of one call in all: a server must not ask for ever."""
MAX_BYTES: Final = 64 * 1024
"""Size of the elicitations that are sent together, with their `requestState`."""
MAX_OPEN_BYTES: Final = 32 * 1024 * 1024
"""What open elicitations keep: the parameters of the calls that servers of MCP 2025 hold open. Users (subjects, or
without authentication Agents) share it as offices share a gateway's budgets (`ByteBudget`)."""
LEAST_SHARE: Final = MAX_OPEN_BYTES // 64
"""Each takes at least so many of them: there are 64 at most, since each may hold a call at an MCP server."""
APPROVAL: Final = "a2c_approval"
"""The key of a Computer's approval request: whether a tool may run."""
MAX_KEPT_RESULT: Final = exact_json.ONE_STEP
"""The largest result (bytes) that is kept for the Agent's next request: `Keeping.results_bytes` does not count it."""

Elicitations = Mapping[str, Mapping[str, Any]]
"""MCP's `elicitation/create` requests, by key."""
Answers = Mapping[str, Mapping[str, Any]]
"""MCP's ElicitResult for each, by the same keys."""


class ElicitationRefused(Exception):
    """An elicitation is not sent to a user. The text says why, for the MCP server and the Agent."""


def digest(request: ToolCallReq) -> tuple[bytes, int]:
    """The SHA-256 of a call's parameters as sorted JSON, and the JSON's size in bytes."""
    params = exact_json.written(request.params, sort_keys=True)
    return hashlib.sha256(params).digest(), len(params)


@dataclass(frozen=True, slots=True, eq=False)
class OpenElicitation:
    call: "ToolCall"
    requests: Elicitations
    server_state: str | None = None
    """The `requestState` of a server of MCP 2026."""
    keeps_call_open: bool = False
    """The MCP server does not end the call until it gets the answer; else no call runs meanwhile."""
    is_approval: bool = False
    """It is this Computer's approval request."""


class OpenElicitations:
    """The elicitations that wait for an answer, each for at most `within_s`."""

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._open: dict[str, tuple[OpenElicitation, asyncio.TimerHandle, Grant]] = {}
        self._budget = ByteBudget(MAX_OPEN_BYTES)

    def __len__(self) -> int:
        return len(self._open)

    def add(self, elicitation: OpenElicitation) -> dict[str, Any]:
        """The result that sends it, `check`ed, to the Agent. Raises ElicitationRefused: there are too many."""
        agent, subject, tool, _ = elicitation.call.identity
        kept = digest(elicitation.call.request)[1] if elicitation.keeps_call_open else 0
        share = self._budget.take(max(kept, LEAST_SHARE), subject or agent)
        if share is None:
            raise ElicitationRefused("cannot ask: too many or too large calls of this user wait for answers already")
        state = token_urlsafe()
        timer = asyncio.get_running_loop().call_later(self._within_s, self._drop, state, "timeout")
        self._open[state] = elicitation, timer, share
        said = "; ".join(_shown(each) for each in elicitation.requests.values())
        what = "approval, and has not run" if elicitation.is_approval else "an answer, and has not ended"
        result = tool_results.failed(f"the tool {tool!r} needs {what}. The question: {said}")
        requests = {key: dict(each) for key, each in elicitation.requests.items()}
        required = {"requests": requests, "state": state, "expires_in_s": self._within_s}
        return {**result, "meta": {tool_results.INPUT_REQUIRED: required}}

    def take(self, request: ToolCallReq, subject: str) -> OpenElicitation:
        """Remove and return the elicitation that a request answers. Raises Malformed: there is no such elicitation, or
        the answers do not fit; it stays open."""
        state, answers = request.input_state, request.input_responses
        if state is None or answers is None:
            raise refused("input_responses" if answers is None else "input_state", "is missing beside the other")
        found = None if state not in self._open else self._open[state][0]
        agent, owner, tool, params = ("", "", "", b"") if found is None else found.call.identity
        if found is None or (agent, owner) != (request.agent, subject):
            why = f"used, cancelled, issued to another Agent, or older than {self._within_s:g} s (SMCP_QUESTION_S)"
            raise refused("input_state", f"is unknown: {why}. The tool did not continue with this answer")
        if tool != request.tool_name:
            raise refused("input_state", "belongs to an elicitation of another tool")
        if params != digest(request)[0]:
            raise refused("params", "differ from those of the call that was answered with the elicitation")
        check_answers(found.requests, answers)
        self._remove(state)
        return found

    def cancel(self, agent: str, call: tuple[str, str] | None = None) -> None:
        """The Agent does not answer the elicitations of this call (its `req_id` and subject); None: of any call, as it
        has left the office."""
        for state, (elicitation, _, _) in list(self._open.items()):
            request, subject = elicitation.call.request, elicitation.call.caller.subject
            if request.agent == agent and call in (None, (request.req_id, subject)):
                self._drop(state, "cancelled")

    def close(self) -> None:
        for state in list(self._open):
            self._drop(state, "aborted")

    def _drop(self, state: str, why: str) -> None:
        elicitation = self._remove(state)
        if elicitation.keeps_call_open:
            elicitation.call.stop(why)

    def _remove(self, state: str) -> OpenElicitation:
        elicitation, timer, share = self._open.pop(state)
        timer.cancel()
        share.release()
        return elicitation


def check(requests: Elicitations, elicited: int, server_state: str | None = None) -> None:
    """Let elicitations of an MCP server through. Raises ElicitationRefused: not supported, too many, too large, with a
    schema that cannot be used, or under a key by which an Agent knows its Computer's approval requests."""
    for key, each in requests.items():
        if key.startswith(tool_results.OUR_PREFIX):
            raise ElicitationRefused(f"sent an elicitation under {key[:50]!r}: such a key is the Computer's own")
        if (method := each.get("method")) != ELICITATION:
            raise ElicitationRefused(f"asks for {str(method)[:50]!r}, which A2C-SMCP does not support (deprecated)")
    if elicited > MAX_PER_CALL:
        raise ElicitationRefused(f"sent more than {MAX_PER_CALL} elicitations in one call")
    if len(exact_json.written([requests, server_state])) > MAX_BYTES:
        raise ElicitationRefused(f"sent an elicitation of more than {MAX_BYTES} bytes")
    try:
        for each in requests.values():
            Schema(each["params"].get("requestedSchema", {}))
    except ValueError:
        raise ElicitationRefused("sent an elicitation whose schema cannot be used") from None


def approval(text: str) -> dict[str, dict[str, Any]]:
    """The approval request for a tool, as an elicitation."""
    schema = {"type": "object", "properties": {}}
    return {APPROVAL: {"method": ELICITATION, "params": {"mode": "form", "message": text, "requestedSchema": schema}}}


def check_answers(requests: Elicitations, answers: Answers) -> None:
    """Raises Malformed: an answer is missing, unexpected, not an ElicitResult, or does not fit the schema."""
    for key in [*requests, *answers]:
        field = f"input_responses.{key}"
        if key not in answers or key not in requests:
            raise refused(field, "was not asked" if key in answers else "is missing")
        try:
            answer = types.ElicitResult.model_validate(answers[key])
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise refused(".".join([field, *map(str, first["loc"][:2])]), first["msg"]) from None
        schema = requests[key]["params"].get("requestedSchema")
        if answer.action == "accept" and schema is not None:
            mistake = Schema(schema).mistake(answer.content or {})
            if mistake is not None:
                raise refused(".".join([f"{field}.content", *mistake[0]]), mistake[1])


def _shown(request: Mapping[str, Any]) -> str:
    """An elicitation in one line, for a model."""
    params = request["params"]
    fields = params.get("requestedSchema", {}).get("properties", {})
    link = f" (open {params['url']} for it)" if "url" in params else ""
    return f"{params.get('message')}{link}" + (f" (fields: {', '.join(map(str, fields))})" if fields else "")


@dataclass(eq=False)
class ToolCall:
    """A tool call, from its first request to its end. While a server of MCP 2025 waits for the Agent's answer,
    the call runs without a request; the request that brings the answer takes it over.
    """

    calls: "ToolCalls"
    request: ToolCallReq
    running: RunningCall
    record: "CallRecord"
    caller: Caller
    labels: Mapping[str, str]
    """Attributes of its span."""
    trace_id: int
    answered: OpenElicitation | None = None
    """What its request answers."""
    target: Target | None = None
    elicited: int = 0
    """Elicitations so far."""
    outcome: bytes | Exception | None = None
    stop: Stop = lambda why: None
    unanswered: dict[str, tuple[dict[str, Any], "asyncio.Future[types.ElicitResult]"]] = field(default_factory=dict)
    """The elicitations of a server of MCP 2025 that have no answer yet."""

    @cached_property
    def identity(self) -> tuple[str, str, str, bytes]:
        return self.request.agent, self.caller.subject, self.request.tool_name, digest(self.request)[0]

    async def elicit(self, params: types.ElicitRequestParams) -> types.ElicitResult | types.ErrorData:
        """The answer to an elicitation of a server of MCP 2025, while its call runs."""
        self.elicited += 1
        key = f"question{self.elicited}"
        request = {"method": ELICITATION, "params": params.model_dump(mode="json", by_alias=True, exclude_none=True)}
        try:
            check({**self._open_requests(), key: request}, self.elicited)  # before anything of it is kept
            if self.calls.at_terminal is not None and self.target is not None:
                answers = await self.calls.at_terminal(self.target, {key: request})
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
        self.request, self.running, self.record = request, running, record
        for key, answer in (request.input_responses or {}).items():
            if key in self.unanswered and not (future := self.unanswered[key][1]).done():
                future.set_result(types.ElicitResult.model_validate(answer))
        if self.outcome is not None:
            self.calls.settle(self, self.outcome)
            return
        record.ended("aborted")
        self.calls.began(record)
        if self._open_requests():  # sent while the others were answered
            try:
                self._send_to_agent()
            except ElicitationRefused:
                self.close()

    def kept(self, result: bytes) -> bytes:
        """What is kept of a result for which no request waits."""
        if len(result) <= MAX_KEPT_RESULT:
            return result
        why = f"ended before its elicitation was answered, with more than {MAX_KEPT_RESULT} bytes: they are not kept"
        return exact_json.written(self.failed(why))

    def failed(self, why: object, outcome: str = "failed") -> dict[str, Any]:
        """Its result: the tool failed, or was `refused`."""
        self.record.ended(outcome, str(why))
        return tool_results.failed(f"the tool {self.request.tool_name!r} {why}")

    def close(self) -> None:
        for _, answer in self.unanswered.values():
            if not answer.done():
                answer.set_result(types.ElicitResult(action="cancel"))

    def open(self, requests: Elicitations, server_state: str | None = None, **more: bool) -> dict[str, Any]:
        """The result that sends elicitations to the Agent; `more` are fields of `OpenElicitation`. Raises
        ElicitationRefused."""
        self.answered = None  # else each elicitation would keep those before it
        opened = OpenElicitation(self, requests, server_state, **more)
        result = self.calls.elicitations.add(opened)
        if not opened.keeps_call_open:  # the Agent's next request brings the parameters
            self.request = self.request.model_copy(update={"params": {}})
        self.record.ended("input_required")
        return result

    def _open_requests(self) -> dict[str, dict[str, Any]]:
        return {key: request for key, (request, answer) in self.unanswered.items() if not answer.done()}

    def _send_to_agent(self) -> None:
        if self.running.settled or self.target is None:
            return  # it waits for an answer already: the next request gets this one
        self.calls.settle(self, exact_json.written(self.open(self._open_requests(), keeps_call_open=True)))


ACTIONS: Final[Mapping[str, str]] = {"y": "accept", "yes": "accept", "n": "decline", "no": "decline", "": "cancel"}
"""MCP's actions of an ElicitResult, by the words for them."""


async def elicit_at_terminal(terminal: Terminal | None, target: Target, requests: Elicitations) -> Answers:
    """Ask at this host's terminal, line by line. A URL is shown, and never opened. Raises ElicitationRefused: there is
    no terminal."""
    none = "asks at this Computer's terminal (SMCP_ELICIT), but there is no terminal"
    if terminal is None:
        raise ElicitationRefused(none)
    asks = f"The tool {printable(target.ref.tool)!r} of {printable(target.ref.server)!r} asks: "
    try:
        async with terminal.turn:
            return {key: await _answer(terminal, asks, each["params"]) for key, each in requests.items()}
    except TerminalGone:
        raise ElicitationRefused(none) from None


async def _answer(terminal: Terminal, asks: str, params: Mapping[str, Any]) -> dict[str, Any]:
    text, what = f"{asks}{printable(str(params.get('message')))}", "Answer it?"
    if "url" in params:
        text, what = f"{text}\nIt wants you to open {printable(str(params['url']))}", "Open it?"
    action = await terminal.ask(text, f"{what} [y/n, Enter: cancel] ", ACTIONS)
    schema = params.get("requestedSchema")
    if action != "accept" or schema is None:
        return {"action": action}
    while (mistake := Schema(schema).mistake(content := await _filled_in(terminal, schema))) is not None:
        path, why = mistake
        wrong = f"{printable('.'.join(path) or 'the form')}: {printable(why)}"
        if not await terminal.ask(wrong, "Fill it in again? [Y/n] ", {**YES_OR_NO, "": True}):
            return {"action": "cancel"}
    return {"action": "accept", "content": content}


async def _filled_in(terminal: Terminal, form: Mapping[str, Any]) -> dict[str, Any]:
    """Ask for each field in one line: text as it is, lists with commas, yes or no, else JSON. The caller validates."""
    content: dict[str, Any] = {}
    for name, schema in form.get("properties", {}).items():
        needed = ", required" if name in form.get("required", ()) else ""
        about = f"{printable(name)}{needed}: {printable_json(schema, indent=None)}"
        known = schema if isinstance(schema, dict) else {}
        line, kind = await terminal.line(about, f"{printable(name)}: "), known.get("type", "string")
        if not line:
            content |= {name: known["default"]} if "default" in known else {}
        elif kind == "array":
            content[name] = [each.strip() for each in line.split(",")]
        elif kind == "boolean" and line.casefold() in YES_OR_NO:
            content[name] = YES_OR_NO[line.casefold()]
        else:
            content[name] = line
            with suppress(ValueError, RecursionError):
                content[name] = line if kind == "string" else json.loads(line)
    return content
