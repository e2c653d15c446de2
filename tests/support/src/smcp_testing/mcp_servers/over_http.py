"""An MCP server that is a program with a pipe, of the 2025 era, for a client that speaks Streamable HTTP alone.

    python -m smcp_testing.mcp_servers.over_http [--transport streamable] [--port N] -- COMMAND [ARGUMENT ...]

It serves one client after the other: each begins with `initialize`, at the same program.
"""

import argparse
import asyncio
from typing import Any

import anyio
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types import JSONRPCRequest

from smcp_testing.mcp_servers.http_serving import serve_on_loopback

LOCAL = TransportSecuritySettings(
    allowed_hosts=["127.0.0.1:*", "localhost:*"], allowed_origins=["http://127.0.0.1:*", "http://localhost:*"]
)


async def serve(program: StdioServerParameters, port: int) -> None:
    http = StreamableHTTPServerTransport(mcp_session_id=None, security_settings=LOCAL)
    asked: list[Any] = []

    async def pass_requests(source: Any, target: Any) -> None:
        async for each in source:
            if isinstance(each.message, JSONRPCRequest):
                asked.append(each.message.id)
            await target.send(each)

    async def pass_answers(source: Any, target: Any) -> None:
        async for each in source:
            # what is no answer goes out beside the newest one, since a stream of its own may not be open yet
            await target.send(SessionMessage(each.message, ServerMessageMetadata(related_request_id=asked[-1])))

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await http.handle_request(scope, receive, send)

    async with (
        stdio_client(program) as (said, says),
        http.connect() as (heard, told),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(pass_requests, heard, says)
        tasks.start_soon(pass_answers, said, told)
        await serve_on_loopback(application, port)
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--transport", choices=["streamable"])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("program", nargs="+")
    chosen = parser.parse_args()
    command, *arguments = chosen.program
    asyncio.run(serve(StdioServerParameters(command=command, args=arguments), chosen.port))
