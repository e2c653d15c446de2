"""A connection that was given up brings nothing any more."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

import pytest
import uvloop

from smcp_bus.nats.socket import drop

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
