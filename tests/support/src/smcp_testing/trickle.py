"""A Computer whose large answers do not come, or come very slowly."""

import asyncio
from itertools import count
from typing import Final

from nats.aio.client import Client
from nats.aio.msg import Msg

from smcp_bus.nats.wire import CHUNK, CHUNKS, SIZE

FIRST: Final = 4096
"""Bytes of a chunk: the smallest of which 32 MiB may be made."""
TOTAL: Final = 32 * 1024 * 1024


class Trickle:
    """A Computer that announces 32 MiB, and sends chunks of `size` bytes, one each `pause` seconds: the first one
    again and again, or, if `new`, those that are asked for."""

    def __init__(self, client: Client, *, size: int = FIRST, pause: float = 0.2, new: bool = False) -> None:
        self._client = client
        self._size = size
        self._pause = pause
        self._new = new
        self._numbers = count()
        self.sent = 0

    async def serve(self, subject: str) -> None:
        """Answer the requests on that subject."""
        rest = f"_INBOX.trickle.{next(self._numbers)}"
        announced = {SIZE: str(TOTAL), CHUNKS: str(TOTAL // self._size)}

        async def begin(message: Msg) -> None:
            await self._client.publish(message.reply, bytes(self._size), reply=rest, headers=announced)

        async def give(message: Msg) -> None:
            asked = (message.headers or {}).get(CHUNK, "")
            if message.reply and asked.isdigit():
                await self._client.publish(
                    message.reply, bytes(self._size), headers={CHUNK: asked if self._new else "0"}
                )
                self.sent += 1
                await asyncio.sleep(self._pause)  # one callback runs at a time: this is the pace

        await self._client.subscribe(subject, cb=begin)
        await self._client.subscribe(rest, cb=give)
        await self._client.flush()
        await self._client.flush()
