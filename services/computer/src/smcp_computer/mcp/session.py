"""One connection to one MCP server, over the SDK's client.

It must be opened and closed in the same task (the server's owner, see `supervisor`); `call`, `list_tools` and
`resources` may be used from any task. Every request has a time-out.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio
import mcp_types as types
from mcp.client import Client
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from smcp_bus import exact_json
from smcp_bus.tool_progress import ProgressThrottle
from smcp_computer.mcp.errors import (
    RequestRefused,
    ServerDied,
    ServerError,
    ServerFailed,
    ServerTimedOut,
)
from smcp_computer.mcp.events import ServerEvent, event_of
from smcp_computer.mcp.requests import NOTHING, PINGS, REQUEST_S, Requests
from smcp_computer.mcp.resources import LIST_BYTES, ListenStream, Prompts, Resources
from smcp_computer.mcp.sdk_adapter import Watch
from smcp_computer.mcp.server_log import StderrLog
from smcp_computer.mcp.transports import open_transport, refused_by_http
from smcp_computer.redaction import Redactor
from smcp_computer.settings import HostSettings
from smcp_proto import tool_results
from smcp_proto.schemas.config import (
    MCPServerConfig,
    MCPServerStdioConfig,
    MCPServerStreamableHttpConfig,
    parse_duration,
)
from smcp_proto.schemas.tools import MAX_TIMEOUT_S

if TYPE_CHECKING:
    from smcp_computer.elicitation import ToolCall

_log = logging.getLogger("smcp_computer.mcp.session")

_CLIENT: Final = types.Implementation(name="smcp-computer", version=version("smcp-computer"))
MAX_TOOLS: Final = 10_000
"""Of one server: each is listed to every Agent of the office, with its schema. Models are given some hundreds."""
Negotiation = Literal["auto", "legacy"]


@dataclass(frozen=True)
class Limits:
    max_message: int = 32 * 1024 * 1024
    """Bytes that what a server sends in one message may have: no answer that is larger reaches an Agent."""
    max_values: int = exact_json.MAX_VALUES
    """Values that such a message may hold."""
    start_s: float = 30.0
    """How long the first start may take, the first list of tools included."""
    silence_s: float = 30.0
    """A server that has sent nothing for so long, though it was asked, hangs. It is asked after half of this."""
    wait_s: float = 3.0
    """How long a call waits for a server that is being started."""
    logs: Path | None = None
    """The directory of the servers' own logs."""
    strict: bool = False
    """Offer no tool of a server while its configuration names tools that it does not have."""


@dataclass(eq=False)
class Connection:
    """What `connect` gives. `resources`, `prompts`: None without any."""

    _requests: Requests
    _: KW_ONLY
    resources: Resources | None
    prompts: Prompts | None
    list_s: float

    def __post_init__(self) -> None:
        requests = self._requests
        self.watch, self._client = requests.watch, requests.client
        self._tokens = count(1)
        # Measured with SDK 2.3: servers of 2026 refuse `ping` (-32601), and each of them answers `server/discover`.
        self._ping = PINGS[requests.is_modern]
        self._described = {
            "smcp.mcp_server": requests.server,
            "mcp.protocol.version": requests.version,
            "network.transport": "tcp" if requests.over_http else "pipe",
        }

    async def ping(self, *, timeout: float) -> None:
        """Ask whether the server is there: each answer of it will do, also an error.

        Raises TimeoutError, and ServerFailed: HTTP answered in its place.
        """
        self.watch.refused = ""
        try:
            try:
                await self._requests.send(self._ping, timeout=timeout / 2)
            except ServerTimedOut:
                self._ping = "tools/list"  # some servers know no ping, and do not say so; this one they answered before
                await self._requests.send(self._ping, timeout=timeout / 2)
        except ServerTimedOut:
            raise TimeoutError from None
        except ServerDied:
            pass  # `watch.ended` is set
        except ServerError:
            if self.watch.refused:
                raise ServerFailed(self.watch.refused) from None

    async def list_tools(self) -> tuple[types.Tool, ...]:
        """All pages of `tools/list`. Raises MCPError, ValidationError: the server did not give a list."""
        if self._client.server_capabilities.tools is None:
            return ()
        tools: list[types.Tool] = []
        size, cursor = 0, None
        async with asyncio.timeout(self.list_s):
            while True:
                page = await self._client.session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
                tools += page.tools
                cursor = page.next_cursor
                size += len(page.model_dump_json())
                if cursor is None or len(tools) >= MAX_TOOLS or size > LIST_BYTES:
                    break
        if cursor is not None or len(tools) > MAX_TOOLS:
            del tools[MAX_TOOLS:]
            what = "MCP server %r: its list of tools is too long; only the first %d are used"
            _log.warning(what, self._requests.server, len(tools))
        self._requests.tools_listed(tools)
        return tuple(tools)

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        timeout: float,
        labels: Mapping[str, str] = NOTHING,
        progress: ProgressThrottle | None = None,
        elicitor: "ToolCall | None" = None,
        answers: Mapping[str, Any] = NOTHING,
    ) -> dict[str, Any]:
        """Run a tool: the result's JSON as the server sent it. Cancelling the caller cancels it at the server.

        Args:
            labels: attributes of its span. The message of a cancellation becomes the span's `error.type`.
            progress: is given what the server reports of it; None: the server is not asked to.
            elicitor: answers the elicitations of a server of MCP 2025. Then only the caller ends the call: its time
                does not run while it waits for an answer. A server of MCP 2026 elicits by its result.
            answers: the parameters by which a call of MCP 2026 continues (`inputResponses`, `requestState`). One of
                the 2025 era is made again, after the pages of its error -32042 were opened.

        Raises:
            RequestRefused, BadAnswer, AnswerTooLarge, ServerDied: see `errors`.
            TimeoutError: no answer within `timeout` seconds.
        """
        params: dict[str, Any] = {"name": tool, "arguments": dict(arguments)}
        if self._requests.is_modern:
            params |= answers
        elif any(each["action"] != "accept" for each in answers.get("inputResponses", {}).values()):
            return tool_results.failed(f"the tool {tool!r} was not run: its user did not agree to open a page for it")
        token = next(self._tokens)
        if progress is not None:
            self.watch.followed[token] = progress
            params["_meta"] = {"progressToken": token}
        if elicitor is not None and not self._requests.is_modern:
            timeout = MAX_TIMEOUT_S
            self.watch.elicitors[token] = elicitor
        try:
            labels = {**labels, **self._described}
            return await self._requests.send(
                "tools/call", params, timeout=timeout, labels=labels, strict=True, may_ask=elicitor is not None
            )
        except ServerTimedOut:
            raise TimeoutError from None
        except RequestRefused as error:
            if elicitor is None or not (pages := required_pages(error.pages)):
                raise
            return {"resultType": "input_required", "inputRequests": pages}
        finally:
            self.watch.followed.pop(token, None)
            self.watch.elicitors.pop(token, None)


def required_pages(data: object) -> dict[str, dict[str, Any]]:
    """The elicitations in the data of MCP's error -32042, by key; empty where there are none."""
    try:
        asked = types.ElicitationRequiredErrorData.model_validate(data).elicitations
    except ValidationError:
        return {}
    params = [each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in asked]
    return {f"page{number}": {"method": "elicitation/create", "params": each} for number, each in enumerate(params, 1)}


@asynccontextmanager
async def connect(
    server: MCPServerConfig,
    *,
    negotiation: Negotiation,
    limits: Limits,
    notify: Callable[[ServerEvent], None],
    log: StderrLog | None = None,
    redactor: Redactor | None = None,
    host: HostSettings | None = None,
) -> AsyncIterator[Connection]:
    """Connect to a server and shake hands; raises whatever the transport and the handshake raise, and ServerFailed
    where HTTP refuses the requests.

    Args:
        server: its configuration, without placeholders.
        negotiation: `auto` asks for the newest protocol first; `legacy` is for servers that end at such a request.
        notify: called for what the server tells by itself, in the connection's tasks: it must not block.
    """
    watch = Watch(server.name, redactor, max_values=limits.max_values)
    answer_s = REQUEST_S
    if isinstance(server, MCPServerStreamableHttpConfig):
        answer_s = parse_duration(server.server_parameters.timeout).total_seconds() or answer_s
    modern = False

    async def handle(message: types.ServerNotification | Exception) -> None:
        if not modern and (event := event_of(server.name, message)) is not None:
            notify(event)  # those of MCP 2026 come on a stream, see `subscriptions`

    async with (
        refused_by_http(watch),
        Client(
            open_transport(
                server, host or HostSettings(), watch, log or StderrLog(server.name), max_message=limits.max_message
            ),
            mode=negotiation,
            read_timeout_seconds=answer_s,
            message_handler=handle,
            elicitation_callback=watch.elicit,
            client_info=_CLIENT,
            cache=None,
        ) as client,
    ):
        modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
        requests = Requests(client, watch, limits.max_message, not isinstance(server, MCPServerStdioConfig))
        tools, resources = client.server_capabilities.tools, client.server_capabilities.resources
        stream: ListenStream | None = None
        async with anyio.create_task_group() as tasks:
            if modern:
                stream = ListenStream(
                    requests,
                    notify,
                    tools=tools is not None and tools.list_changed is True,
                    resources=resources is not None and resources.list_changed is True,
                )
                tasks.start_soon(stream.run)
            yield Connection(
                requests,
                resources=None if resources is None else Resources(requests, resources, stream),
                prompts=None if client.server_capabilities.prompts is None else Prompts(requests),
                list_s=max(answer_s, REQUEST_S),
            )
            tasks.cancel_scope.cancel()
