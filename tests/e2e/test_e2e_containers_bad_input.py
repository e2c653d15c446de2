"""What operators get wrong, in containers: a collector that nobody reaches."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil
import pytest

from tests.e2e.actors.agents import Agent, sdk_agent
from tests.e2e.worlds.containers import open_containers
from tests.e2e.worlds.layout import ALPHA
from tests.e2e.worlds.world import LAB, Part

UNREACHABLE: Final = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://192.0.2.1:4318",  # kept free for documentation (RFC 5737)
    "OTEL_TRACES_SAMPLER": "always_on",
    "OTEL_BSP_MAX_QUEUE_SIZE": "256",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "64",
}
FIRST_CALLS: Final = 300
"""They fill every queue of spans, and what Python keeps at hand."""
CALLS: Final = 1500
GROWTH: Final = 8 * 1024 * 1024
"""Bytes. The spans of `CALLS` calls would take more than that."""

pytestmark = [pytest.mark.keeps_processes, pytest.mark.alone, pytest.mark.timeout(240)]


async def test_calls_work_and_memory_is_bounded_while_the_collector_is_unreachable(tmp_path: Path) -> None:
    async with (
        open_containers(tmp_path, gateways=1, registries=1, places=[ALPHA], environment=UNREACHABLE) as world,
        sdk_agent(world.url(0), LAB, "caller") as agent,
    ):
        services = [part for part in world.parts if part is not world.nats]
        await called(agent, FIRST_CALLS)
        before = memory(services)
        await called(agent, CALLS)
        after = memory(services)
        grown = {name: after[name] - before[name] for name in before}
        assert all(more < GROWTH for more in grown.values()), grown


async def called(agent: Agent, times: int) -> None:
    """Call that often, eight at a time; each is answered."""
    waiting = iter(range(times))

    async def one_after_another() -> None:
        for number in waiting:
            answer = await agent.call(ALPHA.name, "echo", {"text": str(number)})
            assert not answer.get("isError"), answer

    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(one_after_another())


def memory(parts: Sequence[Part]) -> dict[str, int]:
    """What each holds, in bytes (resident)."""
    return {part.name: psutil.Process(part.pid).memory_info().rss for part in parts}
