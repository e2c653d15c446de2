"""One connection to one MCP server: requests past the SDK's session, and their errors as ours.

It must be opened and closed in the same task (the server's owner, see `supervisor`); it may be used from any task.
Every request has a time-out. Below is `sdk_adapter`, which has the results as the server sent them.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, get_args

import anyio
import mcp_types as types
from mcp.client import Client
from mcp.shared import inbound
from mcp.shared.exceptions import MCPError
from mcp_types.methods import SERVER_RESULTS
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from opentelemetry.propagate import inject
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, StatusCode, get_tracer
from pydantic import TypeAdapter, ValidationError

from smcp_bus import exact_json
from smcp_bus.request_spans import child_span
from smcp_bus.tool_progress import ProgressThrottle
from smcp_bus.tracing import LONGEST
from smcp_computer.mcp import errors
from smcp_computer.mcp.events import MOST_WARNINGS
from smcp_computer.mcp.resources import LIST_BYTES, Listed, Lists, Resources
from smcp_computer.mcp.sdk_adapter import Watch
from smcp_proto import tool_results
from smcp_proto.printable import printable
from smcp_proto.validation import malformed
from smcp_service.telemetry import recorder

if TYPE_CHECKING:
    from smcp_computer.elicitation import ToolCall

_log = logging.getLogger("smcp_computer.mcp.session")

MAX_TOOLS: Final = 10_000
"""Of one server: each is listed to every Agent of the office, with its schema. Models are given some hundreds."""
NOT_VALID: Final = "sent a result that is not valid"
PINGS: Final = ("ping", "server/discover")
"""The requests that ask whether a server is there, in MCP 2025 and MCP 2026. Measured with SDK 2.3: servers of 2026
refuse `ping` (-32601), and each of them answers `server/discover`."""
FIRST_ID: Final = 1 << 40
"""The SDK's session counts its own requests from 0."""
CANCEL_S: Final = 1.0
"""How long a server that reads nothing may hold up a cancellation."""

tracer: Final = get_tracer("smcp_computer.mcp")
_TARGETS: Final = {"tools/call": "gen_ai.tool.name", "prompts/get": "gen_ai.prompt.name"}
"""Requests whose span is named after their target, and its attribute (OpenTelemetry's conventions for MCP)."""
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_NO_SPAN: Final = nullcontext(INVALID_SPAN)


@dataclass(eq=False)
class ServerConnection:
    """What `connect` gives; answers have at most `max_message` bytes. `resources`, `prompts`: None without any.

    Requests have ids of their own, and `Watch` hands over their answers: the SDK's session would cost more than the
    rest of a call over a pipe (bench/README), and refuse a whole list for one tool. The handshake, notifications, and
    what the server itself asks for stay with the session.
    """

    client: Client
    watch: Watch
    max_message: int
    list_s: float
    over_http: bool
    resources: Resources | None = None
    prompts: Lists | None = None

    def __post_init__(self) -> None:
        self.server = self.watch.server
        self.version = self.client.protocol_version
        self.is_modern = self.version in MODERN_PROTOCOL_VERSIONS
        self._meta = self.watch.stamp if self.is_modern else {}
        self._ids, self._tokens = count(FIRST_ID), count(1)
        self._is_traced = recorder() is not None
        self._ping = PINGS[self.is_modern]
        self._described = {
            "smcp.mcp_server": self.server,
            "mcp.protocol.version": self.version,
            "network.transport": "tcp" if self.over_http else "pipe",
        }
        self._parameter_headers: dict[str, dict[tuple[str, ...], str]] = {}
        """By tool: the header that repeats a parameter, by the parameter's path. In MCP 2026 over HTTP alone."""

    async def ping(self, *, timeout: float) -> None:
        """Ask whether the server is alive: any answer will do, also an error; `watch` tells whether one came. It has
        ended where HTTP refuses the request."""
        self.watch.refused = ""
        try:
            try:
                await self.send(self._ping, timeout=timeout / 2)
            except errors.ServerTimedOut:
                self._ping = "tools/list"  # some servers know no ping, and do not say so; this one they answered before
                await self.send(self._ping, timeout=timeout / 2)
        except (errors.ServerTimedOut, errors.ServerDied):
            pass
        except errors.ServerError:
            if self.watch.refused:
                self.watch.end(self.watch.refused)

    async def list_tools(self) -> Listed[types.Tool]:
        """All pages of `tools/list`. Raises MCPError, TimeoutError: the server did not answer with one."""
        if self.client.server_capabilities.tools is None:
            return Listed((), ())
        items: list[object] = []
        problems: list[str] = []
        size, cursor = 0, None
        async with asyncio.timeout(self.list_s):
            while True:
                async with asyncio.timeout(self.client.read_timeout_seconds):
                    page = await self._exchange("tools/list", {} if cursor is None else {"cursor": cursor}, {})
                found, cursor = page.get("tools"), page.get("nextCursor")
                if not isinstance(found, list) or not isinstance(cursor, str | None):
                    problems.append("sent a list of tools that is not valid; it is left out")
                    cursor = None
                    break
                items += found
                size += len(exact_json.written(page))
                if cursor is None or len(items) >= MAX_TOOLS or size > LIST_BYTES:
                    break
        if cursor is not None or len(items) > MAX_TOOLS:
            del items[MAX_TOOLS:]
            problems.append(f"its list of tools is too long; only the first {len(items)} are used")
        tools: list[types.Tool] = []
        left_out: list[str] = []
        for item in items:
            try:
                tools.append(self._tool(item))
            except ValueError as error:
                name = item.get("name") if isinstance(item, dict) else None
                left_out += [name] if isinstance(name, str) else []
                if len(problems) < MOST_WARNINGS:
                    problems.append(self._left_out(name, error))
        if self.is_modern and self.over_http:
            self._parameter_headers = {tool.name: inbound.x_mcp_header_map(tool.input_schema) for tool in tools}
        return Listed(tuple(tools), tuple(problems), tuple(left_out))

    def _tool(self, item: object) -> types.Tool:
        """Raises ValueError: it is not valid, or MCP 2026 forbids to use it."""
        _tool_shape(self.version).validate_python(item, by_name=False)
        tool = types.Tool.model_validate(item, by_name=False)
        if self.is_modern and (why := inbound.find_invalid_x_mcp_header(tool.input_schema)) is not None:
            raise ValueError(why)
        return tool

    def _left_out(self, name: object, error: ValueError) -> str:
        which = f"its tool {name!r}" if isinstance(name, str) else "a tool without a name"
        why = malformed(error).message if isinstance(error, ValidationError) else error
        return printable(self.watch.redactor.shown(f"{which} is not valid, and left out: {why}"))

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        timeout: float,
        labels: Mapping[str, str] = _NOTHING,
        progress: ProgressThrottle | None = None,
        elicitor: "ToolCall | None" = None,
        answers: Mapping[str, Any] = _NOTHING,
    ) -> dict[str, Any]:
        """Run a tool: the result's JSON as the server sent it. Cancelling the caller cancels it at the server.

        Args:
            labels: attributes of its span. The message of a cancellation becomes the span's `error.type`.
            progress: is given what the server reports of it; None: the server is not asked to.
            elicitor: answers the elicitations of a server of MCP 2025. A server of MCP 2026 elicits by its result.
            answers: the parameters by which a call of MCP 2026 continues (`inputResponses`, `requestState`). One of
                the 2025 era is made again, after the pages of its error -32042 were opened.

        Raises:
            RequestRefused, BadAnswer, AnswerTooLarge, ServerDied: see `errors`.
            TimeoutError: no answer within `timeout` seconds.
        """
        params: dict[str, Any] = {"name": tool, "arguments": dict(arguments)}
        if self.is_modern:
            params |= answers
        elif any(each["action"] != "accept" for each in answers.get("inputResponses", {}).values()):
            return tool_results.failed(f"the tool {tool!r} was not run: its user did not agree to open a page for it")
        token = next(self._tokens)
        if progress is not None:
            self.watch.followed[token] = progress
            params["_meta"] = {"progressToken": token}
        if elicitor is not None and not self.is_modern:
            self.watch.elicitors[token] = elicitor
        try:
            may_ask = elicitor is not None
            return await self.send("tools/call", params, timeout=timeout, labels=labels, may_ask=may_ask)
        except errors.ServerTimedOut:
            raise TimeoutError from None
        except errors.RequestRefused as error:
            if elicitor is None or not error.pages:
                raise
            return {"resultType": "input_required", "inputRequests": error.pages}
        finally:
            self.watch.followed.pop(token, None)
            self.watch.elicitors.pop(token, None)

    async def send(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout: float,
        labels: Mapping[str, str] = _NOTHING,
        may_ask: bool = False,
    ) -> dict[str, Any]:
        """Send a request; returns its result's JSON as the server sent it. Cancelling the caller cancels it at the
        server. Only a tool's result is validated here: in lists an invalid field is a warning (desktop.txt).

        Args:
            labels: attributes of its span.
            may_ask: whether the result may ask for input (`resultType: input_required`).

        Raises:
            RequestRefused, ServerTimedOut, ServerDied, AnswerTooLarge: see `errors`.
            BadAnswer: its answer cannot be read, or asks for input that nobody can give.
        """
        try:
            async with asyncio.timeout(timeout):
                result = await self._exchange(method, dict(params or {}), labels)
        except MCPError as error:
            translated = self.translated(error)
            if isinstance(translated, errors.RequestRefused) and translated.code not in errors.SAID_ALOUD:
                # the text does not reach Agents: it may be that of an exception
                what = self.watch.refused or f"MCP error {error.code}: {error.message!r:.500}"
                level = logging.DEBUG if method in PINGS else logging.INFO  # the supervisor tells what comes of it
                _log.log(level, "MCP server %r failed at %s: %s", self.server, method, what)
            raise translated from None
        except TimeoutError:
            raise errors.ServerTimedOut(self.server, f"did not answer within {timeout:.3g} s") from None
        if method == "tools/call":
            try:
                _shape(self.version).validate_python(result, by_name=False)
            except ValidationError:
                raise errors.BadAnswer(self.server, NOT_VALID) from None
            if result.get("isError") is None:
                result.pop("isError", None)
            elif not isinstance(result["isError"], bool):  # the SDK takes 1 and "true", an Agent does not
                raise errors.BadAnswer(self.server, NOT_VALID)
        if result.get("resultType") == "input_required" and not may_ask:
            raise errors.BadAnswer(self.server, f"asks for input for {method}, which is supported for tools only")
        return result

    async def _exchange(self, method: str, params: dict[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
        id_ = next(self._ids)
        with self._span(method, id_, params, labels) as span:
            meta = {**self._meta, **params.get("_meta", {})}
            if self._is_traced:
                inject(meta)
            if meta:
                params["_meta"] = meta
            with self.watch.answer(id_) as answered:
                try:
                    request = {"jsonrpc": "2.0", "id": id_, "method": method, "params": params}
                    await self.watch.write(request, self._headers(method, params))
                    answer = await answered
                except (anyio.BrokenResourceError, anyio.ClosedResourceError, MCPError):
                    _failed(span, "connection_closed")
                    raise MCPError(code=types.CONNECTION_CLOSED, message="the connection has ended") from None
                except asyncio.CancelledError as cancelled:
                    if method == "tools/call" and cancelled.args:
                        _failed(span, str(cancelled.args[0]))
                    await self._cancel(id_)
                    raise
            if isinstance(answer, types.ErrorData):
                span.set_attribute("rpc.response.status_code", str(answer.code))
                _failed(span, str(answer.code), answer.message)
                raise MCPError(code=answer.code, message=answer.message, data=answer.data)
            if answer.get("isError") is True:
                _failed(span, "tool_error")
            return answer

    def _headers(self, method: str, params: Mapping[str, Any]) -> dict[str, str] | None:
        """Those of HTTP that MCP wants beside the session's; None: it is not sent over HTTP."""
        if not self.over_http:
            return None
        headers = {inbound.MCP_PROTOCOL_VERSION_HEADER: self.version}
        if self.is_modern:
            headers[inbound.MCP_METHOD_HEADER] = method
            if (key := inbound.NAME_BEARING_METHODS.get(method)) is not None:
                headers[inbound.MCP_NAME_HEADER] = inbound.encode_header_value(params[key])
            if method == "tools/call" and (repeated := self._parameter_headers.get(params["name"])):
                headers |= inbound.mcp_param_headers(repeated, params["arguments"])
        return headers

    def _span(
        self, method: str, id_: int, params: Mapping[str, Any], labels: Mapping[str, str]
    ) -> AbstractContextManager[Span]:
        if not self._is_traced:
            return _NO_SPAN
        name, attributes = method, {**labels, **self._described, "mcp.method.name": method}
        attributes["jsonrpc.request.id"] = str(id_)
        if (target := _TARGETS.get(method)) is not None:
            attributes[target] = str(params["name"])[:LONGEST]
            name = f"{method} {attributes[target]}"
        if method == "tools/call":
            attributes["gen_ai.operation.name"] = "execute_tool"
        if "uri" in params:
            attributes["mcp.resource.uri"] = str(params["uri"])[:LONGEST]
        return child_span(tracer, name, SpanKind.CLIENT, attributes)

    async def _cancel(self, id_: int) -> None:
        method, params = "notifications/cancelled", {"requestId": id_, "reason": "the caller gave it up"}
        cancelled = {"jsonrpc": "2.0", "method": method, "params": params}
        with anyio.move_on_after(CANCEL_S, shield=True), suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self.watch.write(cancelled, self._headers(method, params))

    def translated(self, error: MCPError) -> errors.ServerError:
        """The SDK's error as one of ours; what says that the connection is gone ends it."""
        not_read = errors.unread_error(self.server, error, limit=self.max_message, max_values=self.watch.max_values)
        if not_read is not None:
            return not_read
        match error.code:
            case types.CONNECTION_CLOSED:
                self.watch.ended.set()
                return errors.ServerDied(self.server, self.watch.why or "went away before it answered")
            case types.REQUEST_TIMEOUT:
                return errors.ServerTimedOut(self.server, "did not answer in time")
            case _:
                return errors.RequestRefused(self.server, error.code, error.message, error.error.data)


def _failed(span: Span, why: str, message: str | None = None) -> None:
    span.set_attribute("error.type", why)
    span.set_status(StatusCode.ERROR, message)


@cache
def _shape(version: str) -> TypeAdapter[Any]:
    """The schema of a tool's result."""
    shape: Any = SERVER_RESULTS["tools/call", version]
    return TypeAdapter(shape)


@cache
def _tool_shape(version: str) -> TypeAdapter[Any]:
    """The schema of a tool in a list."""
    page: Any = SERVER_RESULTS["tools/list", version]
    return TypeAdapter(get_args(page.model_fields["tools"].annotation)[0])
