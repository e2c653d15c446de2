"""Names of offices, Agents and Computers that mean something elsewhere (to NATS, to files, to shells), or are none."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Final, Literal
from uuid import uuid4

import pytest

from smcp_agent import ComputerEntered, ComputerLeft, Event, SmcpAgent, ToolsChanged
from smcp_agent.errors import Malformed
from tests.e2e.actors.bare import BareMember, FlatError, Refused, member
from tests.e2e.actors.bystanders import undisturbed
from tests.e2e.scenarios.bad_input import flat
from tests.e2e.scenarios.calls import text
from tests.e2e.worlds.layout import Place
from tests.e2e.worlds.world import LAB, World

MISSING_COMMAND: Final = "/nowhere/no such program"
ODD: Final = Place(
    credential="host-odd",
    office="厨房 2.*.> /etc/passwd",
    name="灶台 *.> $JS.API =2A %00 🤖",
    servers={"ghost": {"type": "stdio", "server_parameters": {"command": MISSING_COMMAND, "args": []}}},
)
"""A native Computer that every world of this module has; one of its MCP servers cannot be started."""

BACK_S: Final = 30.0
FINE: Final = (
    "a.b", ".", "..", "a b", " ", "*", ">", "a.*.>", "厨房", "=2A", "%41", "-", "_", "$SYS", "_INBOX.>", "a/b\\c",
    "\u200b", "0", "null", "é", "'\"`;", "x" * 128, "🤖" * 128,
)  # fmt: skip
NO_NAMES: Final = ("", "x" * 10_000, "字" * 10_000, "x" * 129, "a\nb", "\x00", "\x7f")


@pytest.mark.rule("answers.names.text")
async def any_text_is_a_legal_name(world: World) -> None:
    """Each of them as the name of an office, of its Agent and of a Computer in it, all at the same time."""
    async with undisturbed(world), AsyncExitStack() as stack:
        watchers: dict[str, BareMember] = {}
        for number, name in enumerate(FINE):
            office = f"{name}" if len(name) == 128 else f"{name}{uuid4().hex[:8]}"
            watchers[office] = await stack.enter_async_context(member(world.url(number), "agent", office, name))
        for number, (office, watcher) in enumerate(watchers.items()):
            async with member(world.url(number + 1), "computer", office, watcher.name) as computer:
                await watcher.told("notify:enter_office", computer=computer.name, office_id=office)
                assert await watcher.room() == {("agent", watcher.name), ("computer", computer.name)}
                assert await computer.room() == await watcher.room()
            await watcher.told("notify:leave_office", computer=computer.name, office_id=office)
        for office, watcher in watchers.items():
            told = [(event, data["office_id"]) for event, data in watcher.notices]
            assert told == [("notify:enter_office", office), ("notify:leave_office", office)]


async def a_name_with_wildcards_reaches_only_its_own_computer(world: World) -> None:
    """What is a wildcard on NATS names a Computer that does not exist, and an office in which nobody is."""
    mark = uuid4().hex
    async with undisturbed(world), member(world.url(0), "agent", LAB, "caller") as caller:
        for name in ("*", ">", "alph*", "alpha.>", "alpha ", "Alpha", "=61lpha", "../alpha", "alpha\u200b"):
            with pytest.raises(FlatError) as refused:
                await caller.call(name, "append", {"mark": mark})
            assert refused.value.code == 404
        for office in ("*", ">", f"{LAB}.>", f"{LAB} "):
            async with member(world.url(1), "agent", office, "other") as other:
                assert await other.room() == {("agent", "other")}
                with pytest.raises(FlatError) as refused:
                    await other.call("alpha", "append", {"mark": mark})
                assert refused.value.code == 404
        assert text(await caller.call("alpha", "echo", {"text": "still there"})) == "still there"
        assert caller.notices == []
    for host in world.computers:
        assert not host.ran.exists() or mark not in host.ran.read_text(encoding="utf-8").split()


@pytest.mark.rule("answers.names.400")
async def an_illegal_name_is_refused(world: World) -> None:
    async with undisturbed(world), member(world.url(0), "agent", LAB, "caller") as caller:
        for name in NO_NAMES:
            await _refused_to_join(world, name, "somebody", naming="office_id")
            await _refused_to_join(world, f"office {uuid4().hex}", name, naming="name")
            for event, field in (
                ("client:get_tools", "computer"),
                ("client:get_config", "computer"),
                ("client:tool_call", "computer"),
                ("server:list_room", "office_id"),
            ):
                good = {"agent": "caller", "req_id": uuid4().hex, "office_id": LAB, "computer": "alpha"}
                call = {"tool_name": "echo", "params": {"text": "x"}, "timeout": 5}
                error = flat(await caller.ack(event, {**good, **call, field: name}))
                assert (error.code, error.details["field"]) == (400, field)
                assert len(str(error)) < 1000
            done, why, *_ = await caller.ack("server:leave_office", {"office_id": name})
            assert done is False
            assert why.startswith("400 office_id: ")
            for office, own in ((name, "bot"), ("office", name)):
                with pytest.raises(Malformed):
                    async with SmcpAgent(world.url(0), office=office, name=own):
                        pass
        assert ("agent", "caller") in await caller.room()


async def a_computer_with_an_unusual_name_works(world: World) -> None:
    """A native one, as a process: called, listed, asked for its configuration, seen to change, to go and to come."""
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


async def _comes_or_goes(events: AsyncIterator[Event]) -> Event:
    """The next enter or leave: the Agent itself may be moved to another gateway meanwhile, and hears of that, too."""
    while not isinstance(event := await anext(events), ComputerEntered | ComputerLeft):
        pass
    return event


async def _refused_to_join(world: World, office: str, name: str, *, naming: Literal["office_id", "name"]) -> None:
    stranger = BareMember("computer", office, name)
    await stranger.connect(world.url(1))
    try:
        with pytest.raises(Refused, match=f"^400 {naming}: "):
            await stranger.join()
        again: Any = await stranger.ack("server:leave_office", {"office_id": LAB})
        assert again[0] is False
    finally:
        await stranger.close()
