"""What only containers show: health as the engine sees it, what the images have and lack. Faults are the outages."""

from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from smcp_agent import SmcpAgent
from smcp_testing.waiting import eventually
from tests.e2e.scenarios.npm_servers import NPM
from tests.e2e.worlds.container import Container
from tests.e2e.worlds.containers import open_containers
from tests.e2e.worlds.engine import ROOT
from tests.e2e.worlds.layout import Place
from tests.e2e.worlds.world import LAB, Part

WHEELS: Final = ROOT / "build" / "images" / "wheels"
HEALTHY_S: Final = 45.0
ASKED_S: Final = 1.0
"""So often the engine is to ask; in the images it is every 10 s."""


pytestmark = [pytest.mark.keeps_processes, pytest.mark.alone, pytest.mark.timeout(240)]


def stdio(command: str, *arguments: str) -> dict[str, Any]:
    return {"type": "stdio", "server_parameters": {"command": command, "args": list(arguments)}}


def said(part: Part, health: str) -> bool:
    """What the engine says of its health."""
    assert isinstance(part, Container)
    return part.health == health


async def test_uvx_and_npx_run_mcp_servers_in_the_image(tmp_path: Path) -> None:
    offline = ("--offline", "--no-index", "--find-links", str(WHEELS))
    servers = {
        "time": stdio("uvx", *offline, "mcp-server-time"),
        "files": stdio("npx", "--offline", "--prefix", str(NPM), "mcp-server-filesystem", "/etc/smcp"),
        "absent": stdio("no-such-program"),
    }
    place = Place("host-real", LAB, "real", servers)
    async with (
        open_containers(tmp_path, more=[place], shown=[WHEELS, NPM]) as world,
        SmcpAgent(world.url(), office=LAB, name="caller") as agent,
    ):

        async def listed_all() -> bool:
            names = {tool.name for tool in await agent.get_tools("real")}
            return {"convert_time", "list_directory", "append"} <= names

        await eventually(listed_all, timeout=60, message="what cannot start keeps nobody else from it")
        when = {"source_timezone": "Asia/Shanghai", "time": "16:30", "target_timezone": "Asia/Tokyo"}
        converted = await agent.call_tool("real", "convert_time", when)
        assert "17:30:00+09:00" in converted.text
        listed = await agent.call_tool("real", "list_directory", {"path": "/etc/smcp"})
        assert not listed.is_error, listed.text
        config = await agent.get_config("real")
        assert "absent" in str(config)


async def test_docker_shows_containers_as_unhealthy_while_nats_is_down(tmp_path: Path) -> None:
    few = partial(open_containers, gateways=1, registries=1, places=[Place("host-alpha", LAB, "alpha")])
    async with few(tmp_path, health_s=ASKED_S) as world:
        services = [part for part in world.parts if part is not world.nats]
        for part in services:
            await eventually(partial(said, part, "healthy"), timeout=HEALTHY_S, message=part.name)
        world.nats.pause()
        try:
            for part in services:
                await eventually(partial(said, part, "unhealthy"), timeout=3 * HEALTHY_S, message=part.name)
                assert part.running, "it waits for its NATS"
        finally:
            world.nats.resume()
        for part in services:
            await eventually(partial(said, part, "healthy"), timeout=HEALTHY_S, message=part.name)
