"""What the gateway uses of python-socketio, engine.io and asyncio beyond their documentation: fails by name when it
moves.

`smcp_gateway.sockets` uses it; the upper bounds of both packages stand in `pyproject.toml`.
"""

import asyncio
import inspect
from typing import Any

import engineio
import pytest
import socketio
from engineio.async_socket import AsyncSocket


@pytest.fixture
def server() -> Any:
    untyped: Any = socketio.AsyncServer
    return untyped(async_mode="aiohttp", namespaces=["/smcp"])


def test_the_driver_of_engineio_can_be_replaced(server: Any) -> None:
    driver = server.eio._async
    assert list(inspect.signature(driver["websocket"]).parameters) == ["handler", "server"]


@pytest.mark.parametrize("name", ["connect", "disconnect", "message"])
def test_the_handlers_of_socketio_can_be_called(server: Any, name: str) -> None:
    assert inspect.iscoroutinefunction(server.eio.handlers[name])


@pytest.mark.parametrize(
    "name", ["sid", "queue", "connected", "upgrading", "upgraded", "closing", "closed", "last_ping"]
)
def test_a_socket_of_engineio_has_the_attribute(server: Any, name: str) -> None:
    assert hasattr(AsyncSocket(server.eio, "sid"), name)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("name", ["schedule_ping", "check_ping_timeout", "close", "poll"])
def test_a_socket_of_engineio_has_the_method(name: str) -> None:
    assert callable(getattr(AsyncSocket, name))


@pytest.mark.parametrize("name", ["create_queue", "start_background_task", "handle_request"])
def test_a_method_that_the_gateway_overrides_is_there(name: str) -> None:
    assert callable(getattr(engineio.AsyncServer, name))


@pytest.mark.parametrize("name", ["_put", "_get"])
def test_a_queue_of_asyncio_keeps_its_items_by_the_method(name: str) -> None:
    assert callable(getattr(asyncio.Queue, name))


def test_a_queue_of_asyncio_keeps_its_items_in_the_attribute() -> None:
    assert hasattr(asyncio.Queue(), "_queue")


@pytest.mark.parametrize("name", ["eio_sid_from_sid"])
def test_the_manager_knows_the_ids_of_a_client(server: Any, name: str) -> None:
    assert callable(getattr(server.manager, name))
