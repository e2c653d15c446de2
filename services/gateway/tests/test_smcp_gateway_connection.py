"""What is written to a WebSocket: the gateway's own frames, read here byte by byte, by a client that reads late."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import pytest
import uvloop

from smcp_gateway.app import Gateway
from smcp_gateway.sockets.engine import SendQueue
from smcp_gateway.sockets.packet import Frame
from smcp_gateway.sockets.session import Session
from smcp_gateway.sockets.websocket import AT_ONCE, VERY_LARGE, moved_bytes, text_header
from smcp_testing.gateway_world import gateway_world
from smcp_testing.raw_websocket import CLOSE, KIB, TEXT, RawWebSocket
from smcp_testing.waiting import eventually

BUFFER: Final = 32 * KIB
"""Of each side's kernel: little fits between a client that does not read and the gateway."""
NOOP = b"6"


@dataclass(frozen=True)
class Line:
    """Both ends of one WebSocket."""

    client: RawWebSocket
    gateway: Gateway
    session: Session
    send_queue: SendQueue
    tcp: asyncio.Transport

    def send(self, wire: bytes) -> None:
        assert self.gateway.transport.send(self.session, Frame(wire))

    @property
    def held(self) -> int:
        """Bytes that wait in the queue."""
        return self.send_queue.held

    @property
    def unwritten(self) -> int:
        """Bytes that the socket has not taken yet."""
        return self.tcp.get_write_buffer_size()

    async def fill(self) -> list[bytes]:
        """Send until the socket takes no more; what was sent. It is written at once, all of it."""
        sent: list[bytes] = []
        stuck = False
        while not stuck:
            while not self.unwritten:
                sent.append(text(len(sent), 4 * KIB))
                self.send(sent[-1])
            assert self.held == 0
            try:
                await eventually(lambda: not self.unwritten, timeout=0.2)
            except AssertionError:
                stuck = True
        return sent


@asynccontextmanager
async def line(nats_url: str) -> AsyncIterator[Line]:
    """A client on a WebSocket that is idle: what is sent next is written at once."""
    async with gateway_world(nats_url, registry=False, lease_s=20) as world:
        gateway = world.gateways[0]
        with socket.socket() as tcp:
            tcp.setblocking(False)
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
            client = RawWebSocket(tcp)
            await client.connect(gateway.front.listener.host, gateway.front.listener.port)
            assert (await client.message()).startswith(b"0{")
            await client.send(TEXT, b"40/smcp,")
            assert (await client.message()).startswith(b"40/smcp,{")
            await eventually(lambda: len(gateway.sessions) == 1)
            session = next(iter(gateway.sessions))
            send_queue = session.send_queue
            written = send_queue.transport
            assert written is not None
            written.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
            await eventually(lambda: send_queue._reader_waits)
            yield Line(client, gateway, session, send_queue, written)


def text(number: int, size: int) -> bytes:
    """A message of `size` bytes that is like no other."""
    part = b"4%d;" % number
    return (part * (size // len(part) + 1))[:size]


@pytest.mark.parametrize(
    ("length", "header"),
    [
        (0, b"\x81\x00"),
        (125, b"\x81\x7d"),
        (126, b"\x81\x7e\x00\x7e"),
        (65535, b"\x81\x7e\xff\xff"),
        (65536, b"\x81\x7f\x00\x00\x00\x00\x00\x01\x00\x00"),
        (32 * KIB * KIB, b"\x81\x7f\x00\x00\x00\x00\x02\x00\x00\x00"),
    ],
)
def test_a_text_message_has_the_shortest_header_that_its_length_allows(length: int, header: bytes) -> None:
    assert text_header(length) == header


@pytest.mark.parametrize("length", [1, 125, 126, 127, 65535, 65536, VERY_LARGE - 1])
async def test_a_message_of_any_length_is_written_at_once_and_arrives_whole(nats_url: str, length: int) -> None:
    async with line(nats_url) as ends:
        ends.send(text(7, length))
        assert ends.held == 0
        ends.send(b"4next")
        assert await ends.client.message() == text(7, length)
        assert await ends.client.message() == b"4next"


async def test_immediate_and_queued_messages_arrive_whole_and_in_order(nats_url: str) -> None:
    sizes = (125, 126, 65535, 65536, 10, 70 * KIB, 3 * KIB, 65536, 65535, 126, 125, 1, 200 * KIB)
    async with line(nats_url) as ends:
        sent = await ends.fill()
        for size in sizes * 3:
            sent.append(text(len(sent), size))
            ends.send(sent[-1])
        assert ends.held > 0, "some of it waits"
        half = len(sent) // 2
        for expected in sent[:half]:
            assert await ends.client.message() == expected
        for size in sizes:  # while the writer is at work
            sent.append(text(len(sent), size))
            ends.send(sent[-1])
        for expected in sent[half:]:
            assert await ends.client.message() == expected
        await eventually(lambda: ends.send_queue._reader_waits)
        ends.send(b"4again")
        assert ends.held == 0, "at once again"
        assert await ends.client.message() == b"4again"


async def test_little_is_written_to_a_socket_that_does_not_read(nats_url: str) -> None:
    async with line(nats_url) as ends:
        sent = await ends.fill()
        while not ends.held:
            sent.append(text(len(sent), 4 * KIB))
            ends.send(sent[-1])
        assert AT_ONCE < ends.unwritten <= AT_ONCE + 2 * 4 * KIB
        assert ends.held == 4 * KIB
        for expected in sent:
            assert await ends.client.message() == expected


async def test_a_large_message_follows_a_noop_packet_and_keeps_its_order(nats_url: str) -> None:
    async with line(nats_url) as ends:
        sent = [
            b"4before",
            text(1, VERY_LARGE),
            text(2, VERY_LARGE - 1),
            b"4between",
            text(4, VERY_LARGE + 1),
            b"4after",
        ]
        for wire in sent:
            ends.send(wire)
        got = [await ends.client.message() for _ in range(len(sent) + 2)]
        assert got == [sent[0], NOOP, *sent[1:4], NOOP, *sent[4:]]


async def test_nothing_is_written_after_the_close_frame(nats_url: str) -> None:
    async with line(nats_url) as ends:
        sent = await ends.fill()
        write_at_once = ends.send_queue.at_once
        assert write_at_once is not None
        await ends.client.send(CLOSE, struct.pack("!H", 1000))
        await eventually(lambda: ends.session.closed)
        assert 0 < ends.unwritten < AT_ONCE, "there would be room"
        assert not write_at_once(Frame(b"4late"))
        assert not ends.gateway.transport.send(ends.session, Frame(b"4late"))
        for expected in sent:
            assert await ends.client.frame() == (TEXT, expected)
        assert await ends.client.frame() == (CLOSE, struct.pack("!H", 1000))
        assert await ends.client.frame() is None


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
