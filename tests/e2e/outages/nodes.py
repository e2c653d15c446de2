"""Nodes of NATS are killed and come back."""

import asyncio
import time
from pathlib import Path

import pytest

from smcp_testing.waiting import Stopwatch, eventually
from tests.e2e.actors.bare import BareMember, Refused, member
from tests.e2e.actors.crowd import BACK_S
from tests.e2e.outages.cluster import come_back, leader, node_of, path_on_one_node
from tests.e2e.outages.offices import NORTH, SOUTH, WORKER
from tests.e2e.outages.scene import CALLER, Scene, codes, flown, scene
from tests.e2e.worlds.world import Part, World

RETRY_S = 5.0
"""In which calls have results again: who was connected to a dead node has to find another one, and each attempt with a
dead one may take 2 s."""
QUORUM_S = 10.0
"""In which joins work again."""


async def the_node_of_a_gateway_is_killed(world: World, directory: Path) -> None:
    await _killed(world, directory, await node_of(world, world.gateway(0).part))


async def the_leader_is_killed(world: World, directory: Path) -> None:
    await _killed(world, directory, await leader(world))


async def _killed(world: World, directory: Path, node: Part) -> None:
    async with scene(world, directory) as there:
        await there.flying(NORTH, SOUTH)
        at = time.monotonic()  # before: what ends while it is being killed was in flight, too
        await node.kill()
        killed = Stopwatch()
        await there.result_after(killed, RETRY_S, NORTH, SOUTH)
        fine = time.monotonic()
        await asyncio.sleep(2 * world.lease_s)  # the leave of a member thought dead would have come by then
        async with member(world.url(0), "computer", NORTH, "newcomer"):
            pass
        await node.start()
    for office in (NORTH, SOUTH):
        failed = [call for call in flown(there, office, at) if call.code is not None]
        assert not failed, f"each has its result: {failed}"
        assert codes(there.calls(office, at, fine)) <= {None, 503}
        assert codes(there.calls(office, fine)) == {None}
    _nobody_moved(there)


async def two_of_three_nodes_are_killed(world: World, directory: Path) -> None:
    with_path, left = await path_on_one_node(world)
    gone = [node for node in world.nodes if node is not left]
    newcomer = BareMember("computer", NORTH, "newcomer")

    async def joined() -> bool:
        try:
            await newcomer.join()
        except Refused:
            return False
        return True

    async with scene(world, directory) as there:
        await there.flying(NORTH, SOUTH)
        at = time.monotonic()  # before: what ends while they are being killed was in flight, too
        await asyncio.gather(*(node.kill() for node in gone))
        killed = Stopwatch()
        await there.result_after(killed, 2 * RETRY_S, NORTH, SOUTH)
        fine = time.monotonic()
        await newcomer.connect(world.url(0))
        try:
            while time.monotonic() < max(at + 2 * world.lease_s, fine + world.lease_s):
                with pytest.raises(Refused, match=r"^503 "):
                    await newcomer.join()
                await asyncio.sleep(0.2)
            await come_back(*gone)
            await leader(world)
            watch = Stopwatch()
            await eventually(joined, timeout=BACK_S, message="joins do not work")
            assert watch.undisturbed < QUORUM_S
        finally:
            await newcomer.close()
        for node in gone:
            await node.ready(BACK_S)
    for office in (NORTH, SOUTH):
        assert codes(flown(there, office, at)) <= {None, 503}, "calls without a path get a 503"
        assert codes(there.calls(office, at, fine)) <= {None, 503}
        assert codes(there.calls(office, fine)) == {None}
    assert codes(flown(there, with_path, at)) == {None}, "where a path is left each has its result"
    assert codes(there.calls(with_path, at)) == {None}, "and calls go on"
    _nobody_moved(there)


def _nobody_moved(there: Scene) -> None:
    for office in (NORTH, SOUTH):
        assert there.noticed(office, WORKER) == []
        assert there.noticed(office, CALLER) == ["enter"]
