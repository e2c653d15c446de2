"""A connection that was given up brings nothing any more, and a name that is given up meanwhile logs nothing."""

import asyncio
import gc
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlparse

import pytest
import uvloop

from smcp_bus.nats.socket import Socket, drop

KIB = 1024
MIB = 1024 * KIB


async def taken_late(give_up: Callable[[asyncio.WriteTransport], None]) -> int:
    """How many of 8 MiB arrive at a server that begins to read after the connection was given up."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * KIB)
        _, writer = await asyncio.open_connection(*server.getsockname())
        taken, _ = await loop.sock_accept(server)
        with taken:
            writer.write(bytes(8 * MIB))
            give_up(writer.transport)
            await writer.wait_closed()
            count = 0
            with suppress(ConnectionResetError):
                async with asyncio.timeout(30):
                    while came := await loop.sock_recv(taken, MIB):
                        count += len(came)
            return count


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_data_not_read_by_the_server_when_a_connection_is_dropped_never_arrives(run: Callable[..., int]) -> None:
    dropped, aborted = run(taken_late(drop)), run(taken_late(lambda transport: transport.abort()))
    assert dropped < aborted, "beyond the receiver's own buffer the kernel brings what it was given"


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
