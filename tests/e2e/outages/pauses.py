"""Hosts and processes stand still for longer than a lease, or are restarted one after the other, and go on."""

import asyncio
import time
from pathlib import Path

from smcp_testing.waiting import Stopwatch, eventually
from tests.e2e.actors.bare import member
from tests.e2e.actors.crowd import ENTER, LEAVE
from tests.e2e.actors.flights import SLACK_S
from tests.e2e.outages.cuts import the_south_noticed_nothing, unknown_from_its_leave_on
from tests.e2e.outages.offices import NORTH, SOUTH, WORKER
from tests.e2e.outages.scene import LEFT_OFFICE_S, codes, flown, scene
from tests.e2e.worlds.world import World


async def a_computer_is_suspended_past_its_lease(world: World, directory: Path) -> None:
    part = world.computer(NORTH, WORKER).part
    async with scene(world, directory) as there:
        await there.flying(NORTH)
        await asyncio.to_thread(part.pause)
        at = time.monotonic()
        try:
            await there.unknown(NORTH, WORKER)
        finally:
            await asyncio.to_thread(part.resume)
        resumed = Stopwatch()
        await there.result_after(resumed, world.lease_s, NORTH)
        await there.back(NORTH, WORKER, since=resumed, within=world.lease_s)
        assert there.noticed(NORTH, WORKER) == ["leave", "enter"]
    flying = flown(there, NORTH, at)
    assert codes(flying) <= {None, 503}
    late = [call for call in flying if there.took[call.id] > at - call.sent + world.lease_s + SLACK_S]
    assert not late, late
    unknown_from_its_leave_on(there, at, resumed.began)
    the_south_noticed_nothing(there)


async def a_name_that_was_claimed_during_the_pause_stays_claimed(world: World, directory: Path) -> None:
    part = world.computer(NORTH, WORKER).part
    async with scene(world, directory) as there:
        watcher = there.watchers[NORTH]
        await asyncio.to_thread(part.pause)
        try:
            await watcher.told(LEAVE, timeout=LEFT_OFFICE_S, computer=WORKER)
            async with member(world.url(1), "computer", NORTH, WORKER):
                await watcher.told(ENTER, computer=WORKER)
                await asyncio.to_thread(part.resume)
                await eventually(
                    lambda: f"has a Computer named '{WORKER}' already" in part.log.read_text(encoding="utf-8"),
                    timeout=4 * world.lease_s + 5,
                )
                assert there.noticed(NORTH, WORKER) == ["leave", "enter"], "it stays taken"
                assert part.running
        finally:
            await asyncio.to_thread(part.resume)
        # The other one has gone, and it comes back by itself.
        await eventually(lambda: there.noticed(NORTH, WORKER) == ["leave", "enter"] * 2, timeout=4 * world.lease_s + 10)
    the_south_noticed_nothing(there)


async def all_processes_are_restarted_one_by_one(world: World, directory: Path) -> None:
    """The Agents know of both gateways. No call is lost."""
    urls = {NORTH: [world.url(0), world.url(1)], SOUTH: [world.url(1), world.url(0)]}
    async with scene(world, directory, urls) as there:
        for part in [*(gateway.part for gateway in world.gateways), *world.registries, *world.nodes]:
            code = await part.stop()
            assert code == 0 or part in world.nodes, f"{part.name} ended with {code}"
            await part.start()
    for office in urls:
        lost = [call for call in there.calls(office) if call.error is not None]
        assert not lost, f"{len(lost)} of {len(there.calls(office))}: {lost[:5]}"
        assert codes(there.calls(office)) == {None}
        assert "leave" not in there.noticed(office, WORKER)
