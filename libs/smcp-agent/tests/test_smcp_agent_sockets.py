"""Sockets are closed with their connections; nothing is left to aiohttp's finalizers."""

import asyncio
from typing import Any

import pytest
import socketio
from aiohttp import connector, web
from socketio.packet import Packet

from smcp_agent import CannotConnect
from smcp_agent.connecting.connection import connect
from smcp_agent.connecting.options import ConnectionOptions
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

    app = web.Application()
    app.router.add_get("/socket.io/", says_nothing)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        with pytest.raises(CannotConnect, match="no answer within"):
            await connect(url, ConnectionOptions(connect_s=0.5), lambda event, data: None)
        assert unclosed(made) == 0
    finally:
        await runner.cleanup()
