"""An office as one MCP server: the tools of all its Computers under one list of names; resources and prompts beside it.

Below is `SmcpAgent`, used by its public methods and events alone, and the low-level server of the MCP SDK, which speaks
MCP 2025 (up to 2025-11-25, with a handshake) and MCP 2026 (2026-07-28). Above is the command `smcp-agent mcp`. Results
pass as they came, or are cut if the client wants that; the bridge adds no rights: what the office refuses, it refuses
here (docs/adr/0046). A client of 2026-07-28 gets elicitations as the result, and calls again with the answers and the
state, which are those of A2C-SMCP unchanged. A client of MCP 2025 is sent `elicitation/create` while its call waits.
"""

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from importlib.metadata import version
from itertools import groupby
from typing import Any, Final, cast
from uuid import uuid4

import anyio
import mcp_types as types
from mcp.server import Server, subscriptions
from mcp.server.context import CallNext, HandlerResult, ServerMiddleware
from mcp.server.lowlevel import NotificationOptions
from mcp.server.models import InitializationOptions
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from opentelemetry import trace
from pydantic import TypeAdapter, ValidationError

from smcp_agent import events
from smcp_agent.cache import Tools, in_turns
from smcp_agent.client import SmcpAgent
from smcp_agent.errors import Malformed, SmcpError
from smcp_agent.llm import NamedTool, error_result, name_tools
from smcp_agent.mcp.resources import (
    LONGEST,
    MAX_RETIRED_NAMES,
    Context,
    OfficePrompts,
    OfficeResources,
    ask_each,
    requested_page,
)
from smcp_agent.mcp.subscriptions import ClientSubscriptions, WatchCounter
from smcp_agent.mcp.tools import DESCRIBE, NO_TOOLS, RESERVED, SEARCH, OfficeTools, ToolListOptions, meant
from smcp_agent.results import InputAnswer, InputRequest
from smcp_proto.schemas import MAX_TIMEOUT_S, SMCPTool, ToolProgress
from smcp_proto.validation import mended

NAMING_SHARE: Final = 0.1
"""Share of the time that naming the tools of one office may take, however often its Computers change them."""
_CONTENT: Final = TypeAdapter[types.ContentBlock](types.ContentBlock)
CHANGES: Final = NotificationOptions(tools_changed=True, resources_changed=True, prompts_changed=True)
CHUNK: Final = 256 * 1024
INSTRUCTIONS: Final = "Tools of several computers. <computer>__<tool> is one whose name another has, or had."

WhenGone = Callable[[Context, Callable[[], None]], AbstractContextManager[object]]

logger = logging.getLogger(__name__)


class _Server(Server[Any]):
    """The low-level server, which says to each client that the lists change, whoever serves it."""

    def create_initialization_options(
        self, notification_options: NotificationOptions | None = None, *args: Any, **kwargs: Any
    ) -> InitializationOptions:
        return super().create_initialization_options(notification_options or CHANGES, *args, **kwargs)


class OfficeServer:
    """The MCP server of an office, for any number of clients at once.

    Args:
        agent: has entered the office.
        may: whether the sender of an MCP request may use a tool; others are not listed. None: the HTTP request that the
            current task answers.
        may_ask: whether the sender may use the resources, prompts and completion of the Computer of that name.
        listing: when the list is a search in place of all tools.
        max_chars: how many characters of a result the sender gets; the rest is a resource. None: everything.
        when_gone: a block that calls a function if the sender disconnects: nobody answers an elicitation then.
        watch_counter: limits the resources that a client watches, since all clients share the limit of one Agent.
    """

    server: Server[Any]
    """Serves the clients while `following` lasts."""

    def __init__(
        self,
        agent: SmcpAgent,
        *,
        may: Callable[[Context | None, NamedTool], bool] = lambda _, __: True,
        may_ask: Callable[[Context, str], bool] = lambda _, __: True,
        listing: ToolListOptions | None = None,
        max_chars: Callable[[Context], int | None] = lambda _: None,
        when_gone: WhenGone = lambda _, __: nullcontext(),
        watch_counter: WatchCounter = lambda _: lambda _: None,
        name: str = "smcp-agent",
    ) -> None:
        self._agent = agent
        self._max_chars = max_chars
        self._when_gone = when_gone
        self._listed = OfficeTools(may, listing or ToolListOptions())
        self._tools: dict[str, Tools] = {}
        self._kept: dict[tuple[str, str], str] = {}
        """The name of each tool, by Computer and own name, also of those that are gone: it stays theirs."""
        self.server = _Server(
            name,
            version=version("smcp-agent"),
            title=f"Office {agent.office}",
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            get_tool_input_schema=self._listed.input_schema,
        )
        self.server.middleware[:] = [*(partial(_if_traced, each) for each in self.server.middleware), _refuse_logging]
        resources = OfficeResources(agent, self.server, may_ask, max_chars)
        OfficePrompts(agent, self.server, resources)
        self._subscriptions = ClientSubscriptions(agent, self.server, resources, watch_counter)

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Follow what happens in the office as long as the block lasts. Cancels it when the Agent was closed."""
        changes = self._agent.events()
        await self._learn()
        await asyncio.to_thread(self._name)
        async with anyio.create_task_group() as group:
            group.start_soon(self._follow, changes, group.cancel_scope)
            yield
            group.cancel_scope.cancel()

    async def run(self, streams: tuple[Any, Any]) -> None:
        """Serve one client until it hangs up, or the Agent is closed."""
        async with self.following():
            await self.server.run(*streams, self.server.create_initialization_options())

    async def _follow(self, changes: events.EventStream, block: anyio.CancelScope) -> None:
        async for change in changes:
            notices = await self._take(change)
            while changes.waiting:  # one notification for a burst of changes
                notices |= await self._take(await anext(changes))
            named_s = await asyncio.to_thread(self._name) if subscriptions.ToolsListChanged() in notices else 0.0
            for each in notices:
                await self._subscriptions.bus.publish(each)
            await asyncio.sleep(named_s / NAMING_SHARE)
        block.cancel()

    async def _take(self, event: events.Event) -> set[subscriptions.ServerEvent]:
        """The notifications for clients about an event. Computers announce no changes of prompts: they may have changed
        if an MCP server with tools came or went."""
        tools, resources = subscriptions.ToolsListChanged(), subscriptions.ResourcesListChanged()
        prompts = subscriptions.PromptsListChanged()
        match event:
            case events.ToolsChanged(computer, listed):
                self._tools[computer] = listed
                return {tools, prompts}
            case events.ComputerLeft(computer):
                had_tools = self._tools.pop(computer, ())
                return {tools, resources, prompts} if had_tools else {resources, prompts}
            case events.EventsDropped():
                await self._learn()
                return {tools, resources, prompts}
            case events.ComputerEntered() | events.ResourcesChanged():
                return {resources}
            case events.ResourceUpdated():
                return {subscriptions.ResourceUpdated(uri) for uri in self._subscriptions.meant(event)}
            case events.Disconnected() | events.RejoinRefused() | events.Reconnected():
                logger.info("%s", event)
        return set()

    async def _learn(self) -> None:
        self._tools = await ask_each(self._agent.computers(), "tools", self._agent.tools)

    def _name(self) -> float:
        """Name the tools, in a thread: all offices of a process share one event loop. Returns how long it took (s)."""
        began = time.thread_time()
        named = sorted(name_tools(self._tools, RESERVED | self._kept), key=lambda each: each.name)
        self._listed.put(named)
        self.server.instructions = INSTRUCTIONS if named else f"{INSTRUCTIONS} As you connect, {NO_TOOLS}"
        there = {(each.computer, each.tool.name): each.name for each in named}
        gone = [pair for pair in self._kept if pair not in there and len(pair[1]) <= LONGEST]
        self._kept = {pair: self._kept[pair] for pair in gone[-MAX_RETIRED_NAMES:]} | there
        return time.thread_time() - began

    async def _list_tools(self, context: Context, _: types.PaginatedRequestParams | None) -> Any:
        entries = await self._listed.entries(context)
        if self._max_chars(context) is not None:  # a result that is cut has no structured content to check by it
            entries = [{key: value for key, value in each.items() if key != "outputSchema"} for each in entries]
        return await requested_page("tools/list", context, types.ListToolsResult, "tools", entries)

    async def _call_tool(self, context: Context, params: types.CallToolRequestParams) -> Any:
        try:
            name, arguments = meant(params.name, params.arguments)
            if name in (SEARCH, DESCRIBE):
                return _mcp_result(await self._listed.run(context, name, arguments))
            named = await self._listed.find(context, name, self._unlisted)
            async with _progress(context) as on_progress:
                options = {"timeout": MAX_TIMEOUT_S, "max_chars": self._max_chars(context)}
                return await self._call(context, named, arguments, on_progress=on_progress, **options)
        except ElicitationUnsupported as error:
            return _failed(str(error))
        except SmcpError as error:
            return _failed(error_result(error).text)

    async def _call(
        self, context: Context, named: NamedTool, arguments: Mapping[str, Any] | None, **options: Any
    ) -> dict[str, Any]:
        """MCP's CallToolResult, or its InputRequiredResult; `options` as of `SmcpAgent.call_once`. Raises SmcpError,
        ElicitationUnsupported."""
        called = named.computer, named.tool.name, arguments
        if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            answer = partial(_ask, context, when_gone=self._when_gone)
            return await _tool_result(context, (await self._agent.call_tool(*called, **options, on_input=answer)).raw)
        sent = context.params or {}
        state = sent.get("requestState")
        answers = None if state is None else sent.get("inputResponses")  # answers to nothing: asked anew
        try:
            result = await self._agent.call_once(*called, **options, input_state=state, input_responses=answers)
        except Malformed as error:
            if error.details.get("field") == "input_state":  # forged, used, or too old: MCP wants a protocol error
                raise MCPError(types.INVALID_PARAMS, error.message, {"field": "input_state"}) from None
            raise
        if not result.input_required:
            return await _tool_result(context, result.raw)
        requests = result.input_requests
        try:
            _check_modes(context, [each["params"] for each in requests.values()])
        except ElicitationUnsupported:
            self._agent.cancel_call(result.req_id)
            raise
        return {"resultType": "input_required", "inputRequests": requests, "requestState": result.input_state}

    def _unlisted(self, name: str) -> NamedTool | None:
        """The tool that had this name, without what says that it only reads. Its Computer knows what became of it."""
        pair = next((pair for pair, kept in self._kept.items() if kept == name), None)
        return pair and NamedTool(name, pair[0], SMCPTool(name=pair[1], description="", params_schema={}))


class ElicitationUnsupported(Exception):
    """The client cannot ask its user. The text says why, for a model."""


async def _ask(context: Context, request: InputRequest, when_gone: WhenGone) -> InputAnswer:
    """The answer of the client's user, asked on its session while its call waits. Raises ElicitationUnsupported."""
    _check_modes(context, [request.raw])
    said = dict(request.raw)
    if request.url is not None:
        said.setdefault("elicitationId", uuid4().hex)  # clients of 2025 want one; servers of 2026 give none
    try:
        with anyio.CancelScope() as scope, when_gone(context, scope.cancel):
            answer = await context.session.send_request(
                types.ElicitRequest.model_validate({"method": "elicitation/create", "params": said}),
                types.ElicitResult,
                metadata=ServerMessageMetadata(related_request_id=context.request_id),
            )
            return InputAnswer(answer.action, answer.content)
    except MCPError as error:
        raise _cannot([request.raw], f"the MCP client answered with the error {error.error.code}") from None
    except ValidationError:
        raise _cannot([request.raw], "the elicitation or the MCP client's answer is not valid in MCP") from None
    raise _cannot([request.raw], "the MCP client closed the connection of its call")


def _check_modes(context: Context, elicitations: Sequence[Mapping[str, Any]]) -> None:
    """Raises ElicitationUnsupported: the client does not declare the mode of each of the elicitations."""
    declared = (context.session.client_capabilities or types.ClientCapabilities()).elicitation
    declares = {} if declared is None else declared.model_dump(exclude_none=True) or {"form": {}}
    for mode in ("url" if "url" in each else "form" for each in elicitations):
        if mode not in declares:
            raise _cannot(elicitations, f"this MCP client cannot ask its user: it declares no `elicitation.{mode}`")


def _cannot(elicitations: Sequence[Mapping[str, Any]], why: str) -> ElicitationUnsupported:
    said = [f"{each['message']} (page: {each['url']})" if "url" in each else each["message"] for each in elicitations]
    return ElicitationUnsupported(f"the tool asks its user: {'; '.join(said)}\nThe call was cancelled: {why}.")


@asynccontextmanager
async def _progress(context: Context) -> AsyncIterator[Callable[[ToolProgress], None] | None]:
    """Reports the progress of a call to a client that wants it, in the block; nothing is reported after it."""
    if "progress_token" not in (context.meta or {}):
        yield None
        return
    reporting: asyncio.Task[None] | None = None
    newest: list[ToolProgress] = []
    """One at most: a client that reads slowly misses some, and gets the last."""

    async def report() -> None:
        while newest:
            note = newest.pop()
            await context.session.report_progress(note.progress, note.total, note.message)

    def take(note: ToolProgress) -> None:
        nonlocal reporting
        newest[:] = [note]
        if reporting is None or reporting.done():
            reporting = asyncio.create_task(report())

    try:
        yield take
    finally:
        if reporting is not None:
            await reporting


def _failed(text: str) -> dict[str, Any]:
    return _mcp_result({"content": [{"type": "text", "text": text}], "isError": True})


async def _tool_result(context: Context, raw: Mapping[str, Any]) -> dict[str, Any]:
    """`_mcp_result` of a tool. Contents that are not valid in MCP become text, a line for each, and structured content
    that the client's version of MCP does not have is left out: the MCP SDK would refuse the result, or lose its fields.
    """
    content = list[Any]()
    found = [_content_or_line(block) async for block in in_turns(raw.get("content", []))]
    for kind, run in groupby(found, type):
        blocks = list(run)
        content += [{"type": "text", "text": "\n".join(blocks)}] if kind is str else blocks
    result = _mcp_result({**raw, "content": content})
    if context.protocol_version not in MODERN_PROTOCOL_VERSIONS and not isinstance(raw.get("structuredContent"), dict):
        result.pop("structuredContent", None)
    return result


def _content_or_line(block: Any) -> Any:
    with suppress(ValidationError):
        _CONTENT.validate_python(block)
        if "type" in block:  # the models have a default for it, and the wire has none
            return block
    return json.dumps(block, ensure_ascii=False)


def _mcp_result(raw: Mapping[str, Any]) -> dict[str, Any]:
    """MCP's CallToolResult as the tool gave it; the wire of A2C-SMCP calls its `_meta` `meta`."""
    found = {key: raw[key] for key in ("structuredContent", "isError") if raw.get(key) is not None}
    found |= {"_meta": raw["meta"]} if raw.get("meta") else {}
    return {"content": raw.get("content", []), "resultType": "complete", **found}


async def _if_traced(span: ServerMiddleware[Any], ctx: Context, call_next: CallNext) -> HandlerResult:
    """Open the MCP SDK's span for the request of a client that is traced. Other calls begin their trace themselves, by
    their `req_id`: a service's sampler drops such a span, and below a dropped span a call would be in no trace."""
    is_traced = "traceparent" in (ctx.meta or {}) or trace.get_current_span().is_recording()
    return await (span(ctx, call_next) if is_traced else call_next(ctx))


async def _refuse_logging(ctx: Context, call_next: CallNext) -> HandlerResult:
    if ctx.method == "logging/setLevel":
        raise MCPError(types.METHOD_NOT_FOUND, "logging is not supported: MCP has deprecated it", ctx.method)
    return await call_next(ctx)


async def serve_stdio(agent: SmcpAgent, listing: ToolListOptions, max_chars: int | None) -> None:
    """Enter the office and be its MCP server on standard input and output until the client hangs up."""
    stdin = None if sys.platform == "win32" else cast("anyio.AsyncFile[str]", _lines(sys.stdin.fileno()))
    async with agent:
        logger.info("in the office %r as %r; Computers: %d", agent.office, agent.name, len(agent.computers()))
        try:
            async with stdio_server(stdin) as streams:
                await OfficeServer(agent, listing=listing, max_chars=lambda _: max_chars).run(streams)
        except* (BrokenPipeError, ConnectionResetError, anyio.BrokenResourceError):
            logger.info("the client is gone")


async def _lines(stdin: int) -> AsyncIterator[str]:
    """The lines of standard input. SIGTERM cannot cancel the thread in which the MCP SDK waits for one."""
    rest = bytearray()
    chunk = b"\n"
    while chunk:
        with suppress(PermissionError):  # a regular file need not be waited for, and cannot be
            await anyio.wait_readable(stdin)
        chunk = os.read(stdin, CHUNK)
        rest += chunk
        if b"\n" in chunk:
            *lines, rest = rest.split(b"\n")
            for line in lines:
                text = line.decode("utf-8", "replace")
                with suppress(ValueError):  # the MCP SDK would answer nothing to a line with half of a surrogate pair
                    text = mended(text) if r"\ud" in text.lower() else text
                yield text
