"""A gateway that has lost NATS keeps its clients, and answers them 503: when to go to another one.

An outage of NATS as a whole is waited for where the agent is: to go elsewhere is to leave the office and to enter it.
"""

import asyncio
import random
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import aiohttp

from smcp_agent.connecting.addresses import Addresses
from smcp_agent.connecting.connection import AckTimedOut, Connection, ConnectionBroken
from smcp_agent.connecting.options import ConnectionOptions
from smcp_agent.errors import is_cut_off
from smcp_proto.schemas import EnterOfficeReq, ListRoomReq

HEARTBEAT_SHARE: Final = 0.7
"""The share of its lease within which a gateway is heard."""
LOOK_AGAIN_S: Final = 2.0
"""When NATS comes back one gateway has it a little sooner than another. So two looks have to find the same, and so many
seconds, and no less than half a lease, lie between them."""
LOOKS: Final = 2
READY_S: Final = 2.0
"""How long a gateway may take to say whether it is ready (seconds)."""
ASK_S: Final = 12.0
"""The server side has 10 s for a question about the room."""


class CutOff:
    """Args:
    place: the agent's; what is asked of its gateway, to see whether it has NATS again.
    """

    def __init__(self, addresses: Addresses, options: ConnectionOptions, place: EnterOfficeReq) -> None:
        self._addresses = addresses
        self._options = options
        self._place = place

    async def better(self, connection: Connection) -> bool:
        """Wait until the gateway of `connection`, which said that it is cut off, has been so for a lease while another
        one is ready, which is tried first from then on. False: the connection has ended, or its gateway has NATS again.

        Where the only URL is a load balancer's, the other gateway may be behind the same one.
        """
        lease_s, found = lease_of(connection), 0
        await asyncio.sleep(lease_s)
        while not connection.lost.is_set():
            ready = await self._ready()
            urls = [url for url, says in ready.items() if says and url != connection.url]
            urls += [connection.url] if ready.get(connection.url) else []
            if not await self._still_cut_off(connection):  # asked last: a ready URL may be of this very gateway
                return False
            found = found + 1 if urls else 0
            if found >= LOOKS:
                self._addresses.prefer(urls[0])
                return True
            await asyncio.sleep(max(LOOK_AGAIN_S, lease_s / 2) * random.uniform(1, 1.5))  # noqa: S311 -- not a secret
        return False

    async def instead_of(self, url: str) -> bool:
        """Have another gateway tried first, where that one says that it is not ready and another one that it is."""
        ready = await self._ready()
        others = [other for other, says in ready.items() if says and other != url]
        if ready.get(url) is not False or not others:
            return False
        self._addresses.prefer(others[0])
        return True

    async def _still_cut_off(self, connection: Connection) -> bool:
        asked = ListRoomReq(agent=self._place.name, req_id=uuid4().hex, office_id=self._place.office_id)
        try:
            reply = await connection.request("server:list_room", asked.model_dump(exclude_unset=True), timeout=ASK_S)
        except (ConnectionBroken, AckTimedOut):
            return False
        return is_cut_off(reply)

    async def _ready(self) -> Mapping[str, bool | None]:
        """What the gateways say of themselves, by URL, in the order in which they are tried; None: nothing."""
        timeout = aiohttp.ClientTimeout(total=READY_S)
        async with aiohttp.ClientSession(headers=self._options.headers, timeout=timeout) as session:
            urls = list(self._addresses)
            return dict(zip(urls, await asyncio.gather(*(_says(session, url) for url in urls)), strict=True))


def lease_of(connection: Connection) -> float:
    """How long the gateway may be silent before it counts as dead (seconds), as far as its pings tell."""
    return connection.heartbeat_s / HEARTBEAT_SHARE


async def _says(session: aiohttp.ClientSession, url: str) -> bool | None:
    """What `/readyz` says, beside the gateway's Socket.IO endpoint."""
    parts = urlsplit(url)
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    asked = urlunsplit((scheme, parts.netloc, f"{parts.path.rstrip('/')}/readyz", "", ""))
    try:
        async with session.get(asked, allow_redirects=False) as response:
            return {200: True, 503: False}.get(response.status)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None
