"""What is over leaves nothing behind: counted by asking each process of the system, and nats-server."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from statistics import median_low
from typing import Any, Final

import aiohttp
import pytest

from smcp_testing.held_counts import FOR_SOME_TIME
from smcp_testing.profiles import scaled
from smcp_testing.waiting import eventually
from tests.e2e.actors.bare import BareMember, FlatError, member
from tests.e2e.actors.socketio_computer import socketio_computer
from tests.e2e.worlds.world import LAB, World

CALLS: Final = scaled(ci=30, soak=1000)
AT_ONCE: Final = 100
SAMPLES: Final = 5
QUIET_S: Final = 30.0
SILENT: Final = "silent"
COMPUTERS: Final = ("alpha", "beta", SILENT)

Counts = Mapping[str, int]
"""How many, by process and by what they are."""


class Auditor:
    """Asks the processes of a world what they hold."""

    def __init__(self, world: World, http: aiohttp.ClientSession) -> None:
        self._parts = [part for part in world.parts if part is not world.nats or not world.spread]
        self._monitor = f"http://{world.nats_model.http}" if world.nats_model.http else None
        self._http = http

    async def held(self) -> dict[str, int]:
        """All of it now."""
        counts: dict[str, int] = {}
        for part in self._parts:
            for source, held in (await self._read(part.stats_url)).items():
                counts |= {f"{part.name}: {source}.{what}": count for what, count in held.items()}
        if self._monitor is not None:
            counts["nats: subscriptions"] = (await self._read(f"{self._monitor}/subsz"))["num_subscriptions"]
            counts["nats: connections"] = (await self._read(f"{self._monitor}/connz"))["num_connections"]
        return counts

    async def held_at_rest(self) -> dict[str, int]:
        """The median of several times: what comes and goes by itself (a lease is renewed) is not in it. Not the least:
        for moments nats-py has fewer tasks than at rest, and later that moment would have to be met again."""
        samples = [await self.held() for _ in range(SAMPLES)]
        return {what: median_low(each[what] for each in samples) for what in samples[0]}

    async def _read(self, url: str) -> dict[str, Any]:
        async with self._http.get(url) as response:
            assert response.status == 200, f"{url}: {response.status}"
            read: dict[str, Any] = await response.json()
            return read


@asynccontextmanager
async def auditor(world: World) -> AsyncIterator[Auditor]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as http:
        yield Auditor(world, http)


def more(now: Counts, before: Counts) -> dict[str, int]:
    """Of what there is more than before, and how much; but for what is kept for some time."""
    return {what: count for what, count in _grown(now, before).items() if not _is_kept_for_some_time(what)}


def kept(now: Counts, before: Counts) -> dict[str, int]:
    """How much more there is of what is kept for some time."""
    return {what: count for what, count in _grown(now, before).items() if _is_kept_for_some_time(what)}


def _grown(now: Counts, before: Counts) -> dict[str, int]:
    return {what: count - before.get(what, 0) for what, count in now.items() if count > before.get(what, 0)}


def _is_kept_for_some_time(what: str) -> bool:
    return what.rpartition(".")[2] in FOR_SOME_TIME


@pytest.mark.rule("answers.calls.timeout.clean")
async def timed_out_calls_leave_nothing_behind_in_any_process(world: World) -> None:
    async with auditor(world) as auditor_, member(world.url(0), "agent", LAB, "caller") as agent:
        async with socketio_computer(world.url(1), LAB, SILENT) as silent:
            for number, computer in enumerate(COMPUTERS):
                assert await agent.tools(computer)
                await _times_out(agent, computer, f"first {number}")  # what is made once is there from now on
            before = await auditor_.held_at_rest()
            outcomes = Counter[str]()
            for start in range(0, CALLS, AT_ONCE):
                numbers = range(start, min(start + AT_ONCE, CALLS))
                async with asyncio.TaskGroup() as group:
                    calls = [
                        group.create_task(_times_out(agent, COMPUTERS[number % len(COMPUTERS)], f"r{number}"))
                        for number in numbers
                    ]
                    if start == 0:
                        await _are_seen(auditor_, before)
                outcomes.update(call.result() for call in calls)
            assert outcomes.total() == CALLS

            async def nothing_is_left() -> bool:
                left = more(await auditor_.held(), before)
                assert not left, left
                return True

            await eventually(nothing_is_left, timeout=QUIET_S, message="calls that timed out left something behind")
            # So that none runs twice: a key where it ran, a cancel with all of the office; they go by themselves.
            assert all(count <= CALLS for count in kept(await auditor_.held(), before).values())
            assert len(silent.ran) == len(set(silent.ran))
        await agent.told("notify:leave_office", computer=SILENT)


async def _are_seen(auditor_: Auditor, before: Counts) -> None:
    """Calls that run are counted on both sides, so that one that stayed would be."""

    async def seen() -> bool:
        found = more(await auditor_.held(), before)
        assert any(what.endswith("gateway.calls") for what in found), found
        assert any(what.endswith("computer.tool_tasks") for what in found), found
        assert any(what.endswith("gateway.running_calls") for what in found), found
        return True

    # they run for a second
    await eventually(seen, timeout=QUIET_S, message="calls in flight are not counted")


async def _times_out(agent: BareMember, computer: str, req_id: str) -> str:
    """Who stopped the call: its Computer, or the gateway."""
    try:
        result = await agent.call(computer, "sleep", {"seconds": 600}, timeout=2, req_id=req_id)
    except FlatError as error:
        if error.code != 408:
            raise
        return "gateway"
    assert result["meta"]["a2c_timeout"] is True, result
    return "computer"
