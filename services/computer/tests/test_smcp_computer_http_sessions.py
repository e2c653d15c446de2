"""Sessions and time-outs of servers over HTTP, with servers of the MCP SDK; SSE URLs that are not an MCP server."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import aiohttp
import mcp_types as types
import pytest
from aiohttp import web

from smcp_computer.config.file import parse_config
from smcp_computer.mcp.errors import BadAnswer, RequestRefused, ServerDied
from smcp_computer.mcp.events import State
from smcp_computer.mcp.supervisor import Supervisor
from smcp_computer.mcp.transports import Limits, connect
from smcp_proto.schemas.config import MCPServerConfig
from smcp_testing.mcp_servers import configs
from smcp_testing.supervised import running
from smcp_testing.waiting import eventually

Kind = Literal["streamable", "sse"]
SHORT: dict[Kind, Any] = {"streamable": "PT2S", "sse": 2}
PATIENCE_S = 60.0
SILENT = "did not answer as an MCP server in time"
NOT_IN_TIME = {"streamable": "did not answer as an MCP server in time", "sse": "did not take a message in time"}
LONG: dict[Kind, Any] = {"streamable": "PT5M", "sse": 300}


def config(kind: Kind, url: str, **parameters: Any) -> MCPServerConfig:
    return parse_config(json.dumps({"web": configs.http(kind, url, **parameters)})).servers["web"]


@asynccontextmanager
async def supervised(kind: Kind, url: str, *, ready: bool = True, **parameters: Any) -> AsyncIterator[Supervisor]:
    """A server that may take longer than a test does to get ready."""
    wanted = ["web"] if ready else []
    async with running(limits=Limits(start_s=300), ready=wanted, web=configs.http(kind, url, **parameters)) as servers:
        yield servers["web"]


async def status_of(url: str, session: str) -> int:
    """What the server says to a question in that session (HTTP)."""
    headers = {"mcp-session-id": session, "accept": "application/json, text/event-stream"}
    ping = {"jsonrpc": "2.0", "id": 99, "method": "ping"}
    limit = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with aiohttp.ClientSession(timeout=limit) as http, http.post(url, json=ping, headers=headers) as answer:
        return answer.status


@pytest.mark.rule("data-structures.MCPServerStreamableHttpParameters.terminate_on_close.meaning")
@pytest.mark.parametrize("terminate", [True, False])
async def test_closing_ends_the_servers_session_only_with_terminate_on_close(tmp_path: Path, terminate: bool) -> None:
    log = tmp_path / "requests"
    async with configs.http_toolbox("streamable", requests=log) as toolbox:
        server = config("streamable", toolbox.url, terminate_on_close=terminate)
        # of the protocol before 2026, as the newer one has no sessions
        async with connect(server, negotiation="legacy", limits=Limits(), notify=lambda event: None) as connection:
            assert (await connection.list_tools()).items
        requests = [line.split() for line in log.read_text().splitlines()]
        (session,) = {session for what, session in requests if what == "tools/list"}
        assert session != "-"
        assert [what for what in requests if what[0] == "DELETE"] == ([["DELETE", session]] if terminate else [])
        assert await status_of(toolbox.url, session) == (404 if terminate else 200)


@pytest.mark.rule(
    "data-structures.{MCPServerStreamableHttpParameters.timeout.meaning,MCPSSEParameters.timeout.meaning}",
)
@pytest.mark.parametrize("kind", ["streamable", "sse"])
async def test_an_unanswered_http_operation_ends_after_timeout(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smcp_computer.mcp.transports.REQUEST_S", 600.0)  # what would end it without the setting
    async with configs.http_toolbox(kind, hold=["tools/list"]) as toolbox:
        parameters = {"timeout": SHORT[kind], "sse_read_timeout": LONG[kind]}
        async with supervised(kind, toolbox.url, ready=False, **parameters) as box:
            assert (box.state, box.reason) == (State.BACKOFF, NOT_IN_TIME[kind])


@pytest.mark.rule(
    "data-structures.{MCPServerStreamableHttpParameters.timeout.meaning,MCPSSEParameters.timeout.meaning}",
)
@pytest.mark.parametrize("kind", ["streamable", "sse"])
async def test_silence_beyond_sse_read_timeout_ends_the_connection(tmp_path: Path, kind: Kind) -> None:
    log = tmp_path / "log"
    async with configs.http_toolbox(kind, log=log) as toolbox:
        async with supervised(kind, toolbox.url, timeout=LONG[kind], sse_read_timeout=SHORT[kind]) as box:
            with pytest.raises(ServerDied):
                await asyncio.wait_for(box.call("sleep", {"seconds": 600}, timeout=600), PATIENCE_S)
            assert log.read_text().startswith("sleep")


@pytest.mark.rule(
    "data-structures.{MCPServerStreamableHttpParameters.timeout.meaning,MCPSSEParameters.timeout.meaning}",
)
@pytest.mark.parametrize("kind", ["streamable", "sse"])
async def test_a_tool_may_run_longer_than_timeout(kind: Kind) -> None:
    async with configs.http_toolbox(kind) as toolbox:
        async with supervised(kind, toolbox.url, timeout=SHORT[kind], sse_read_timeout=LONG[kind]) as box:
            result = await box.call("sleep", {"seconds": 3.0}, timeout=60)
            assert result["content"][0]["text"] == "slept 3.0"


@pytest.mark.rule("data-structures.MCPSSEParameters.timeout.meaning")
async def test_an_sse_server_that_refuses_a_message_is_connected_to_again() -> None:
    async with configs.http_toolbox("sse", hold=["tools/call"]) as toolbox:
        async with supervised("sse", toolbox.url, timeout=SHORT["sse"]) as box:
            with pytest.raises(ServerDied):
                await asyncio.wait_for(box.call("echo", {"text": "x"}, timeout=600), PATIENCE_S)
            await eventually(lambda: box.ready and box.starts == 2, timeout=PATIENCE_S)


async def test_a_call_repeats_parameters_in_headers_where_the_listed_tool_wants_that() -> None:
    async with configs.http_eliciting("2026") as eliciting:
        server = config("streamable", eliciting.url)
        async with connect(server, negotiation="auto", limits=Limits(), notify=lambda event: None) as connection:

            async def call() -> None:
                await connection.call("book", {"note": "by the window"}, timeout=PATIENCE_S)

            with pytest.raises(RequestRefused) as refused:
                await call()  # nothing is known of the tool
            assert refused.value.code == types.HEADER_MISMATCH
            await connection.list_tools()
            with pytest.raises(BadAnswer, match="asks for input"):  # the server took the call
                await call()


@asynccontextmanager
async def served(answer: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[str]:
    """A URL whose requests `answer` answers."""
    app = web.Application()
    app.router.add_route("*", "/mcp", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("kind", "body", "start_s", "why"),
    [
        ("text/html", "event: endpoint\ndata: /messages\n\n", 60, "text/event-stream"),
        ("text/event-stream", "data: {}\n\n", 1, SILENT),
        ("text/event-stream", "event: endpoint\ndata: http://127.0.0.1:1/messages\n\n", 1, SILENT),
    ],
)
async def test_a_url_without_an_mcp_server_behind_sse_fails_with_a_reason(
    kind: str, body: str, start_s: float, why: str
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body.encode(), content_type=kind)

    async with (
        served(answer) as url,
        running(limits=Limits(start_s=start_s), ready=(), web=configs.http("sse", url)) as servers,
    ):
        assert servers["web"].state is State.BACKOFF
        assert why in servers["web"].reason


RESULTS = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "s", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]},
}


@asynccontextmanager
async def partly_silent(silent: Callable[[str], bool]) -> AsyncIterator[tuple[str, list[str]]]:
    """A server that never answers what `silent` says of a method; `DELETE` counts as one. Gives what it was asked."""
    asked: list[str] = []
    closing = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        body = await request.json() if request.method == "POST" else {}
        method = body.get("method", request.method)
        asked.append(method)
        if silent(method):
            await closing.wait()
        if request.method == "GET":
            return web.Response(status=405)
        if "id" not in body:
            return web.Response(status=202)
        if method not in RESULTS:
            error = {"code": -32601, "message": "no such method"}
            return web.json_response({"jsonrpc": "2.0", "id": body["id"], "error": error})
        reply = {"jsonrpc": "2.0", "id": body["id"], "result": RESULTS[method]}
        return web.json_response(reply, headers={"mcp-session-id": "1"})

    async with served(answer) as url:
        try:
            yield url, asked
        finally:
            closing.set()


@pytest.mark.rule("data-structures.MCPServerStreamableHttpParameters.timeout.meaning")
async def test_an_unanswered_notification_delays_later_messages_by_timeout_at_most() -> None:
    async with (
        partly_silent(lambda asked: asked in {"tools/call", "notifications/cancelled"}) as (url, asked),
        supervised("streamable", url, timeout="PT0.3S") as box,
    ):
        calling = asyncio.create_task(box.call("t", {}, timeout=60.0))
        await eventually(lambda: "tools/call" in asked)
        calling.cancel()
        await asyncio.wait([calling])
        await eventually(lambda: "notifications/cancelled" in asked)
        # what would go after it was stuck: the server is connected to again, sooner than the next look at its tools
        await eventually(lambda: box.starts == 2 and box.ready)


@pytest.mark.rule("data-structures.MCPServerStreamableHttpParameters.timeout.meaning")
async def test_an_unanswered_session_end_takes_timeout_at_most() -> None:
    async with partly_silent(lambda asked: asked == "DELETE") as (url, asked):
        async with supervised("streamable", url, timeout="PT0.3S"):
            pass
        assert "DELETE" in asked


async def test_a_server_that_redirects_within_its_origin_is_used() -> None:
    async def answer(request: web.Request) -> web.Response:
        if not request.query:
            return web.Response(status=307, headers={"location": "/mcp?moved=1"})
        body = await request.json() if request.method == "POST" else {}
        if (result := RESULTS.get(body.get("method", ""))) is None:
            return web.Response(status=202)
        return web.json_response({"jsonrpc": "2.0", "id": body["id"], "result": result})

    async with served(answer) as url:
        server = config("streamable", url)
        async with connect(server, negotiation="legacy", limits=Limits(), notify=lambda event: None) as connection:
            assert [tool.name for tool in (await connection.list_tools()).items] == ["t"]
