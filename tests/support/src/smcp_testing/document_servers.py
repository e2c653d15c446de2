"""Servers of documents as the library of a Computer sees them, scripted by the test."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

from smcp_computer.finder import MetadataCache, Read
from smcp_computer.mcp.events import ServerEvents
from smcp_computer.resources.index import Listing
from smcp_proto.finder import Document
from smcp_service.lifecycle import background


def listed(host: str, count: int, **fields: Any) -> Listing:
    return listing(*(f"dpe://{host}/d{number}" for number in range(count)), **fields)


def listing(*uris: str, **fields: Any) -> Listing:
    return Listing("a", [{"uri": uri, "name": f"name {uri[-1:]}", **fields} for uri in uris])


def answer(**summary: Any) -> dict[str, Any]:
    return {"contents": [{"uri": "x", "mimeType": "text/plain", "text": json.dumps(summary)}]}


class Servers:
    """Answers reads and counts them."""

    def __init__(self) -> None:
        self.read: list[str] = []
        self.at_a_time: dict[str, int] = {}
        self.most: dict[str, int] = {"": 0}
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


class Everything(list[str]):
    """Servers tell of all documents."""

    def __contains__(self, uri: object) -> bool:
        return True


@asynccontextmanager
async def opened(
    servers: Read,
    *,
    told: Callable[[str], Collection[str]] | None = None,
) -> AsyncIterator[MetadataCache]:
    async with background() as tasks:
        yield MetadataCache(
            servers,
            tasks,
            told or (lambda server: Everything()),
            ServerEvents(),
        )


def titles(documents: tuple[list[Document], int]) -> list[str | None]:
    return [document.summary.get("title") for document in documents[0]]
