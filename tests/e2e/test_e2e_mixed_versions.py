"""A system of the previous commit's images becomes one of this tree's, in the order of docs/compatibility.md."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from smcp_agent import SmcpAgent
from tests.e2e.actors.agents import SdkAgent
from tests.e2e.actors.bare import member
from tests.e2e.actors.traffic import Call, Traffic, traffic
from tests.e2e.worlds.container import Container
from tests.e2e.worlds.containers import open_containers
from tests.e2e.worlds.engine import ROOT, TAG, image, require_engine
from tests.e2e.worlds.layout import ALPHA, BETA
from tests.e2e.worlds.world import LAB, Part, World

PREVIOUS: Final = os.environ.get("PREVIOUS_COMMIT", "HEAD~1")
IMAGES: Final = ("smcp-gateway", "smcp-registry", "smcp-computer-testing")
BUILD_S: Final = 540.0
LARGE: Final = 3_000_000
"""Bytes of a result that goes over NATS in parts."""

pytestmark = [pytest.mark.keeps_processes, pytest.mark.alone, pytest.mark.timeout(900)]


@pytest.fixture
def previous() -> str:
    """The tag of the previous commit's images. Where this clone does not have that commit there is nothing to mix."""
    require_engine()
    known = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", f"{PREVIOUS}^{{commit}}"],
        cwd=ROOT, check=False, capture_output=True, timeout=60,
    )  # fmt: skip
    if known.returncode != 0:
        pytest.skip(f"this clone has no {PREVIOUS}: it is shallow (git fetch --deepen 1), or no clone")
    built = subprocess.run(
        [ROOT / "docker" / "previous.sh", PREVIOUS, *IMAGES],
        env={**os.environ, "IMAGE_TAG": "previous"}, check=False, capture_output=True, text=True, timeout=BUILD_S,
    )  # fmt: skip
    assert built.returncode == 0, built.stdout + built.stderr
    return "previous"


async def test_parts_are_updated_one_by_one_and_work_with_older_ones(tmp_path: Path, previous: str) -> None:
    """One Computer before all others, since they may at any time; else registries, gateways, Computers."""
    async with (
        open_containers(tmp_path, places=[ALPHA, BETA], tag=previous) as world,
        SmcpAgent([world.url(0), world.url(1)], office=LAB, name="caller") as agent,
    ):
        first, last = world.computers
        await works(world, agent)
        async with traffic(SdkAgent(agent), *world.computers) as streams:
            await renewed(first.part)
            await works(world, agent)
            failed = lost(streams)
            for part in [*world.registries, *(gateway.part for gateway in world.gateways)]:
                await renewed(part)
                await works(world, agent)
            assert lost(streams) == failed, "no call was lost by that"
            await renewed(last.part)
            await works(world, agent)
        assert {tag_of(part) for part in world.parts if part is not world.nats} == {TAG}


def lost(streams: Sequence[Traffic]) -> list[Call]:
    return [call for stream in streams for call in stream.failed]


async def works(world: World, agent: SmcpAgent) -> None:
    """Both Computers do what they are asked, and every gateway lets somebody in and says who is there."""
    for host in world.computers:
        assert "append" in {tool.name for tool in await agent.get_tools(host.name)}
        assert (await agent.call_tool(host.name, "echo", {"text": "大"})).text == "大"
        assert len((await agent.call_tool(host.name, "big", {"size": LARGE})).text) == LARGE
    there = {("agent", agent.name), *(("computer", host.name) for host in world.computers)}
    for number, gateway in enumerate(world.gateways):
        async with member(gateway.url, "computer", LAB, f"visitor {number}") as visitor:
            assert there <= await visitor.room()


async def renewed(part: Part) -> None:
    """Let it go on as its successor."""
    assert isinstance(part, Container)
    assert await part.stop() == 0
    kind = part.image.partition(":")[0]
    part.replace(image(kind))
    await part.start()


def tag_of(part: Part) -> str:
    assert isinstance(part, Container)
    return part.image.rpartition(":")[2]
