"""What is no MCP server behind SSE is told from one at once, and by name."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from smcp_computer.mcp.errors import Lost
from smcp_computer.mcp.server_log import StderrLog, first_of
from smcp_computer.mcp.sse import NO_ENDPOINT, NO_STREAM, OTHER_ORIGIN, sse_transport
from smcp_proto.schemas.config import MCPSSEParameters


def answering(kind: str, body: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body.encode(), content_type=kind)

    return answer


@pytest.mark.parametrize(
    ("kind", "body", "why"),
    [
        ("text/html", "event: endpoint\ndata: /messages\n\n", NO_STREAM),
        ("text/event-stream", "data: {}\n\n", NO_ENDPOINT),
        ("text/event-stream", "event: endpoint\ndata: http://127.0.0.1:1/messages\n\n", OTHER_ORIGIN),
    ],
)
async def test_what_opens_no_stream_of_messages_is_told_at_once_and_by_its_cause(
    kind: str, body: str, why: str
) -> None:
    app = web.Application()
    app.router.add_get("/sse", answering(kind, body))
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0]
        parameters = MCPSSEParameters(url=f"http://{host}:{port}/sse", timeout=60, sse_read_timeout=300)
        async with asyncio.timeout(30):
            with pytest.raises((Lost, ExceptionGroup)) as failed:
                async with sse_transport(parameters, {}, StderrLog("web"), max_message=1000):
                    pytest.fail("it was taken for an MCP server")
        assert str(first_of(failed.value)) == why
    finally:
        await runner.cleanup()
