"""Sessions and time-outs of servers over HTTP, with servers of the MCP SDK; URLs behind SSE that are no MCP server."""

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
from smcp_computer.config.inputs import InputResolver
from smcp_computer.mcp.errors import BadAnswer, RequestRefused, ServerDied
from smcp_computer.mcp.events import State
from smcp_computer.mcp.session import connect
from smcp_computer.mcp.supervisor import Limits, Supervisor
from smcp_proto.schemas.config import MCPServerConfig
from smcp_service.lifecycle import background
from smcp_testing.mcp_servers import configs
from smcp_testing.waiting import eventually

Kind = Literal["streamable", "sse"]
SHORT: dict[Kind, Any] = {"streamable": "PT2S", "sse": 2}
PATIENCE_S = 60.0
NOT_IN_TIME = {"streamable": "did not answer in time", "sse": "did not take a message in time"}
LONG: dict[Kind, Any] = {"streamable": "PT5M", "sse": 300}


def config(kind: Kind, url: str, **parameters: Any) -> MCPServerConfig:
    return parse_config(json.dumps({"web": configs.http(kind, url, **parameters)})).servers["web"]


@asynccontextmanager
async def supervised(server: MCPServerConfig) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(server, InputResolver({}, {}), limits=Limits(start_s=300), on_change=lambda: None)
    async with background() as tasks:
        task = tasks.start(supervisor.run(), name="owner")
        try:
            yield supervisor
        finally:
            supervisor.stop()
            await asyncio.wait_for(task, PATIENCE_S)


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
        async with connect(server, negotiation="legacy", max_message=2**20, notify=lambda event: None) as connection:
            assert await connection.list_tools()
        requests = [line.split() for line in log.read_text().splitlines()]
        (session,) = {session for what, session in requests if what == "tools/list"}
        assert session != "-"
        assert [what for what in requests if what[0] == "DELETE"] == ([["DELETE", session]] if terminate else [])
        assert await status_of(toolbox.url, session) == (404 if terminate else 200)


@pytest.mark.rule(
    "data-structures.MCPServerStreamableHttpParameters.timeout.meaning",
    "data-structures.MCPSSEParameters.timeout.meaning",
)
@pytest.mark.parametrize("kind", ["streamable", "sse"])
async def test_an_unanswered_http_operation_ends_after_timeout(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smcp_computer.mcp.session.REQUEST_S", 600.0)  # what would end it without the setting
    async with configs.http_toolbox(kind, hold=["tools/list"]) as toolbox:
        server = config(kind, toolbox.url, timeout=SHORT[kind], sse_read_timeout=LONG[kind])
        async with supervised(server) as box:
            await asyncio.wait_for(box.settled.wait(), PATIENCE_S)
            assert (box.state, box.reason) == (State.BACKOFF, NOT_IN_TIME[kind])


@pytest.mark.rule(
    "data-structures.MCPServerStreamableHttpParameters.timeout.meaning",
    "data-structures.MCPSSEParameters.timeout.meaning",
)
@pytest.mark.parametrize("kind", ["streamable", "sse"])
async def test_silence_beyond_sse_read_timeout_ends_the_connection(tmp_path: Path, kind: Kind) -> None:
    log = tmp_path / "log"
    async with configs.http_toolbox(kind, log=log) as toolbox:
        server = config(kind, toolbox.url, timeout=LONG[kind], sse_read_timeout=SHORT[kind])
        async with supervised(server) as box:
            await eventually(lambda: box.ready, timeout=PATIENCE_S)
            with pytest.raises(ServerDied):
                await asyncio.wait_for(box.calls.run("sleep", {"seconds": 600}, timeout=600), PATIENCE_S)
            assert log.read_text().startswith("sleep")


@pytest.mark.rule(
    "data-structures.MCPServerStreamableHttpParameters.timeout.meaning",
    "data-structures.MCPSSEParameters.timeout.meaning",
)
@pytest.mark.parametrize("kind", ["streamable", "sse"])
async def test_a_tool_may_run_longer_than_timeout(kind: Kind) -> None:
    async with configs.http_toolbox(kind) as toolbox:
        server = config(kind, toolbox.url, timeout=SHORT[kind], sse_read_timeout=LONG[kind])
        async with supervised(server) as box:
            await eventually(lambda: box.ready, timeout=PATIENCE_S)
            result = await box.calls.run("sleep", {"seconds": 3.0}, timeout=60)
            assert result["content"][0]["text"] == "slept 3.0"


@pytest.mark.rule("data-structures.MCPSSEParameters.timeout.meaning")
async def test_an_sse_server_that_refuses_a_message_is_connected_to_again() -> None:
    async with configs.http_toolbox("sse", hold=["tools/call"]) as toolbox:
        async with supervised(config("sse", toolbox.url, timeout=SHORT["sse"])) as box:
            await eventually(lambda: box.ready, timeout=PATIENCE_S)
            with pytest.raises(ServerDied):
                await asyncio.wait_for(box.calls.run("echo", {"text": "x"}, timeout=600), PATIENCE_S)
            await eventually(lambda: box.ready and box.starts == 2, timeout=PATIENCE_S)


async def test_a_call_repeats_parameters_in_headers_where_the_listed_tool_wants_that() -> None:
    async with configs.http_eliciting("2026") as eliciting:
        server = config("streamable", eliciting.url)
        async with connect(server, negotiation="auto", max_message=2**20, notify=lambda event: None) as connection:

            async def call() -> None:
                await connection.call("book", {"note": "by the window"}, timeout=PATIENCE_S)

            with pytest.raises(RequestRefused) as refused:
                await call()  # nothing is known of the tool
            assert refused.value.code == types.HEADER_MISMATCH
            await connection.list_tools()
            with pytest.raises(BadAnswer, match="asks for input"):  # the server took the call
                await call()


def answering(kind: str, body: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body.encode(), content_type=kind)

    return answer


@pytest.mark.parametrize(
    ("kind", "body", "start_s", "why"),
    [
        ("text/html", "event: endpoint\ndata: /messages\n\n", 60, "text/event-stream"),
        ("text/event-stream", "data: {}\n\n", 1, "did not get ready in time"),
        ("text/event-stream", "event: endpoint\ndata: http://127.0.0.1:1/messages\n\n", 1, "did not get ready in time"),
    ],
)
async def test_a_url_without_an_mcp_server_behind_sse_fails_with_a_reason(
    kind: str, body: str, start_s: float, why: str
) -> None:
    app = web.Application()
    app.router.add_get("/sse", answering(kind, body))
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0]
        config = parse_config(json.dumps({"web": configs.http("sse", f"http://{host}:{port}/sse")})).servers["web"]
        supervisor = Supervisor(config, InputResolver({}, {}), limits=Limits(start_s=start_s), on_change=lambda: None)
        async with background() as tasks:
            task = tasks.start(supervisor.run(), name="owner")
            await asyncio.wait_for(supervisor.settled.wait(), 30)
            assert supervisor.state is State.BACKOFF
            assert why in supervisor.reason
            supervisor.stop()
            await asyncio.wait_for(task, 30)
    finally:
        await runner.cleanup()
