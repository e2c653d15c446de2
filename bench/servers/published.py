"""The published server (`a2c-smcp`), as its documentation starts it, on aiohttp and uvloop like the others.

Runs in an environment of its own (`bench.published_env`).
"""

import asyncio
import logging
import sys

import socketio
import uvloop
from a2c_smcp.server import SMCPNamespace
from a2c_smcp.server.auth import AuthenticationProvider
from aiohttp import web


class Anyone(AuthenticationProvider):
    async def authenticate(self, *_: object, **__: object) -> bool:
        return True


async def main() -> None:
    server = socketio.AsyncServer(async_mode="aiohttp", max_http_buffer_size=1 << 26)
    server.register_namespace(SMCPNamespace(Anyone()))
    app = web.Application()
    server.attach(app)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    uvloop.run(main())
