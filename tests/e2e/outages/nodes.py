"""Nodes of NATS are killed and come back."""

import asyncio
import time
from pathlib import Path

import pytest

from smcp_testing.waiting import eventually
from tests.e2e.actors.bare import BareMember, Refused, member
from tests.e2e.actors.crowd import BACK_S
from tests.e2e.outages.cluster import come_back, followers, leader
from tests.e2e.outages.offices import NORTH, SOUTH, WORKER
from tests.e2e.outages.scene import CALLER, Scene, codes, scene
from tests.e2e.worlds.world import Part, World

RETRY_S = 2.0
"""A call that is sent so long after a node died is as if nothing had been."""
QUORUM_S = 10.0
"""In which joins work again."""


async def one_node_is_killed(world: World, directory: Path) -> None:
    await _killed(world, directory, (await followers(world))[0])


async def the_leader_is_killed(world: World, directory: Path) -> None:
    await _killed(world, directory, await leader(world))


async def _killed(world: World, directory: Path, node: Part) -> None:
    async with scene(world, directory) as there:
        await node.kill()
        at = time.monotonic()
        await asyncio.sleep(2 * world.lease_s)  # who is thought dead would be told by then
        async with member(world.url(0), "computer", NORTH, "newcomer"):
            pass
        await node.start()
    for office in (NORTH, SOUTH):
        assert codes(there.in_flight(office, at)) <= {None}, "each has its result"
        failed = [call for call in there.calls(office, at + RETRY_S) if call.error is not None]
        assert not failed, failed[:5]
        # Of those between, the ones that say that they were not run would be sent again.
        assert codes(there.calls(office, at, at + RETRY_S)) <= {None, 503}
    _nobody_moved(there)


async def two_of_three_nodes_are_killed(world: World, directory: Path) -> None:
    gone = await followers(world)
    newcomer = BareMember("computer", NORTH, "newcomer")
    async with scene(world, directory) as there:
        await asyncio.gather(*(node.kill() for node in gone))
        at = time.monotonic()
        await newcomer.connect(world.url(0))
        try:
            while time.monotonic() < at + 2 * world.lease_s:
                with pytest.raises(Refused, match=r"^503 "):
                    await newcomer.join()
                await asyncio.sleep(0.2)
            await come_back(*gone)
            quorum = time.monotonic()
            for node in gone:
                await node.ready(BACK_S)

            async def joined() -> bool:
                try:
                    await newcomer.join()
                except Refused:
                    return False
                return True

            await eventually(joined, timeout=max(0.1, quorum + QUORUM_S - time.monotonic()) + BACK_S)
            took = time.monotonic() - quorum
        finally:
            await newcomer.close()
        await there.result_after(time.monotonic(), world.lease_s, NORTH, SOUTH)
    assert took < QUORUM_S, f"joins worked {took:.1f} s after the nodes had been started"
    for office in (NORTH, SOUTH):
        failed = [call for call in there.calls(office, at + RETRY_S) if call.error is not None]
        assert not failed, failed[:5]
    _nobody_moved(there)


def _nobody_moved(there: Scene) -> None:
    for office in (NORTH, SOUTH):
        assert there.noticed(office, WORKER) == []
        assert there.noticed(office, CALLER)[:2] in (["enter"], ["enter", "leave"])
