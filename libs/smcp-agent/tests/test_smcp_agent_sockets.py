"""Sockets are closed with their connections; nothing is left to aiohttp's finalizers."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import socketio
from aiohttp import connector, web
from socketio.packet import Packet

from smcp_agent import CannotConnect
from smcp_agent.connecting.connection import ConnectionBroken, connect
from smcp_agent.connecting.options import ConnectionOptions
from smcp_agent.connecting.transport import HttpSession
from smcp_testing.fake_gateway import fake_gateway
from smcp_testing.tcp_proxy import open_line


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[connector.Connection]:
    """Every connection that aiohttp gives out from now on."""
    connections: list[connector.Connection] = []

    class Noted(connector.Connection):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            connections.append(self)

    monkeypatch.setattr(connector, "Connection", Noted)
    return connections


@asynccontextmanager
async def served(path: str, answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """The URL of a server of that path alone."""
    app = web.Application()
    app.router.add_get(path, answer)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def unclosed(connections: list[connector.Connection]) -> int:
    assert connections
    return sum(each.protocol is not None for each in connections)


def test_names_that_the_documentation_of_python_socketio_leaves_out_are_there() -> None:
    client: Any = socketio.AsyncClient
    assert asyncio.iscoroutinefunction(client().eio.wait)
    assert hasattr(Packet, "json")
    assert isinstance(Packet.uses_binary_events, bool)


async def test_the_socket_of_a_connection_that_fell_silent_is_closed(made: list[connector.Connection]) -> None:
    async with fake_gateway(ping_timeout=0.5) as gateway, open_line(gateway.port) as line:
        connection = await connect(line.url, ConnectionOptions(), lambda event, data: None)
        line.stall()
        async with asyncio.timeout(30):
            await connection.lost.wait()
        assert connection.silent
        await connection.close()
        assert unclosed(made) == 0


async def test_the_socket_of_a_connection_whose_opening_is_broken_off_is_closed(
    made: list[connector.Connection],
) -> None:
    async def says_nothing(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for _ in socket:
            pass
        return socket

    async with served("/socket.io/", says_nothing) as url:
        with pytest.raises(CannotConnect, match="no answer within"):
            await connect(url, ConnectionOptions(connect_timeout=0.5), lambda event, data: None)
        assert unclosed(made) == 0


async def test_a_session_is_closed_whose_socket_was_closed_before_its_last_bytes_were_taken() -> None:
    reading, ended = asyncio.Event(), asyncio.Event()

    async def reads_late(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(max_msg_size=0)
        await socket.prepare(request)
        await reading.wait()
        async for _ in socket:
            pass
        ended.set()
        return socket

    async with served("/", reads_late) as url:
        http = HttpSession()
        socket = await http.session.ws_connect(url)
        sending = asyncio.create_task(socket.send_bytes(b"x" * 32 * 1024 * 1024))
        await asyncio.sleep(0)
        assert not sending.done()
        await http.session.close()
        reading.set()
        async with asyncio.timeout(30):
            await ended.wait()
        await http.close()
        await asyncio.gather(sending, return_exceptions=True)


async def test_nothing_was_begun_by_a_gateway_that_sends_its_client_away_behind_an_answer() -> None:
    async def one_answer(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        opening = {"sid": "a", "upgrades": [], "pingInterval": 25000, "pingTimeout": 20000, "maxPayload": 10**6}
        await socket.send_str(f"0{json.dumps(opening)}")
        async for message in socket:
            if message.data.startswith("40"):
                await socket.send_str('40/smcp,{"sid":"b"}')
            elif "answered" in message.data:
                packet_id = message.data.removeprefix("42/smcp,").partition("[")[0]
                await socket.send_str(f"43/smcp,{packet_id}[{{}}]")
                await socket.close(code=4503)
        return socket

    async with served("/socket.io/", one_answer) as url:
        connection = await connect(url, ConnectionOptions(), lambda event, data: None)
        in_flight = asyncio.create_task(connection.request("client:x", {"is": "kept"}, timeout=30))
        assert await connection.request("client:x", {"is": "answered"}, timeout=30) == {}
        with pytest.raises(ConnectionBroken) as next_one:
            await connection.request("client:x", {"is": "late"}, timeout=30)
        with pytest.raises(ConnectionBroken) as kept:
            await in_flight
        assert connection.moving
        assert not next_one.value.sent
        assert not kept.value.sent
        await connection.close()
