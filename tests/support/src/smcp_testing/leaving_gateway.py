"""Two gateways, of which one stops: what its clients and their Computers do meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

from smcp_testing.gateway_world import NAMESPACE, Client, World, gateway_world

OFFICE = "office"
RESULT: dict[str, Any] = {"content": [{"type": "text", "text": "done"}], "isError": False}

Leave = Callable[[], "asyncio.Task[object]"]
"""Tell the gateway to stop; done when it has stopped."""


def call(number: int = 0, *, timeout: int = 30, computer: str = "box") -> dict[str, Any]:
    return {
        "agent": "anna", "req_id": f"r{number}", "computer": computer, "tool_name": "t", "params": {},
        "timeout": timeout,
    }  # fmt: skip


@asynccontextmanager
async def two_gateways(
    nats_url: str,
    *,
    drain_s: float = 20.0,
    move_s: float = 30.0,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> AsyncIterator[tuple[World, World, Leave]]:
    """The one that stays (with the registry), the one that leaves, and what makes it leave."""
    async with gateway_world(nats_url, move_s=move_s, settings=settings) as staying:
        opened = gateway_world(nats_url, registry=False, drain_s=drain_s, move_s=move_s, settings=settings)
        leaving = await opened.__aenter__()
        closing: list[asyncio.Task[object]] = []

        def leave() -> asyncio.Task[object]:
            if not closing:
                closing.append(asyncio.create_task(opened.__aexit__(None, None, None)))
            return closing[0]

        try:
            yield staying, leaving, leave
        finally:
            async with asyncio.timeout(drain_s + 10):
                await leave()


class Box:
    """A Computer on Socket.IO whose tool ends when it is released."""

    def __init__(self, client: Client) -> None:
        self.asked: list[str] = []
        self.released = asyncio.Event()
        self._client = client
        client.sio.on("client:tool_call", self._tool, namespace=NAMESPACE)

    async def _tool(self, request: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(request["req_id"])
        gone = asyncio.create_task(self._client.gone.wait())
        released = asyncio.create_task(self.released.wait())
        await asyncio.wait((gone, released), return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        released.cancel()
        return RESULT


async def agent_and_box(anna: Client, client: Client) -> Box:
    """An Agent and a Computer join the office."""
    box = Box(client)
    assert await anna.join("agent", "anna", OFFICE) == [True, None]
    assert await client.join("computer", "box", OFFICE) == [True, None]
    return box


async def in_time(task: "asyncio.Future[Any]", seconds: float = 10.0) -> Any:
    async with asyncio.timeout(seconds):
        return await task


async def gone(client: Client, seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        await client.gone.wait()
