"""Where a plan is played, and what is hurt there in a round: when the block is entered; healed when it is left."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from smcp_testing.tcp_proxy import Line
from smcp_testing.waiting import eventually
from tests.e2e.rooms.plan import Hurt
from tests.e2e.rooms.record import Record
from tests.e2e.scenarios.faults import past_the_lease
from tests.e2e.worlds.world import World

BACK_S: Final = 30.0
"""In which a gateway is back on NATS after its connection was cut."""
SHORT: Final = 1 / 4
"""Of a lease: who is cut off from NATS for less renews it in time; two thirds of it were left."""


@dataclass(frozen=True)
class Stage:
    """The world, the lines from clients to each gateway, and those from each gateway to NATS."""

    world: World
    clients: Sequence[Line]
    nats: Sequence[Line]
    offices: Iterator[Sequence[str]]
    """Of each plan its own."""

    @asynccontextmanager
    async def hurt(self, what: Hurt | None, number: int, record: Record) -> AsyncIterator[None]:
        if what is None:
            yield
            return
        record.say(f"{what}: no. {number}")
        match what:
            case "a gateway is killed":
                with record.disturbed(number, lapses=False):
                    await self.world.gateways[number].part.kill()
                yield
                await self.world.gateways[number].part.start()
            case "a gateway stands still past the lease":
                with record.disturbed(number, lapses=True):
                    self.world.gateways[number].part.pause()
                    yield
                    await past_the_lease(self.world)
                    self.world.gateways[number].part.resume()
                await self.world.gateways[number].part.ready()
            case "a gateway is parted from NATS past the lease":
                with record.disturbed(number, lapses=True):
                    self.nats[number].stall()
                    self.nats[number].cut()
                    yield
                    await past_the_lease(self.world)
                    self.nats[number].resume()
                    await self.world.gateways[number].part.ready()
            case "a gateway's connection to NATS is cut":
                with record.disturbed(number, lapses=True) as cut:
                    line, start = self.nats[number], asyncio.get_running_loop().time()
                    line.cut()
                    yield
                    await eventually(lambda: line.carried[-1] > start, timeout=BACK_S)
                    await self.world.gateways[number].part.ready()
                    back = [at - start for at in line.carried if at > start]
                    cut.short = len(back) == 1 and back[0] < SHORT * self.world.lease_s
                    record.say(f"back on NATS after {', '.join(f'{after:.3f}' for after in back)} s")
            case "a gateway's clients are cut off":
                with record.disturbed(number, lapses=False):
                    self.clients[number].cut()
                yield
            case "a registry is killed":
                await self.world.registries[number].kill()
                yield
                await self.world.registries[number].start()
            case "a registry stands still past the lease":
                self.world.registries[number].pause()
                yield
                await past_the_lease(self.world)
                self.world.registries[number].resume()
                await self.world.registries[number].ready()
        record.say("healed")
