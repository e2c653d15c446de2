"""Somebody with one credential and a raw NATS client: what nats-server lets it do, and what it refuses it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
from nats.aio.client import Client


class Peer:
    """A raw connection, and what nats-server refused it."""

    def __init__(self, client: Client, refusals: list[str]) -> None:
        self.client = client
        self._refusals = refusals

    async def flushed(self) -> None:
        """Wait until the server has read all that was sent.

        nats-py writes the PING of a flush before what is still pending, so only a second one comes after it.
        """
        await self.client.flush()
        await self.client.flush()

    async def refusals(self) -> list[str]:
        """What the server has refused since the last question, in its words; each has the subject in lower case."""
        await self.flushed()
        said = [text.lower() for text in self._refusals if "permissions violation" in text.lower()]
        self._refusals.clear()
        return said

    async def refused(self) -> bool:
        """Whether the server refused anything since the last question."""
        return bool(await self.refusals())

    async def may_publish(self, subject: str, body: bytes = b"{}") -> bool:
        await self.client.publish(subject, body)
        return not await self.refused()

    async def may_subscribe(self, subject: str, queue: str = "") -> bool:
        """It is subscribed no more when this returns."""
        subscription = await self.client.subscribe(subject, queue=queue)
        refused = await self.refused()
        if not refused:
            await subscription.unsubscribe()
        return not refused


@asynccontextmanager
async def nats_peer(url: str, credential: Path) -> AsyncIterator[Peer]:
    """Connected with what stands in the file of a credential, until the body has run."""
    content = json.loads(credential.read_text(encoding="utf-8"))
    refusals: list[str] = []

    async def refused(error: Exception) -> None:
        refusals.append(str(error))

    client = await nats.connect(
        url,
        user=content.get("user", content["name"]),
        password=content["secret"],
        inbox_prefix=content["inbox_prefix"],
        error_cb=refused,
        allow_reconnect=False,
    )
    try:
        yield Peer(client, refusals)
    finally:
        await client.close()
