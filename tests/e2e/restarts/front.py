"""What stands before gateways and gives clients to those that are ready: sticky by their address, for clients that poll
first, or to the one with the fewest connections."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

import aiohttp

from tests.interop.balancer import Balancer, balancer

PAUSE_S: Final = 0.2
"""Between two looks at who is ready."""


class Ready:
    """Which of the gateways are ready, by their place."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.places: list[int] = []
        self._urls = urls

    def gone(self, place: int) -> None:
        """That one takes no connections; the next look may find it again."""
        self.places = [each for each in self.places if each != place]

    async def look(self) -> None:
        """Ask everybody for ever."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as http:
            while True:
                ready = await asyncio.gather(*(_is_ready(http, url) for url in self._urls))
                self.places = [place for place, is_ready in enumerate(ready) if is_ready]
                await asyncio.sleep(PAUSE_S)


class Sticky:
    """An address keeps its gateway for as long as that is ready."""

    def __init__(self, ready: Ready) -> None:
        self._ready = ready
        self._places: dict[str, int] = {}

    def choose(self, address: str, _: int) -> int:
        ready = self._ready.places
        if ready and self._places.get(address) not in ready:
            self._places[address] = ready[int(ip_address(address)) % len(ready)]
        return self._places.get(address, 0)


@asynccontextmanager
async def sticky(urls: Sequence[str]) -> AsyncIterator[Balancer]:
    """In front of these gateways."""
    async with _looking(urls) as ready, balancer(_ports(urls), Sticky(ready).choose) as front:
        yield front


@asynccontextmanager
async def least_connections(urls: Sequence[str]) -> AsyncIterator[Balancer]:
    """In front of these gateways: for clients that open one WebSocket, and need no stickiness."""
    async with _looking(urls) as ready:

        def choose(_: str, __: int) -> int:
            return min(ready.places or range(len(urls)), key=lambda place: front.open[place])

        async with balancer(_ports(urls), choose, ready.gone) as front:
            yield front


@asynccontextmanager
async def _looking(urls: Sequence[str]) -> AsyncIterator[Ready]:
    ready = Ready(urls)
    looking = asyncio.create_task(ready.look())
    try:
        yield ready
    finally:
        looking.cancel()
        await asyncio.wait({looking})


def _ports(urls: Sequence[str]) -> list[int]:
    return [urlsplit(url).port or 0 for url in urls]


async def _is_ready(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(f"{url}/readyz") as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False
