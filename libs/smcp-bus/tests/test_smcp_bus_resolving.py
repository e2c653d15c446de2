"""Names that cannot be resolved, in attempts that are given up meanwhile: asyncio's log stays empty."""

import asyncio
import gc
from typing import Any
from urllib.parse import urlparse

import uvloop

from smcp_bus.nats.socket import Socket


def test_a_cancelled_failed_name_resolution_is_not_logged() -> None:
    logged: list[Any] = []

    async def connect() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
        for delay in (0.0, 0.0002, 0.001, 0.003) * 10:
            socket = Socket({}, lambda: None, lambda: None, lambda line: None)
            attempt = asyncio.create_task(socket.connect(urlparse("nats://no-such-name.invalid:4222"), 0, 5))
            await asyncio.sleep(delay)
            attempt.cancel()
            await asyncio.wait({attempt})
            assert attempt.cancelled() or attempt.exception() is not None
        await asyncio.sleep(0.1)  # nothing is awaited: a late failure would be reported by then
        gc.collect()

    uvloop.run(connect())
    assert logged == []
