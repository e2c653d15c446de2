"""A Computer with an unusual name and a broken MCP server; processes whose secret nats-server does not take."""

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Final
from uuid import uuid4

import aiohttp
import pytest

from smcp_agent import ComputerEntered, ComputerLeft, Event, SmcpAgent, ToolsChanged
from smcp_testing.waiting import eventually
from tests.e2e.actors.bare import member
from tests.e2e.worlds.kinds import CONTAINERS, OPEN, PROCESSES, STANDALONE, kinds
from tests.e2e.worlds.layout import ALPHA, BETA, Place
from tests.e2e.worlds.process import Launched
from tests.e2e.worlds.world import LAB, Part, World

pytestmark = pytest.mark.keeps_processes

MISSING_COMMAND: Final = "/nowhere/no such program"
ODD: Final = Place(
    credential="host-odd",
    office="厨房 2.*.> /etc/passwd",
    name="灶台 *.> $JS.API =2A %00 🤖",
    servers={"ghost": {"type": "stdio", "server_parameters": {"command": MISSING_COMMAND, "args": []}}},
)
"""A native Computer that every world here has; one of its MCP servers cannot be started."""

BACK_S: Final = 30.0
REFUSED: Final = "nats-server refuses the credential"
_SEEN_S: Final = 60.0
"""Until a part that was started has said it."""


@pytest.fixture(scope="module", params=kinds(STANDALONE, PROCESSES, CONTAINERS))
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One world for all scenarios: none of them may hurt it."""
    opened = OPEN[request.param](tmp_path_factory.mktemp(request.param), more=[ODD])
    with asyncio.Runner() as runner:
        yield runner.run(opened.__aenter__())
        runner.run(opened.__aexit__(None, None, None))


async def test_a_computer_with_an_unusual_name_works(world: World) -> None:
    """A native one, as a process: called, listed, asked for its configuration, seen to change, to go and to come."""
    with world.telling():
        await _a_computer_with_an_unusual_name_works(world)


async def _a_computer_with_an_unusual_name_works(world: World) -> None:
    host = world.computer(ODD.office, ODD.name)
    tool = f"extra_{uuid4().hex[:8]}"
    async with SmcpAgent(world.url(0), office=ODD.office, name="代理 *.>") as agent:
        assert agent.computers() == [ODD.name]
        assert {tool.name for tool in await agent.tools(ODD.name)} >= {"echo", "add", "append"}
        assert {tool["function"]["name"] for tool in await agent.openai_tools()} >= {"echo", "add", "append"}
        said = f"你好 *.> {uuid4().hex}"
        assert (await agent.call_tool(ODD.name, "echo", {"text": said})).text == said
        assert (await agent.call_tool(ODD.name, "append", {"mark": tool})).text == tool
        assert host.ran.read_text(encoding="utf-8").split().count(tool) == 1
        assert (await agent.get_config(ODD.name)).servers.keys() == {"toolbox", "ghost"}
        room = {(each.role, each.name, each.office_id) for each in await agent.list_room()}
        assert room == {("agent", "代理 *.>", ODD.office), ("computer", ODD.name, ODD.office)}

        stream = agent.events()
        async with asyncio.timeout(4 * BACK_S):
            await agent.call_tool(ODD.name, "add_tool", {"name": tool})
            changed = await anext(stream)
            assert isinstance(changed, ToolsChanged)
            assert changed.computer == ODD.name
            assert tool in {each.name for each in changed.tools}
            assert (await agent.call_tool(ODD.name, tool)).text == "extra"
            assert await host.part.stop() == 0
            assert await _comes_or_goes(stream) == ComputerLeft(ODD.name)
            await host.part.start()
            assert await _comes_or_goes(stream) == ComputerEntered(ODD.name)
        assert (await agent.call_tool(ODD.name, "echo", {"text": said})).text == said

    def told() -> bool:
        lines = host.part.log.read_text(encoding="utf-8").splitlines()
        return any("'ghost'" in line and MISSING_COMMAND in line and "does not exist" in line for line in lines)

    await eventually(told, message="the log does not name the server and its command")


async def _comes_or_goes(events: AsyncIterator[Event]) -> Event:
    """The next enter or leave: the Agent itself may be moved to another gateway meanwhile, and hears of that, too."""
    while not isinstance(event := await anext(events), ComputerEntered | ComputerLeft):
        pass
    return event


async def a_process_with_a_wrong_secret_says_so_and_works_once_it_is_right(world: World) -> None:
    """A registry, a gateway and a Computer, one after the other; the others work meanwhile."""
    async with SmcpAgent(world.url(0), office=LAB, name="caller") as agent:
        for part in (world.registries[-1], world.gateway(1).part, world.computer(LAB, BETA.name).part):
            assert isinstance(part, Launched)
            assert await part.stop() == 0
            file = world.credentials / f"{part.name}.json"
            right = file.read_text(encoding="utf-8")
            file.write_text(json.dumps({**json.loads(right), "secret": "nobody's"}), encoding="utf-8")
            try:
                part.launch()
                await eventually(partial(says_refused, part), timeout=_SEEN_S, message=part.name)
                pid = part.pid
                answer = await agent.call_tool(ALPHA.name, "echo", {"text": "by the others"})
                assert answer.text == "by the others"
            finally:
                file.write_text(right, encoding="utf-8")
            await part.ready()
            assert part.pid == pid, "it was not restarted"
        assert (await agent.call_tool(BETA.name, "echo", {"text": "again"})).text == "again"


async def a_gateway_whose_secret_is_revoked_says_so_and_reconnects(world: World) -> None:
    gateway, other = world.gateway(1), world.gateway(0)
    conf = world.credentials.parent / "nats-server.conf"
    right, pid = conf.read_text(encoding="utf-8"), gateway.part.pid
    # The password that nats-server takes of each user, as its configuration has it.
    known = dict(re.findall(r'"user": "([^"]+)",\s+"password": ("[^"]+")', right))
    async with SmcpAgent(other.url, office=LAB, name="caller") as agent:
        _configure(world, right.replace(known[gateway.part.name], known[other.part.name]))
        try:
            await eventually(partial(says_refused, gateway.part), timeout=_SEEN_S)
            words = f"refuses the credential '{gateway.part.name}'"
            await eventually(lambda: words in gateway.part.log.read_text(encoding="utf-8"), timeout=_SEEN_S)
            answer = await agent.call_tool(ALPHA.name, "echo", {"text": "by the other gateway"})
            assert answer.text == "by the other gateway"
        finally:
            _configure(world, right)
        await gateway.part.ready()
        assert gateway.part.pid == pid, "it was not restarted"
        async with member(gateway.url, "computer", LAB, "newcomer"):
            await eventually(partial(_sees, agent, "newcomer"))


def _configure(world: World, conf: str) -> None:
    """Let nats-server read another configuration."""
    (world.credentials.parent / "nats-server.conf").write_text(conf, encoding="utf-8")
    os.kill(world.nats.pid, signal.SIGHUP)


async def _sees(agent: SmcpAgent, name: str) -> bool:
    return name in {session.name for session in await agent.list_room()}


async def says_refused(part: Part) -> bool:
    """Whether its `/readyz` is 503, and says that nats-server does not take its credential."""
    assert isinstance(part, Launched)
    try:
        async with aiohttp.ClientSession() as http, http.get(part.ready_url) as answer:
            said = (await answer.json())["checks"]
    except aiohttp.ClientConnectionError:
        return False  # it has only been started
    return answer.status == 503 and said.get("nats") == REFUSED


SPREAD: list[Callable[[World], Awaitable[None]]] = [
    a_process_with_a_wrong_secret_says_so_and_works_once_it_is_right,
    a_gateway_whose_secret_is_revoked_says_so_and_reconnects,
]


@pytest.mark.timeout(240)  # three processes end and start, in containers too
@pytest.mark.parametrize("scenario", SPREAD, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("world", kinds(PROCESSES, CONTAINERS), indirect=True)
async def test_wrong_secrets(world: World, scenario: Callable[[World], Awaitable[None]]) -> None:
    with world.telling():
        await scenario(world)
