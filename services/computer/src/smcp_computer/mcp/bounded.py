"""Answers over HTTP are not read above a limit: the SDK bounds the events of a stream, but no plain JSON."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Final

import httpx2

from smcp_computer.mcp.unread import ABOVE_LIMIT

_JSON: Final = "application/json"


class AboveLimit(httpx2.StreamError):
    """The SDK answers who waits for it with an error that holds this one's text (see `unread`)."""

    def __init__(self) -> None:
        super().__init__(ABOVE_LIMIT)


def bounded(limit: int) -> Callable[[httpx2.Response], Awaitable[None]]:
    """A hook for responses: reading one of JSON raises `AboveLimit` above so many bytes, unpacked."""

    async def bound(response: httpx2.Response) -> None:
        async def read() -> bytes:
            found, size = [], 0
            async with aclosing(response.aiter_bytes()) as parts:
                async for part in parts:
                    size += len(part)
                    if size > limit:
                        raise AboveLimit
                    found.append(part)
            return b"".join(found)

        if response.headers.get("content-type", "").lower().startswith(_JSON):
            response.aread = read  # type: ignore[method-assign]

    return bound
