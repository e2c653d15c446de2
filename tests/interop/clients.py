"""Bare python-socketio clients that come from an address of their own."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
import socketio

from smcp_testing.gateway_world import NAMESPACE, Client
from smcp_testing.waiting import eventually

POLLING: Final = ("polling",)
WEBSOCKET: Final = ("websocket",)
UPGRADE: Final = ("polling", "websocket")
AGAIN_S: Final = 0.2
"""Between two attempts to join."""


@asynccontextmanager
async def client_at(
    address: str,
    url: str,
    transports: Sequence[str] = UPGRADE,
    *,
    rejoins: tuple[str, str, str] | None = None,
    wait_s: float = 10.0,
) -> AsyncIterator[Client]:
    """A connected client; every request of it is a TCP connection of its own.

    Args:
        address: of loopback, from which it connects.
        rejoins: role, name and office: it joins whenever it has connected, until it is let in, which stands in its
            `events` as `joined`; and it connects again when its connection breaks. It is in when the body begins.
        wait_s: for the namespace.
    """
    untyped: Any = socketio.AsyncClient
    connector = aiohttp.TCPConnector(local_addr=(address, 0), force_close=True)
    async with aiohttp.ClientSession(connector=connector) as http:
        sio = untyped(
            reconnection=rejoins is not None, reconnection_delay=0.1, reconnection_delay_max=1, http_session=http
        )
        client = Client(sio)

        async def told(event: str, payload: Any = None) -> None:
            client.events.append((event, payload))

        async def joined(answer: Any) -> None:
            if answer == [True, None]:
                client.events.append(("joined", None))
            else:  # nobody tells a gateway that a polling client is gone: its place is its own until pings find out
                asyncio.get_running_loop().call_later(AGAIN_S, lambda: sio.start_background_task(connected))

        async def connected() -> None:
            if rejoins is not None and NAMESPACE in sio.namespaces:
                role, name, office = rejoins
                place = {"role": role, "name": name, "office_id": office}
                await sio.emit("server:join_office", place, namespace=NAMESPACE, callback=joined)

        async def gone(*_: object) -> None:
            client.gone.set()

        sio.on("*", told, namespace=NAMESPACE)
        sio.on("connect", connected, namespace=NAMESPACE)
        sio.on("disconnect", gone, namespace=NAMESPACE)
        options: dict[str, Any] = {"transports": list(transports), "wait_timeout": wait_s}
        await sio.connect(url, namespaces=[NAMESPACE], auth={"flat_errors": True}, **options)
        try:
            if rejoins is not None:
                await eventually(lambda: client.told("joined"))
            yield client
        finally:
            await sio.disconnect()
