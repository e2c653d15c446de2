"""FastMCP's proxy before an MCP server, as its documentation starts it. Runs in an environment of its own.

python fastmcp_proxy.py URL-OF-THE-SERVER
"""

import logging
import socket
import sys

import uvloop
from fastmcp.server import create_proxy


async def main(server_url: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as asyncio does for sockets that it opens itself
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    proxy = create_proxy(server_url)
    await proxy.run_http_async(show_banner=False, log_level="error", sockets=[listener])


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    uvloop.run(main(sys.argv[1]))
