"""The time-outs of a server behind Streamable HTTP bound each kind of request as configured."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from smcp_computer.config.file import parse_config
from smcp_computer.config.inputs import InputResolver
from smcp_computer.mcp.events import State
from smcp_computer.mcp.supervisor import Limits, Supervisor
from smcp_service.lifecycle import background
from smcp_testing.mcp_servers import configs
from smcp_testing.waiting import eventually

RESULTS = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "s", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]},
}


@asynccontextmanager
async def server(silent: Callable[[str], bool]) -> AsyncIterator[tuple[str, list[str]]]:
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

    app = web.Application()
    app.router.add_route("*", "/mcp", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/mcp", asked
    finally:
        closing.set()
        await runner.cleanup()


@asynccontextmanager
async def supervised(url: str, **parameters: str) -> AsyncIterator[Supervisor]:
    config = parse_config(json.dumps({"web": configs.http("streamable", url, **parameters)})).servers["web"]
    supervisor = Supervisor(config, InputResolver({}, {}), limits=Limits(start_s=300), on_change=lambda: None)
    async with background() as tasks:
        task = tasks.start(supervisor.run(), name="owner")
        try:
            yield supervisor
        finally:
            supervisor.stop()
            await asyncio.wait_for(task, 30)


@pytest.mark.parametrize("method", ["initialize", "tools/list"])
async def test_a_request_that_is_not_answered_ends_after_timeout(method: str) -> None:
    async with server(lambda asked: asked == method) as (url, asked), supervised(url, timeout="PT0.3S") as box:
        await asyncio.wait_for(box.settled.wait(), 25)  # sooner than what holds without the setting
        assert method in asked
        assert (box.state, box.reason) == (State.BACKOFF, "did not answer in time")


@pytest.mark.rule("data-structures.MCPServerStreamableHttpParameters.timeout.meaning")
async def test_an_unanswered_notification_delays_later_messages_by_timeout_at_most() -> None:
    async with (
        server(lambda asked: asked in {"tools/call", "notifications/cancelled"}) as (url, asked),
        supervised(url, timeout="PT0.3S") as box,
    ):
        await eventually(lambda: box.ready)
        calling = asyncio.create_task(box.calls.run("t", {}, timeout=60.0))
        await eventually(lambda: "tools/call" in asked)
        calling.cancel()
        await asyncio.wait([calling])
        await eventually(lambda: "notifications/cancelled" in asked)
        # what would go after it was stuck: the server is connected to again, sooner than the next look at its tools
        await eventually(lambda: box.starts == 2 and box.ready)


@pytest.mark.rule("data-structures.MCPServerStreamableHttpParameters.timeout.meaning")
async def test_an_unanswered_session_end_takes_timeout_at_most() -> None:
    async with server(lambda asked: asked == "DELETE") as (url, asked):
        async with supervised(url, timeout="PT0.3S") as box:
            await eventually(lambda: box.ready)
        assert "DELETE" in asked
