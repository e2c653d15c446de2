"""Servers of documents as the library of a Computer sees them, scripted by the test."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

from opentelemetry.metrics import Meter, get_meter

from smcp_computer.finder.at_need import Read
from smcp_computer.finder.library import Library
from smcp_computer.finder.overflow import Overflow
from smcp_proto.documents import Document
from smcp_service.lifecycle import background

Listing = dict[str, dict[str, Any]]


def listed(host: str, count: int, **fields: Any) -> Listing:
    return listing(*(f"dpe://{host}/d{number}" for number in range(count)), **fields)


def listing(*uris: str, **fields: Any) -> Listing:
    return {uri: {"uri": uri, "name": f"name {uri[-1:]}", **fields} for uri in uris}


def answer(**summary: Any) -> dict[str, Any]:
    return {"contents": [{"uri": "x", "mimeType": "text/plain", "text": json.dumps(summary)}]}


class Servers:
    """Answers reads; counts them, and how often the office is told that documents changed."""

    def __init__(self) -> None:
        self.read: list[str] = []
        self.at_a_time: dict[str, int] = {}
        self.most: dict[str, int] = {"": 0}
        self.told = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.say: Callable[[str, str], dict[str, Any]] = lambda server, uri: answer(title=f"title of {uri[-2:]}")

    async def __call__(self, server: str, uri: str, timeout: float) -> dict[str, Any]:
        self.read.append(uri)
        self.at_a_time[server] = self.at_a_time.get(server, 0) + 1
        self.most[server] = max(self.most.get(server, 0), self.at_a_time[server])
        self.most[""] = max(self.most[""], sum(self.at_a_time.values()))
        try:
            await asyncio.sleep(0)  # others have their turn
            await self.gate.wait()
            return self.say(server, uri)
        finally:
            self.at_a_time[server] -= 1

    def tell(self) -> None:
        self.told += 1


class Everything(list[str]):
    """Servers tell of all documents."""

    def __contains__(self, uri: object) -> bool:
        return True


@asynccontextmanager
async def opened(
    servers: Read,
    *,
    cache_bytes: int = 10**6,
    index_bytes: int = 10**7,
    told: Callable[[str], Collection[str]] | None = None,
    meter: Meter | None = None,
) -> AsyncIterator[Library]:
    async with background() as tasks:
        yield Library(
            servers,
            tasks,
            told or (lambda server: Everything()),
            servers.tell if isinstance(servers, Servers) else lambda: None,
            Overflow(meter or get_meter("test")),
            cache_bytes=cache_bytes,
            index_bytes=index_bytes,
        )


def titles(documents: list[Document]) -> list[str | None]:
    return [document.summary.get("title") for document in documents]
