"""Serving an ASGI app on a loopback port, for the MCP servers that tests start over HTTP."""

import socket
from typing import Any

import uvicorn


async def serve_on_loopback(app: Any, port: int = 0, path: str = "mcp") -> None:
    """Serve until the process is told to end; port 0 takes a free one. Prints the URL.

    asyncio switches Nagle's algorithm off for the sockets that it opens itself, not for this one: a body that is
    written after its headers waited 40 ms for the client's acknowledgement of them.
    """
    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        print(f"http://127.0.0.1:{listener.getsockname()[1]}/{path}", flush=True)  # noqa: T201 -- the parent reads it
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
        await uvicorn.Server(config).serve(sockets=[listener])
