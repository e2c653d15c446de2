"""What an attack costs its victim while a bystander in another office keeps calling."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from smcp_testing.gateway_world import MIB, Client
from smcp_testing.waiting import Stopwatch

ENDED_S: Final = 60.0
USUAL: Final = 30
"""Calls before the attack. The slowest of them says how busy the machine is."""
SLOWER: Final = 20
"""A call may take so many times as long during the attack, which runs in the same process as the caller."""
LEAST_S: Final = 1.0
"""A call that is quicker than this is quick enough."""
PACE_S: Final = 0.004
"""Between two of its calls during the attack: 500 in a second are its quota (`SMCP_QUOTA_READS_PER_S`)."""
ANSWER: Final = {"from": "box"}


@dataclass(frozen=True)
class Cost:
    """Of one process, for one attack."""

    cpu_s: float
    peak_mib: float
    """Above what it had before."""


async def answer_skills(_: Any) -> dict[str, str]:
    """What the Computer `box` answers the bystander."""
    return ANSWER


async def seconds_of_a_call(client: Client, name: str) -> float:
    watch = Stopwatch()
    answer = await client.call("client:get_skills", {"agent": name, "computer": "box"}, timeout=30)
    assert answer == ANSWER
    return watch.undisturbed


@dataclass(frozen=True)
class Bystander:
    """An Agent that calls the Computer `box` of its office."""

    client: Client
    name: str
    usual_s: float
    """The slowest of its calls before anything else happened."""

    @classmethod
    async def ready(cls, client: Client, name: str) -> "Bystander":
        return cls(client, name, max([await seconds_of_a_call(client, name) for _ in range(USUAL)]))

    async def costs(self, pid: int, attack: Callable[[], Awaitable[object]]) -> Cost:
        """Attack while the bystander calls. Asserts that no call fails or takes much longer than usual."""
        calls: list[float] = []
        over = asyncio.Event()

        async def call_on() -> None:
            while not over.is_set():
                calls.append(await seconds_of_a_call(self.client, self.name))
                await asyncio.sleep(PACE_S)

        victim = psutil.Process(pid)
        before, size = victim.cpu_times(), victim.memory_info().rss
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # its peak counts from now on
        calling = asyncio.create_task(call_on())
        try:
            async with asyncio.timeout(ENDED_S):
                await attack()
        finally:
            over.set()
            await calling
        after = victim.cpu_times()
        peak = int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
        limit = max(SLOWER * self.usual_s, LEAST_S)
        assert max(calls) < limit, f"a call took {max(calls):.2f} s, and {self.usual_s:.3f} s at most before"
        return Cost(after.user + after.system - before.user - before.system, (peak - size) / MIB)
