"""URLs of servers behind SSE that are no MCP server."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from smcp_computer.config.file import parse_config
from smcp_computer.config.inputs import InputResolver
from smcp_computer.mcp.events import State
from smcp_computer.mcp.supervisor import Limits, Supervisor
from smcp_service.lifecycle import background
from smcp_testing.mcp_servers import configs


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
