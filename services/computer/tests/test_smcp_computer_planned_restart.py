"""A Computer that is restarted (`SMCP_RESTART`) beside a gateway: its calls wait, and nobody sees it leave."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from smcp_computer.computer import Computer
from smcp_computer.config.file import parse_config
from smcp_computer.config.inputs import InputResolver
from smcp_computer.gateway import open_gateway_computer
from smcp_computer.mcp.fleet import Fleet
from smcp_computer.mcp.transports import Limits
from smcp_computer.settings import ComputerSettings
from smcp_computer.tools import Catalogue
from smcp_service.lifecycle import background
from smcp_testing.computer_world import native_computer
from smcp_testing.gateway_world import World, connected, gateway_world
from smcp_testing.mcp_servers import configs
from smcp_testing.waiting import eventually

OFFICE, NAME = "office", "box"
SERVERS = {"toolbox": configs.stdio()}
Open = Callable[[World], AbstractAsyncContextManager[Computer]]


@asynccontextmanager
async def over_nats(world: World) -> AsyncIterator[Computer]:
    async with native_computer(world, OFFICE, NAME, SERVERS, restart=True) as computer:
        yield computer


@asynccontextmanager
async def over_a_gateway(world: World) -> AsyncIterator[Computer]:
    settings = ComputerSettings(
        gateway_url=world.url, config=Path("unused"), office=OFFICE, name=NAME, drain_s=10.0, restart=True
    )
    config = parse_config(json.dumps({"servers": SERVERS}))
    async with open_gateway_computer(settings, config=config, environ={}) as computer:
        await asyncio.wait_for(computer.wait_ready(), 60)
        yield computer


@pytest.mark.rule("answers.rooms.moving.restart")
@pytest.mark.parametrize("way", [over_nats, over_a_gateway], ids=lambda way: way.__name__)
async def test_a_call_waits_for_the_next_process_of_a_computer_and_nobody_sees_it_leave(
    nats_url: str, way: Open
) -> None:
    async with gateway_world(nats_url) as world, connected(world.url) as anna:
        assert await anna.join("agent", "anna", OFFICE) == [True, None]

        async def echo(req_id: str) -> Any:
            request = {"agent": "anna", "req_id": req_id, "computer": NAME, "tool_name": "echo", "timeout": 60}
            return await anna.call("client:tool_call", {**request, "params": {"text": req_id}}, timeout=70)

        async with way(world):
            await eventually(lambda: len(anna.told("notify:enter_office")) == 1)
            assert (await echo("before"))["content"][0]["text"] == "before"
        waiting = asyncio.create_task(echo("between"))
        room = await anna.call("server:list_room", {"agent": "anna", "req_id": "r", "office_id": OFFICE})
        assert NAME in [each["name"] for each in room["sessions"]]
        async with way(world):
            answer = await waiting
            assert (answer.get("isError"), answer["content"][0]["text"]) == (False, "between")
            # what Agents know of the process before may be old
            updates = {f"notify:update_{what}" for what in ("config", "tool_list", "desktop", "finder")}
            await eventually(lambda: updates <= {event for event, said in anna.events if said == {"computer": NAME}})
            await eventually(lambda: any(said.get("a2c_missed") for said in anna.told("notify:resources/list_changed")))
        assert len(anna.told("notify:enter_office")) == 1
        assert anna.told("notify:leave_office") == []


async def test_a_call_of_a_tool_that_is_not_listed_yet_waits_for_the_servers_that_start(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    late, fails = configs.hostile(), {"type": "stdio", "server_parameters": {"command": "true"}}
    parameters = late["server_parameters"]
    held = 'until [ -e "$0" ]; do sleep 0.05; done; exec "$@"'
    late["server_parameters"] = {
        "command": "sh",
        "args": ["-c", held, str(gate), parameters["command"], *parameters["args"]],
    }
    config = parse_config(json.dumps({"servers": {"late": late, "fails": fails}}))

    def changed() -> None:
        catalogue.refresh()

    fleet = Fleet(config, InputResolver({}, {}), limits=Limits(), on_change=changed)
    catalogue = Catalogue(fleet.supervisors)
    async with background() as tasks:
        run = tasks.start(fleet.run(), name="fleet")
        waiting = [asyncio.create_task(catalogue.awaited(name, 60)) for name in ("pid", "unknown")]
        await eventually(fleet.supervisors["fails"].settled.is_set)
        assert await catalogue.awaited("pid", 0.05) is None
        assert not any(each.done() for each in waiting)
        gate.touch()
        found, unknown = await asyncio.gather(*waiting)
        assert (found and found.ref.server, unknown) == ("late", None)
        fleet.stop()
        await asyncio.wait([run])
