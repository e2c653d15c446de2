"""A Computer that is started again at once (`SMCP_RESTART`) moves: calls wait for it, and nobody sees it leave."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from smcp_agent import SmcpAgent
from smcp_testing.mcp_servers import configs
from smcp_testing.ports import Ports
from smcp_testing.waiting import eventually
from tests.e2e.actors.agents import SdkAgent, sdk_agent
from tests.e2e.actors.bare import member
from tests.e2e.actors.crowd import BACK_S, ENTER, LEAVE
from tests.e2e.actors.flights import Flight, in_flight
from tests.e2e.actors.traffic import Traffic, traffic
from tests.e2e.scenarios.calls import text
from tests.e2e.worlds.layout import ALPHA, Place, command
from tests.e2e.worlds.process import ForkedProcess
from tests.e2e.worlds.processes import open_processes
from tests.e2e.worlds.world import LAB, ComputerHost, World, child_environment

RESTART_S = 30
"""What is promised: the calls have so long, and the seat is kept for it."""
GONE_S = 5
"""The same for a Computer that does not come back."""
ROAMER = Place("roamer", LAB, "roamer")
Way = Callable[[World, Path, int], AbstractAsyncContextManager[ComputerHost]]


def restarts(move_s: int) -> dict[str, str]:
    return {"SMCP_RESTART": "true", "SMCP_MOVE_S": str(move_s), "SMCP_DRAIN_S": "20"}


@asynccontextmanager
async def over_nats(world: World, directory: Path, move_s: int) -> AsyncIterator[ComputerHost]:
    yield world.computer(LAB, ALPHA.name)


@asynccontextmanager
async def over_a_gateway(world: World, directory: Path, move_s: int) -> AsyncIterator[ComputerHost]:
    """It comes back by whichever of the two gateways it likes."""
    port, where = Ports().take(), ("--gateway", world.url(0), "--gateway", world.url(1))
    arguments = ("run", "--config", str(ROAMER.config(directory)), "--office", LAB, "--name", ROAMER.name, *where)
    env = child_environment(world.mark, SMCP_HEALTH_PORT=str(port), **restarts(move_s))
    ready = f"http://127.0.0.1:{port}/readyz"
    process = ForkedProcess(ROAMER.credential, [command("smcp-computer"), *arguments], env, directory, ready)
    await process.start()
    try:
        yield ComputerHost(LAB, ROAMER.name, process, ROAMER.ran(directory))
    finally:
        await process.stop()


@asynccontextmanager
async def world_of_restarts(directory: Path, move_s: int) -> AsyncIterator[World]:
    async with open_processes(
        directory,
        places=(ALPHA,),
        environment={"SMCP_MOVE_S": str(move_s)},
        of_their_own={ALPHA.credential: restarts(move_s)},
    ) as world:
        yield world


@pytest.mark.timeout(300)
@pytest.mark.rule("answers.rooms.moving.restart")
@pytest.mark.parametrize("way", [over_nats, over_a_gateway], ids=lambda way: way.__name__)
async def test_no_call_fails_while_a_computer_restarts_and_nobody_sees_it_leave(way: Way, tmp_path: Path) -> None:
    flights: list[Flight] = []
    async with (
        world_of_restarts(tmp_path, RESTART_S) as world,
        way(world, tmp_path, RESTART_S) as host,
        member(world.url(1), "computer", LAB, "watcher") as watcher,
        SmcpAgent(world.url(0), office=LAB, name="caller") as sdk,
    ):
        agent = SdkAgent(sdk)
        await watcher.told(ENTER, agent="caller")
        seen = len(watcher.notices)
        async with traffic(agent, host, host, host, timeout=RESTART_S) as streams:
            for _ in range(2):
                await more_calls(streams)
                async with in_flight(agent, host, flights, seconds=2) as running:
                    assert await host.part.stop() == 0
                    assert text(await running) == "slept 2.0"
                await host.part.start()
                await more_calls(streams)
        # announcements come in the order of the log: after this one nothing of the earlier ones can follow
        async with member(world.url(0), "computer", LAB, "last"):
            await watcher.told(ENTER, timeout=BACK_S, computer="last")
            moved = [notice for notice in watcher.notices[seen:] if notice[0] in (ENTER, LEAVE)]
        assert moved == [(ENTER, {"office_id": LAB, "computer": "last"})]
        told = [name for name, body in watcher.notices[seen:] if body.get("computer") == host.name]
        assert told.count("notify:update_tool_list") >= 2, "its tools may be others"
        assert [call for stream in streams for call in stream.failed] == []
    assert [flight.runs() for flight in flights] == [1, 1]


@pytest.mark.timeout(300)
@pytest.mark.rule("answers.tools.names.restart")
@pytest.mark.parametrize("way", [over_nats, over_a_gateway], ids=lambda way: way.__name__)
async def test_a_waiting_call_reaches_its_tool_although_other_servers_have_one_of_the_same_name(
    way: Way, tmp_path: Path
) -> None:
    others_ran = tmp_path / "others.ran"
    other = configs.stdio(log=others_ran)
    async with (
        world_of_restarts(tmp_path, RESTART_S) as world,
        way(world, tmp_path, RESTART_S) as host,
        SmcpAgent(world.url(0), office=LAB, name="caller") as sdk,
    ):
        agent = SdkAgent(sdk)
        file = (ALPHA if host.name == ALPHA.name else ROAMER).config(tmp_path)
        own = json.loads(file.read_text(encoding="utf-8"))["servers"]["toolbox"]

        async def lists(*names: str) -> bool:
            return set(names) == {name for name in await agent.tools(host.name) if name.endswith("append")}

        async with traffic(agent, host, host, timeout=RESTART_S) as streams:
            await more_calls(streams)
            configure(file, toolbox=own, added=other)
            await eventually(lambda: lists("append", "added__append"))
            await more_calls(streams)
            await host.part.stop()
            configure(file, toolbox=slow(own), added=other, new=other)
            await host.part.start()
            await more_calls(streams)
            assert await lists("append", "added__append", "new__append")
        assert [call for stream in streams for call in stream.failed] == []
    assert not others_ran.exists()


@pytest.mark.timeout(300)
@pytest.mark.rule("answers.rooms.moving.until")
@pytest.mark.parametrize("way", [over_nats, over_a_gateway], ids=lambda way: way.__name__)
async def test_a_computer_that_is_not_started_again_leaves_when_its_time_to_move_is_over(
    way: Way, tmp_path: Path
) -> None:
    async with (
        world_of_restarts(tmp_path, GONE_S) as world,
        way(world, tmp_path, GONE_S) as host,
        member(world.url(1), "computer", LAB, "watcher") as watcher,
        sdk_agent(world.url(0), LAB, "caller") as agent,
    ):
        assert ("computer", host.name) in await agent.room()
        await host.part.stop()
        assert ("computer", host.name) in await agent.room()
        await watcher.told(LEAVE, timeout=GONE_S + 3 * BACK_S, computer=host.name)
        await host.part.start()
        await watcher.told(ENTER, timeout=BACK_S, computer=host.name)


def configure(file: Path, **servers: Any) -> None:
    file.write_text(json.dumps({"servers": servers}), encoding="utf-8")


def slow(server: dict[str, Any]) -> dict[str, Any]:
    """The same MCP server, which takes longer to start."""
    parameters = server["server_parameters"]
    arguments = ["-c", 'sleep 2; exec "$0" "$@"', parameters["command"], *parameters["args"]]
    return {**server, "server_parameters": {**parameters, "command": "sh", "args": arguments}}


async def more_calls(streams: list[Traffic]) -> None:
    before = [len(stream.calls) for stream in streams]
    await eventually(
        lambda: all(len(stream.calls) > made + 5 for stream, made in zip(streams, before, strict=True)), timeout=60
    )
