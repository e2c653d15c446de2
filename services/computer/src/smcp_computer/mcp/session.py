"""One connection to one MCP server, over the SDK's client, and the calls of tools that go over it and its successors.

It must be opened and closed in the same task (the server's owner, see `supervisor`); `call`, `list_tools` and
`resources` may be used from any task. Every request has a time-out.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from importlib.metadata import version
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio
import mcp_types as types
from mcp.client import Client
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from smcp_bus import exact_json
from smcp_bus.tool_progress import ProgressThrottle
from smcp_computer.mcp.errors import (
    CallBrokenOff,
    RequestRefused,
    ServerDied,
    ServerError,
    ServerFailed,
    ServerNotRunning,
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
from smcp_service.lifecycle import set_within

if TYPE_CHECKING:
    from smcp_computer.elicitation import ToolCall

_log = logging.getLogger("smcp_computer.mcp.session")

_CLIENT: Final = types.Implementation(name="smcp-computer", version=version("smcp-computer"))
MAX_TOOLS: Final = 10_000
"""Of one server: each is listed to every Agent of the office, with its schema. Models are given some hundreds."""
Negotiation = Literal["auto", "legacy"]


@dataclass(eq=False)
class Connection:
    """What `connect` gives. `ended` is set when the server's side is gone; `resources`, `prompts`: None without any."""

    _requests: Requests
    _client: Client
    watch: Watch
    _: KW_ONLY
    resources: Resources | None
    prompts: Prompts | None
    transport: str
    list_s: float

    def __post_init__(self) -> None:
        self.ended = self.watch.ended
        self._tokens = count(1)
        self._running: dict[int, tuple[float, float]] = {}
        """Of the calls that run, by `time.monotonic()`: when each was sent, and when it is given up."""
        # Measured with SDK 2.3: servers of 2026 refuse `ping` (-32601), and each of them answers `server/discover`.
        self._is_modern = self._client.protocol_version in MODERN_PROTOCOL_VERSIONS
        self._ping = PINGS[self._is_modern]
        self._described = {
            "smcp.mcp_server": self._requests.server,
            "mcp.protocol.version": self._client.protocol_version,
            "network.transport": self.transport,
        }

    def busy_until(self, sent_before: float) -> float:
        """When the last of the calls that were sent before is given up, by `time.monotonic()`; 0: none of them runs."""
        return max((until for sent, until in self._running.values() if sent < sent_before), default=0.0)

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
            pass  # `ended` is set
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
        if self._is_modern:
            params |= answers
        elif any(each["action"] != "accept" for each in answers.get("inputResponses", {}).values()):
            return tool_results.failed(f"the tool {tool!r} was not run: its user did not agree to open a page for it")
        token = next(self._tokens)
        if progress is not None:
            self.watch.followed[token] = progress
            params["_meta"] = {"progressToken": token}
        if elicitor is not None and not self._is_modern:
            timeout = MAX_TIMEOUT_S
            self.watch.elicitors[token] = elicitor
        now = time.monotonic()
        self._running[token] = now, now + timeout
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
            del self._running[token]
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


class ServerCalls:
    """The calls of tools at one MCP server: each waits until the server is there, is sent once, and can be broken off.

    The supervisor says when the server can be called (`opened`) and when not (`closed`).

    Args:
        wait_s: how long a call waits.
        why: says why the server is not running.
        refused: is given each refusal of the server.
        given_up: called for each call that ends without an answer, unless its caller cancelled it: that says nothing
            of the server, and one that does one thing at a time goes on with it.

    Attributes:
        connection: to the server; None while there is none.
        wanted: set where a call waits.
    """

    def __init__(
        self,
        server: str,
        wait_s: float,
        why: Callable[[], str],
        *,
        refused: Callable[[RequestRefused], None],
        given_up: Callable[[], None],
    ) -> None:
        self.connection: Connection | None = None
        self.wanted = asyncio.Event()
        self._server = server
        self._wait_s = wait_s
        self._why = why
        self._refused = refused
        self._given_up = given_up
        self._decided = asyncio.Event()
        """Set while there is a connection, and once there will be none: nothing is waited for."""
        self._is_over = False
        self._running: set[asyncio.Timeout] = set()
        """`break_off` brings them forward."""
        self._idle = asyncio.Event()
        """Set while none runs."""
        self._idle.set()

    def __len__(self) -> int:
        """How many run."""
        return len(self._running)

    def opened(self, connection: Connection) -> None:
        self.connection = connection
        self._decided.set()

    def closed(self) -> None:
        self.connection = None
        if not self._is_over:
            self._decided.clear()

    def stop_waiting(self) -> None:
        """End the wait of calls for a connection: none will come, and no new call begins."""
        self._is_over = True
        self._decided.set()

    async def available(self, timeout: float) -> Connection:
        """The connection, waited for at most `wait_s`. Raises ServerNotRunning."""
        return self._alive or await self._awaited(min(timeout, self._wait_s))

    async def run(self, tool: str, arguments: Mapping[str, Any], *, timeout: float, **how: Any) -> dict[str, Any]:
        """As `Connection.call`. Raises also CallBrokenOff, and ServerNotRunning: nothing was run."""
        connection = await self.available(timeout)
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._running.add(limit)
                self._idle.clear()
                return await connection.call(tool, arguments, timeout=timeout, **how)
        except (TimeoutError, asyncio.CancelledError) as error:
            if error.args != ("cancelled",):
                self._given_up()
            if limit.expired() and isinstance(error, TimeoutError):
                why = "was restarted or removed on the Computer before the call ended"
                raise CallBrokenOff(self._server, why) from None
            raise
        except RequestRefused as error:
            self._refused(error)
            raise
        finally:
            self._running.discard(limit)
            if not self._running:
                self._idle.set()

    async def break_off(self, drain_s: float) -> None:
        """Wait until no call runs. After `drain_s` seconds, break off those that still run, and begin no new ones."""
        await set_within(drain_s, self._idle)
        self.stop_waiting()
        for limit in self._running:
            limit.reschedule(asyncio.get_running_loop().time())
        await self._idle.wait()

    @property
    def _alive(self) -> Connection | None:
        """The connection for a new call, unless its server has gone."""
        gone = self._is_over or self.connection is None or self.connection.ended.is_set()
        return None if gone else self.connection

    async def _awaited(self, seconds: float) -> Connection:
        if self.connection is not None and not self._is_over:
            self._decided.clear()  # the connection has ended, and the supervisor has not noticed yet
        if seconds > 0 and not self._decided.is_set():
            self.wanted.set()
            await set_within(seconds, self._decided)
        if (connection := self._alive) is None:
            raise ServerNotRunning(self._server, f"is not running {self._why()}")
        return connection


@asynccontextmanager
async def connect(
    server: MCPServerConfig,
    *,
    negotiation: Negotiation,
    max_message: int,
    max_values: int = exact_json.MAX_VALUES,
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
    watch = Watch(server.name, redactor, max_values=max_values)
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
                server, host or HostSettings(), watch, log or StderrLog(server.name), max_message=max_message
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
        over_pipe = isinstance(server, MCPServerStdioConfig)
        requests = Requests(client, watch, max_message=max_message, over_http=not over_pipe)
        tools, resources = client.server_capabilities.tools, client.server_capabilities.resources
        stream: ListenStream | None = None
        async with anyio.create_task_group() as tasks:
            if modern:
                stream = ListenStream(
                    requests,
                    client,
                    notify,
                    tools=tools is not None and tools.list_changed is True,
                    resources=resources is not None and resources.list_changed is True,
                )
                tasks.start_soon(stream.run)
            yield Connection(
                requests,
                client,
                watch,
                resources=None if resources is None else Resources(requests, resources, stream),
                prompts=None if client.server_capabilities.prompts is None else Prompts(requests),
                transport="pipe" if over_pipe else "tcp",
                list_s=max(answer_s, REQUEST_S),
            )
            tasks.cancel_scope.cancel()
