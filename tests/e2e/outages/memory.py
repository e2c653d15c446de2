"""A gateway wants more memory than it may have, and the kernel kills it."""

import asyncio
import time
from pathlib import Path

import psutil

from smcp_agent import SmcpAgent
from smcp_agent.errors import SmcpError
from smcp_testing.waiting import Stopwatch, eventually
from tests.e2e.actors.bare import member
from tests.e2e.actors.crowd import BACK_S, ENTER, LEAVE
from tests.e2e.outages.cuts import the_south_noticed_nothing
from tests.e2e.outages.offices import NORTH, SOUTH, WORKER
from tests.e2e.outages.scene import CALLER, NEIGHBOUR, codes, scene
from tests.e2e.worlds.container import Container
from tests.e2e.worlds.world import World

MIB = 1024 * 1024
ROOM = 12 * MIB
"""What the gateway may take beyond what it has."""
LARGE = 7 * MIB
ENOUGH = 2048 * MIB


async def a_gateway_is_killed_by_its_memory_limit(world: World, directory: Path) -> None:
    """The Agent knows of both gateways."""
    gateway = world.gateway(0).part
    assert isinstance(gateway, Container)
    urls = {NORTH: [world.url(0), world.url(1)], SOUTH: [world.url(1)]}
    async with scene(world, directory, urls) as there, member(world.url(0), "computer", NORTH, NEIGHBOUR):
        watcher = there.watchers[NORTH]
        await watcher.told(ENTER, computer=NEIGHBOUR)
        has = psutil.Process(gateway.pid).memory_info().rss
        await asyncio.to_thread(gateway.limit_memory, has + ROOM)
        eaters = [asyncio.create_task(_large(there.agents[NORTH])) for _ in range(4)]
        await eventually(lambda: not gateway.running, timeout=BACK_S, message="it lives")
        died = Stopwatch()
        assert await asyncio.to_thread(lambda: gateway.out_of_memory)
        await there.result_after(died, BACK_S, NORTH)
        fine = time.monotonic()
        await watcher.told(LEAVE, timeout=2 * world.lease_s + 5, computer=NEIGHBOUR)
        await asyncio.gather(*eaters)
        await asyncio.to_thread(gateway.limit_memory, ENOUGH)
        await gateway.start()
        assert there.noticed(NORTH, NEIGHBOUR) == ["enter", "leave"]
        assert there.noticed(NORTH, CALLER) in (["enter"], ["enter", "leave", "enter"]), "once, or taken over"
    assert codes(there.in_flight(NORTH, died.began)) <= {None, 503}
    assert codes(there.calls(NORTH, fine)) == {None}
    assert there.noticed(NORTH, WORKER) == []
    the_south_noticed_nothing(there)


async def _large(agent: SmcpAgent) -> None:
    """A result, or an error that says why not: it may be what kills the gateway."""
    try:
        result = await agent.call_tool(WORKER, "echo", {"text": "x" * LARGE}, timeout=60)
    except SmcpError as error:
        if error.code not in (408, 503):
            raise
    else:
        assert result.text == "x" * LARGE
