"""The unchanged published Computer on one gateway and our own Agent on the other."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bench import published_env
from smcp_agent import (
    ComputerEntered,
    ComputerLeft,
    ConfigChanged,
    DesktopChanged,
    Event,
    Notified,
    SmcpAgent,
    TooLarge,
    ToolsChanged,
    Unavailable,
    may_have_run,
)
from smcp_testing.gateway_world import MIB, World, gateway_world
from smcp_testing.waiting import OWNER_FIRST_S, eventually
from tests.interop.published import TOOLS, PublishedComputer, published_computer
from tests.interop.published_pair import LEASE_S, OFFICE

pytestmark = pytest.mark.timeout(published_env.INSTALL_S + 120)

LISTED = {f"tools__{tool}" for tool in TOOLS}
SAID = 512 * 1024


@asynccontextmanager
async def our_agent_and_its_box(
    nats_url: str, home: Path
) -> AsyncIterator[tuple[World, SmcpAgent, PublishedComputer, list[Event]]]:
    events: list[Event] = []
    async with (
        gateway_world(nats_url, gateways=2, lease_s=LEASE_S) as world,
        SmcpAgent(world.gateways[0].url, office=OFFICE, name="anna") as agent,
        published_computer(home, world.gateways[1].url, OFFICE, "box") as box,
    ):
        agent.on_event(events.append)
        await box.ready()
        await eventually(lambda: any(isinstance(event, ToolsChanged) for event in events))
        yield world, agent, box, events


async def test_our_agent_lists_calls_times_out_and_cancels_its_tools(nats_url: str, tmp_path: Path) -> None:
    journal = tmp_path / "journal"

    def ran() -> list[str]:
        return journal.read_text().splitlines() if journal.exists() else []

    async with our_agent_and_its_box(nats_url, tmp_path) as (world, agent, _box, events):
        assert events[0] == ComputerEntered("box")
        assert {tool.name for tool in await agent.tools("box")} == LISTED
        assert {tool["function"]["name"] for tool in await agent.openai_tools()} == LISTED
        assert [(each.role, each.name) for each in await agent.list_room() if each.name != "anna"] == [
            ("computer", "box")
        ]
        assert [server.name for server in (await agent.get_config("box")).servers.values()] == ["tools"]
        assert (await agent.call_tool("box", "tools__echo", {"text": "深 \u2028"})).text == "深 \u2028"
        assert (await agent.call_tool("box", "tools__echo", {"text": "x" * SAID})).text == "x" * SAID
        with pytest.raises(TooLarge) as refused:  # its socket would not take it
            await agent.call_tool("box", "tools__echo", {"text": "x" * 5 * MIB})
        assert refused.value.details["limit"] == 4 * MIB
        for tool in ("fail", "blow_up", "no_such_tool"):
            assert (await agent.call_tool("box", f"tools__{tool}")).is_error
        many = await asyncio.gather(*(agent.call_tool("box", "tools__echo", {"text": str(n)}) for n in range(20)))
        assert [result.text for result in many] == [str(n) for n in range(20)]
        late = await agent.call_tool("box", "tools__slow", {"seconds": 60}, timeout=OWNER_FIRST_S)
        assert (late.is_error, late.timed_out) == (True, True)
        await eventually(lambda: ran() == ["slow", "cancelled"])
        call = asyncio.create_task(agent.call_tool("box", "tools__slow", {"seconds": 60}))
        await eventually(lambda: len(ran()) == 3)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await eventually(lambda: ran() == ["slow", "cancelled"] * 2)
        await eventually(lambda: sum(gateway.computers.owner.running for gateway in world.gateways) == 0)


async def test_our_agent_gets_its_updates_and_its_death_ends_the_calls(nats_url: str, tmp_path: Path) -> None:
    async with our_agent_and_its_box(nats_url, tmp_path) as (_, agent, box, events):

        async def told(*wanted: Event) -> None:
            await eventually(lambda: [event for event in events if event in wanted] == list(wanted))
            events.clear()

        await box.do("update config")
        await told(ConfigChanged("box"))
        await box.do("update desktop")
        await told(DesktopChanged("box"))
        for what in ("skills", "what_comes_later"):
            await box.do(f"update {what}")
            await told(Notified(f"notify:update_{what}", {"computer": "box"}))
        await agent.call_tool("box", "tools__one_more", {"name": "two"})

        async def listed() -> bool:
            return "tools__two" in {tool.name for tool in await agent.tools("box")}

        await eventually(listed)
        events.clear()
        await box.do("switch another")
        await told(ComputerLeft("box"))
        assert agent.computers() == []
        await box.do(f"switch {OFFICE}")
        await told(ComputerEntered("box"))
        call = asyncio.create_task(agent.call_tool("box", "tools__slow", {"seconds": 60}))
        await eventually((tmp_path / "journal").exists)
        await box.kill()
        async with asyncio.timeout(30):
            with pytest.raises(Unavailable) as lost:
                await call
        assert may_have_run(lost.value)
        await told(ComputerLeft("box"))
