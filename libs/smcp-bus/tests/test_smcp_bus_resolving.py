"""Names that cannot be resolved, in attempts that are given up meanwhile: asyncio's log stays empty."""

import asyncio
import gc
from typing import Any
from urllib.parse import urlparse

import uvloop

from smcp_bus.nats.socket import Socket

NAME = "no-such-name.invalid"
THREADS = 4
"""Of libuv, for names."""


def test_a_cancelled_failed_name_resolution_is_not_logged() -> None:
    logged: list[Any] = []

    async def connect() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: logged.append(context))
        for delay in (0.0, 0.0002, 0.001, 0.003) * 10:
            socket = Socket({}, lambda: None, lambda: None, lambda line: None)
            attempt = asyncio.create_task(socket.connect(urlparse(f"nats://{NAME}:4222"), 0, 5))
            await asyncio.sleep(delay)
            attempt.cancel()
            await asyncio.wait({attempt})
            assert attempt.cancelled() or attempt.exception() is not None
        # the threads that resolve take one name after another: those of the attempts have ended when these have
        async with asyncio.timeout(60):
            later = (loop.getaddrinfo(NAME, 4222) for _ in range(THREADS))
            ended = await asyncio.gather(*later, return_exceptions=True)
        assert all(isinstance(each, OSError) for each in ended)
        gc.collect()

    uvloop.run(connect())
    assert logged == []
