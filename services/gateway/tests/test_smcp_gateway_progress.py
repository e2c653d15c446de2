"""Telling a busy line from a dead one."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from smcp_gateway.sockets.websocket import moved_bytes
from smcp_testing.waiting import eventually


async def test_progress_counts_bytes_in_both_directions() -> None:
    accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
    async with await asyncio.start_server(lambda _, writer: accepted.set_result(writer), "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        served = await accepted
        transport = served.transport
        try:
            begin = moved_bytes(transport)
            writer.write(b"x" * 1000)
            await eventually(lambda: moved_bytes(transport) == begin + 1000)
            served.write(b"y" * 5000)
            assert len(await reader.readexactly(5000)) == 5000
            await eventually(lambda: moved_bytes(transport) == begin + 6000)
        finally:
            for each in (writer, served):
                each.close()
                await each.wait_closed()


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def test_an_ended_connection_has_no_progress(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def look() -> int:
        async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            moved_bytes(writer.transport)  # uvloop's transport keeps what it gave once, as it does for aiohttp
            writer.close()
            await writer.wait_closed()
            return moved_bytes(writer.transport)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(look()) == 0


@pytest.mark.parametrize("told", [OSError("gone"), b"", b"x" * 104])
def test_a_system_without_tcp_info_has_no_progress(told: bytes | OSError) -> None:
    class Connection:
        def getsockopt(self, *_: int) -> bytes:
            if isinstance(told, OSError):
                raise told
            return told

    class Transport(asyncio.Transport):
        def get_extra_info(self, name: str, default: object = None) -> object:
            return Connection()

    assert moved_bytes(Transport()) == 0
    assert moved_bytes(asyncio.Transport()) == 0
