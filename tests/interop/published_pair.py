"""A published Agent and a published Computer in one office, each on a gateway of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from smcp_testing.gateway_world import World, gateway_world
from smcp_testing.waiting import eventually
from tests.interop.published import Kind, PublishedAgent, PublishedComputer, published_agent, published_computer

OFFICE: Final = "office"
LEASE_S: Final = 10.0
"""The test's process serves both gateways, and starts the clients: it may be late."""


@dataclass(frozen=True, slots=True)
class Couple:
    world: World
    anna: PublishedAgent
    box: PublishedComputer
    home: Path

    @property
    def running(self) -> int:
        """Calls that the Computer's gateway waits for."""
        return sum(gateway.computers.owner.running for gateway in self.world.gateways)

    def journal(self) -> list[str]:
        """What the Computer's tools wrote."""
        path = self.home / "journal"
        return path.read_text().splitlines() if path.exists() else []

    def slow_call(self, req_id: str, timeout: int = 60) -> "asyncio.Future[Any]":
        """A call of a minute, as a plain event."""
        request = {
            "agent": "anna", "req_id": req_id, "computer": "box", "tool_name": "tools__slow",
            "params": {"seconds": 60}, "timeout": timeout,
        }  # fmt: skip
        return self.anna.ask("client:tool_call", payload=request)


@asynccontextmanager
async def couple(nats_url: str, home: Path, kind: Kind = "async") -> AsyncIterator[Couple]:
    """`anna` has joined, then `box`, and `anna` has heard of it."""
    async with (
        gateway_world(nats_url, gateways=2, lease_s=LEASE_S) as world,
        published_agent(home, world.gateways[0].url, OFFICE, "anna", kind=kind) as anna,
    ):
        await anna.ready()
        async with published_computer(home, world.gateways[1].url, OFFICE, "box") as box:
            await box.ready()
            await eventually(lambda: anna.heard("enter"))
            yield Couple(world, anna, box, home)
