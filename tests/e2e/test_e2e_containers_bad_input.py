"""What operators get wrong, in containers: credentials that NATS refuses, a collector that nobody reaches."""

import asyncio
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import psutil
import pytest

from smcp_testing.waiting import eventually
from tests.e2e.actors.agents import Agent, lists, sdk_agent
from tests.e2e.actors.bare import member
from tests.e2e.scenarios.wrong_secrets import says_refused
from tests.e2e.worlds.container import Container
from tests.e2e.worlds.containers import open_containers
from tests.e2e.worlds.engine import docker
from tests.e2e.worlds.layout import ALPHA
from tests.e2e.worlds.world import LAB, Part, World

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

pytestmark = [pytest.mark.alone, pytest.mark.timeout(240)]


@pytest.fixture(autouse=True)
def _nothing_left_behind(_no_task_left: None) -> None:
    """In place of that of all tests: the world is looked at when it ends."""


def logged(part: Part, words: str) -> bool:
    return words in part.log.read_text(encoding="utf-8")


def passwords(conf: str) -> dict[str, str]:
    """The password that nats-server takes of each user, as its configuration has it."""
    return dict(re.findall(r'user: "([^"]+)"\s+password: ("[^"]+")', conf))


def told_anew(world: World, conf: str) -> None:
    """Let nats-server read another configuration."""
    (world.credentials.parent / "nats-server.conf").write_text(conf, encoding="utf-8")
    assert isinstance(world.nats, Container)
    docker("kill", "--signal", "HUP", world.nats.id)


async def test_a_gateway_whose_credentials_nats_refuses_says_so_and_keeps_trying(tmp_path: Path) -> None:
    async with (
        open_containers(tmp_path, registries=1, places=[ALPHA]) as world,
        sdk_agent(world.url(0), LAB, "caller") as agent,
    ):
        gateway = world.gateway(1)
        right = (world.credentials.parent / "nats-server.conf").read_text(encoding="utf-8")
        known, pid = passwords(right), gateway.part.pid
        told_anew(world, right.replace(known[gateway.part.name], known[world.gateway(0).part.name]))
        try:
            await eventually(partial(says_refused, gateway.part), timeout=30)
            words = f"refuses the credential '{gateway.part.name}'"
            await eventually(lambda: logged(gateway.part, words), timeout=30)
            answer = await agent.call(ALPHA.name, "echo", {"text": "by the other gateway"})
            assert not answer.get("isError"), answer
        finally:
            told_anew(world, right)
        await gateway.part.ready()
        assert gateway.part.pid == pid, "it was never restarted"
        async with member(gateway.url, "computer", LAB, "newcomer"):
            await lists(agent, ("agent", "caller"), ("computer", ALPHA.name), ("computer", "newcomer"))


async def test_calls_go_on_and_memory_stays_bounded_while_nobody_reaches_the_collector(tmp_path: Path) -> None:
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
