"""The way between a part and NATS is cut, for less than a lease and for more, and is there again."""

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path

from smcp_testing.waiting import Stopwatch
from tests.e2e.actors.bare import member
from tests.e2e.actors.crowd import ENTER, LEAVE
from tests.e2e.outages.offices import NORTH, SOUTH, WORKER
from tests.e2e.outages.scene import CALLER, NEIGHBOUR, Scene, codes, flown, scene
from tests.e2e.worlds.container import Container
from tests.e2e.worlds.world import Part, World


@dataclass(frozen=True)
class Cut:
    """When it was made (monotonic seconds), and the time since it was healed."""

    at: float
    since: Stopwatch

    @property
    def healed(self) -> float:
        """When (monotonic seconds)."""
        return self.since.began


async def cut_off(part: Part, seconds: float, until: Awaitable[None] | None = None) -> Cut:
    """For so long there is no way between it and NATS, and until then."""
    assert isinstance(part, Container)
    await asyncio.to_thread(part.cut)
    at = time.monotonic()
    try:
        await asyncio.sleep(seconds)
        if until is not None:
            await until
    finally:
        await asyncio.to_thread(part.heal)
    return Cut(at, Stopwatch())


async def a_gateway_is_cut_off_for_half_a_lease(world: World, directory: Path) -> None:
    async with scene(world, directory) as there, member(world.url(0), "computer", NORTH, NEIGHBOUR):
        await there.watchers[NORTH].told(ENTER, computer=NEIGHBOUR)
        await there.flying(NORTH)
        cut = await cut_off(world.gateway(0).part, world.lease_s / 2)
        await there.result_after(cut.since, world.lease_s, NORTH)
        await asyncio.sleep(world.lease_s)  # the leave of a member thought dead would have come by now
        for name in (NEIGHBOUR, CALLER):
            assert there.noticed(NORTH, name) == ["enter"]
    assert codes(flown(there, NORTH, cut.at)) <= {None, 503}
    assert codes(there.calls(NORTH, cut.at, cut.healed)) <= {None, 503}
    the_south_noticed_nothing(there)
    assert there.noticed(NORTH, WORKER) == []


async def a_gateway_is_cut_off_for_two_leases(world: World, directory: Path) -> None:
    async with scene(world, directory) as there, member(world.url(0), "computer", NORTH, NEIGHBOUR):
        await there.watchers[NORTH].told(ENTER, computer=NEIGHBOUR)
        await there.flying(NORTH)
        cut = await cut_off(world.gateway(0).part, 2 * world.lease_s)
        await there.result_after(cut.since, world.lease_s, NORTH)
        await there.back(NORTH, NEIGHBOUR, CALLER, since=cut.since, within=world.lease_s)
        assert there.noticed(NORTH, NEIGHBOUR) == ["enter", "leave", "enter"]
        assert there.noticed(NORTH, CALLER) == ["enter", "leave", "enter"]
    assert codes(flown(there, NORTH, cut.at)) <= {None, 503}
    # Some still have time when the line is back, or too little of it.
    assert {503} <= codes(there.calls(NORTH, cut.at, cut.healed)) <= {None, 503, 408}
    the_south_noticed_nothing(there)
    assert there.noticed(NORTH, WORKER) == []


async def a_computer_is_cut_off_for_half_a_lease(world: World, directory: Path) -> None:
    async with scene(world, directory) as there:
        await there.flying(NORTH)
        cut = await cut_off(world.computer(NORTH, WORKER).part, world.lease_s / 2)
        await there.result_after(cut.since, world.lease_s, NORTH)
        await asyncio.sleep(world.lease_s)  # its leave would have come by now
    assert there.noticed(NORTH, WORKER) == []
    assert codes(flown(there, NORTH, cut.at)) <= {None, 503}
    assert codes(there.calls(NORTH, cut.at, cut.healed)) <= {None, 503}
    the_south_noticed_nothing(there)


async def a_computer_is_cut_off_for_two_leases(world: World, directory: Path) -> None:
    async with scene(world, directory) as there:
        await there.flying(NORTH)
        unknown = there.unknown(NORTH, WORKER)
        cut = await cut_off(world.computer(NORTH, WORKER).part, 2 * world.lease_s, unknown)
        await there.result_after(cut.since, world.lease_s, NORTH)
        await there.back(NORTH, WORKER, since=cut.since, within=world.lease_s)
        assert there.noticed(NORTH, WORKER) == ["leave", "enter"]
    assert codes(flown(there, NORTH, cut.at)) <= {None, 503}
    unknown_from_its_leave_on(there, cut.at, cut.healed)
    the_south_noticed_nothing(there)


def unknown_from_its_leave_on(there: Scene, since: float, until: float) -> None:
    """What was sent to the Computer between two moments is 503, and 404 once it left.

    Raises:
        AssertionError: otherwise.
    """
    left = there.told_at(NORTH, LEAVE, WORKER)
    assert since < left < until
    over = [call for call in there.calls(NORTH, since) if call.ended is not None and call.ended < until]
    assert codes([call for call in over if call.sent < left]) <= {503, 404}
    assert all(call.ended is not None and call.ended > left for call in over if call.code == 404)
    assert codes([call for call in over if call.sent > left]) == {404}


def the_south_noticed_nothing(there: Scene) -> None:
    """All of its calls had results, and nobody came or went."""
    failed = [call for call in there.calls(SOUTH) if call.error is not None]
    assert not failed, failed[:10]
    assert there.noticed(SOUTH, WORKER) == []
    assert there.noticed(SOUTH, CALLER) == ["enter"]
