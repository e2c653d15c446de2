"""The transport to a server over HTTP with SSE: the SDK's, with the time-outs that the protocol's page means.

The SDK gives `sse_read_timeout` to every answer; that of a message's POST is no stream, and gets `timeout`. Where a
message cannot be delivered the SDK logs that and goes on reading, so that whoever waits for an answer waits for ever:
here the connection ends.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
from mcp.client.sse import sse_client

from smcp_computer.mcp.errors import Lost
from smcp_computer.mcp.streams import Streams
from smcp_proto.schemas.config import MCPSSEParameters

NOT_DELIVERED = "did not take a message"
TOO_SLOW = "did not take a message in time"


@asynccontextmanager
async def sse_transport(parameters: MCPSSEParameters, headers: dict[str, str]) -> AsyncIterator[Streams]:
    """Connect to a server.

    Raises:
        Lost: it did not take a message; the body is cancelled.
        httpx2.HTTPError, ExceptionGroup: an address that cannot be reached.
    """
    lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def client(
        headers: dict[str, str] | None = None, timeout: httpx2.Timeout | None = None, auth: httpx2.Auth | None = None
    ) -> httpx2.AsyncClient:
        return _Client(lost, parameters.timeout, headers=headers, timeout=timeout, auth=auth)

    async def give_up() -> None:
        raise Lost(await lost)

    async with (
        anyio.create_task_group() as tasks,
        sse_client(
            parameters.url,
            headers=headers,
            timeout=parameters.timeout,
            sse_read_timeout=parameters.sse_read_timeout,
            httpx_client_factory=client,
        ) as streams,
    ):
        tasks.start_soon(give_up)
        yield streams
        tasks.cancel_scope.cancel()


class _Client(httpx2.AsyncClient):
    """Bounds what is posted, and says so where it was not taken."""

    def __init__(self, lost: asyncio.Future[str], post_s: float, **options: Any) -> None:
        super().__init__(**options)
        self._lost = lost
        self._post = httpx2.Timeout(post_s)

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if request.method != "POST":
            return await super().send(request, **options)
        request.extensions = {**request.extensions, "timeout": self._post.as_dict()}
        try:
            response = await super().send(request, **options)
        except httpx2.HTTPError as error:
            self._say(TOO_SLOW if isinstance(error, httpx2.TimeoutException) else NOT_DELIVERED)
            raise
        if response.is_error:
            self._say(NOT_DELIVERED)
        return response

    def _say(self, why: str) -> None:
        if not self._lost.done():
            self._lost.set_result(why)
