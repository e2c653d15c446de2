"""The clocks of the machines differ: whatever is counted between two of them is counted otherwise."""

import asyncio
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final

import aiohttp

from smcp_testing.waiting import eventually
from tests.e2e.actors.bare import member
from tests.e2e.actors.crowd import BACK_S, ENTER, LEAVE
from tests.e2e.outages.offices import NORTH, SOUTH, WORKER
from tests.e2e.outages.scene import CALLER, NEIGHBOUR, codes, scene
from tests.e2e.worlds.process import Launched
from tests.e2e.worlds.world import Part, World

APART_S: Final = 300
AHEAD: Final = {"registry-2": APART_S, "gateway-2": APART_S, "host-north": APART_S}
"""One of each kind; the others' clocks are right."""
MOVE_S: Final = 8.0
FORGETFUL: Final = "forgetful"


async def clocks_are_minutes_apart(world: World, directory: Path) -> None:
    """What a registry says of a member that moves counts for all: who comes back is not missed, who does not is."""
    await _are_apart(world)
    gateway = world.gateway(0).part
    urls = {NORTH: [world.url(0), world.url(1)], SOUTH: [world.url(1)]}
    async with (
        scene(world, directory, urls) as there,
        member(world.url(0), "computer", NORTH, NEIGHBOUR) as neighbour,
        member(world.url(0), "computer", NORTH, FORGETFUL),
    ):
        watcher = there.watchers[NORTH]
        for name in (NEIGHBOUR, FORGETFUL):
            await watcher.told(ENTER, computer=name)
        await asyncio.sleep(2 * world.lease_s)  # the leave of a member thought dead would have come by then
        told = time.monotonic()
        stopping = asyncio.create_task(gateway.stop())
        await eventually(lambda: not neighbour.connected, timeout=BACK_S)
        await asyncio.sleep(world.lease_s / 2)  # a registry that took the move for over would have ended it
        async with member(world.url(1), "computer", NORTH, NEIGHBOUR):
            await watcher.told(LEAVE, timeout=MOVE_S + BACK_S, computer=FORGETFUL)
            assert there.told_at(NORTH, LEAVE, FORGETFUL) - told >= MOVE_S
            assert await stopping == 0
            await gateway.start()
            noticed = {name: there.noticed(NORTH, name) for name in (NEIGHBOUR, FORGETFUL, CALLER, WORKER)}
            expected = {NEIGHBOUR: ["enter"], FORGETFUL: ["enter", "leave"], CALLER: ["enter"], WORKER: []}
            assert noticed == expected, noticed
            assert (there.noticed(SOUTH, CALLER), there.noticed(SOUTH, WORKER)) == (["enter"], [])
    for office in (NORTH, SOUTH):
        assert codes(there.calls(office)) == {None}


async def _are_apart(world: World) -> None:
    """Raises AssertionError: the clocks are as they always are."""
    kinds: list[Iterator[Part]] = [
        iter(world.registries),
        (gateway.part for gateway in world.gateways),
        (host.part for host in world.computers),
    ]
    for kind in kinds:
        right, wrong = sorted(kind, key=lambda part: part.name in AHEAD)
        assert abs(await _clock(wrong) - await _clock(right) - APART_S) < 5


async def _clock(part: Part) -> float:
    """What time it is by its own word (unix seconds)."""
    assert isinstance(part, Launched)
    async with aiohttp.ClientSession() as http, http.get(part.ready_url) as answer:
        return parsedate_to_datetime(answer.headers["Date"]).timestamp()
