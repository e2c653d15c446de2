"""The floor: a bare Socket.IO server that acknowledges every event with what it was given.

The same libraries as the gateway's (python-socketio on aiohttp, uvloop, orjson) and nothing else.
"""

import asyncio
import sys
from typing import Any

import orjson
import socketio
import uvloop
from aiohttp import web


class Json:
    @staticmethod
    def dumps(value: Any, **_: Any) -> str:
        return orjson.dumps(value).decode()

    loads = staticmethod(orjson.loads)


async def main() -> None:
    server = socketio.AsyncServer(async_mode="aiohttp", json=Json, max_http_buffer_size=1 << 26)

    async def answer(event: str, sid: str, data: Any) -> Any:
        return [True, None] if event.startswith("server:") else data

    server.on("*", answer, namespace="/smcp")
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
    uvloop.run(main())
