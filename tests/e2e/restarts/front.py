"""What stands before gateways for clients that poll first: sticky by the client's address, to those that are ready."""

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


class Sticky:
    """An address keeps its gateway for as long as that is ready."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._ready: list[int] = []
        self._places: dict[str, int] = {}

    def choose(self, address: str, _: int) -> int:
        if self._ready and self._places.get(address) not in self._ready:
            self._places[address] = self._ready[int(ip_address(address)) % len(self._ready)]
        return self._places.get(address, 0)

    async def look(self) -> None:
        """Ask everybody for ever."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as http:
            while True:
                ready = await asyncio.gather(*(_is_ready(http, url) for url in self._urls))
                self._ready = [place for place, is_ready in enumerate(ready) if is_ready]
                await asyncio.sleep(PAUSE_S)


@asynccontextmanager
async def sticky(urls: Sequence[str]) -> AsyncIterator[Balancer]:
    """In front of these gateways."""
    choice = Sticky(urls)
    looking = asyncio.create_task(choice.look())
    try:
        async with balancer([urlsplit(url).port or 0 for url in urls], choice.choose) as front:
            yield front
    finally:
        looking.cancel()
        await asyncio.wait({looking})


async def _is_ready(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(f"{url}/readyz") as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False
