import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from smcp_agent import (
    CapabilitiesChanged,
    ComputerEntered,
    ComputerLeft,
    Disconnected,
    Event,
    NotFound,
    Reconnected,
    SmcpAgent,
    TooLarge,
    ToolsChanged,
    Unavailable,
    may_have_run,
)
from smcp_testing.tcp_proxy import Line, open_line
from smcp_testing.waiting import OWNER_FIRST_S, eventually
from tests.sdk.system import COMPUTER, LEASE_S, OFFICE, System, gateway_at, open_system

PATIENCE_S = 20.0


def agent_in(system: System, name: str = "bot", **options: Any) -> SmcpAgent:
    return SmcpAgent(system.url, office=OFFICE, name=name, **options)


@pytest.mark.rule("events.{tool_call.flow,flow.call.4,flow.discovery.6}", "computer.{architecture.9,call.8}")
async def test_tools_are_listed_called_and_fail_as_results(nats_url: str, tmp_path: Path) -> None:
    async with open_system(nats_url, tmp_path) as system, agent_in(system) as agent:
        assert agent.computers() == [COMPUTER]
        assert {"echo", "add"} <= {tool.name for tool in await agent.tools(COMPUTER)}
        assert {"echo", "add"} <= {tool["name"] for tool in await agent.anthropic_tools()}
        assert (await agent.call_tool(COMPUTER, "echo", {"text": "你好"})).text == "你好"
        assert (await agent.call_tool(COMPUTER, "add", {"a": 1, "b": 2})).structured_content == {"result": 3}
        failed = await agent.call_tool(COMPUTER, "fail")
        assert failed.is_error
        assert failed.text
        stopped = await agent.call_tool(COMPUTER, "sleep", {"seconds": 60}, timeout=OWNER_FIRST_S)
        assert stopped.timed_out
        with pytest.raises(NotFound):
            await agent.call_tool("nobody", "echo", {"text": "x"})
        assert (await agent.get_config(COMPUTER)).servers.keys() == {"toolbox"}
        assert {(each.role, each.name) for each in await agent.list_room()} == {
            ("agent", "bot"),
            ("computer", COMPUTER),
        }


@pytest.mark.rule("answers.large.result")
async def test_20_mb_pass_and_40_mb_are_refused_in_both_directions(nats_url: str, tmp_path: Path) -> None:
    # registry, Computer and Agent are one process here: while it reads 40 MB on a busy machine, 2 s pass
    async with open_system(nats_url, tmp_path, lease_s=30.0) as system, agent_in(system) as agent:
        big = await agent.call_tool(COMPUTER, "big", {"size": 20_000_000})
        assert len(big.text) == 20_000_000
        stream = agent.events()
        with pytest.raises(TooLarge):
            await agent.call_tool(COMPUTER, "big", {"size": 40_000_000})
        with pytest.raises(TooLarge):
            await agent.call_tool(COMPUTER, "echo", {"text": "x" * 40_000_000})
        assert (await agent.call_tool(COMPUTER, "echo", {"text": "small"})).text == "small"
        assert stream.waiting == 0


@pytest.mark.rule(
    "events.{notify.enter_office.advice,notify.update_tool_list.advice,flow.discovery.2,flow.discovery.3}",
    "events.{flow.discovery.7,should.agent.enter,should.agent.update_tool_list}",
)
async def test_changed_tools_and_a_returning_computer_are_events(nats_url: str, tmp_path: Path) -> None:
    async with open_system(nats_url, tmp_path) as system, agent_in(system) as agent:
        await agent.tools(COMPUTER)
        stream = agent.events()

        async def next_event() -> Event:
            """But of capabilities: a Computer may say its own before or after it enters, as its servers start."""
            while isinstance(event := await anext(stream), CapabilitiesChanged):
                pass
            return event

        async with asyncio.timeout(60):
            await agent.call_tool(COMPUTER, "add_tool", {"name": "extra"})
            changed = await next_event()
            assert isinstance(changed, ToolsChanged)
            assert "extra" in {tool.name for tool in changed.tools}
            await system.stop_computer()
            assert await next_event() == ComputerLeft(COMPUTER)
            await system.start_computer()
            assert await next_event() == ComputerEntered(COMPUTER)
            assert isinstance(await next_event(), ToolsChanged)


async def test_a_call_survives_the_restart_of_the_only_gateway_and_runs_once(nats_url: str, tmp_path: Path) -> None:
    async with open_system(nats_url, tmp_path) as system, agent_in(system) as agent:
        stream = agent.events()
        call = asyncio.create_task(agent.call_tool(COMPUTER, "sleep", {"seconds": 3, "mark": "m"}, timeout=60))
        await eventually(lambda: "sleep m" in system.ran(), timeout=PATIENCE_S)
        await system.kill_gateway()
        await system.start_gateway()
        async with asyncio.timeout(60):
            result = await call
        told: list[Event] = []
        while not told or not isinstance(told[-1], Reconnected):
            told.append(await anext(stream))
        assert any(isinstance(event, Disconnected) for event in told)
        assert result.text == "slept 3.0"
        assert system.ran() == ["sleep m"]


async def test_a_call_survives_the_death_of_a_gateway_behind_one_shared_url_and_runs_once(
    nats_url: str, tmp_path: Path
) -> None:
    async with open_system(nats_url, tmp_path) as system, gateway_at(nats_url) as other, system.line() as line:
        async with SmcpAgent(line.url, office=OFFICE, name="bot") as agent:
            call = asyncio.create_task(agent.call_tool(COMPUTER, "sleep", {"seconds": 3, "mark": "m"}, timeout=60))
            await eventually(lambda: "sleep m" in system.ran(), timeout=PATIENCE_S)
            line.port = int(other.rpartition(":")[2])  # as a load balancer that notices
            await system.kill_gateway()
            async with asyncio.timeout(60):
                assert (await call).text == "slept 3.0"
            assert agent.connected
            assert system.ran() == ["sleep m"]


@pytest.mark.rule("answers.calls.not-repeated")
async def test_a_call_that_lost_its_gateway_and_computer_does_not_run_again(nats_url: str, tmp_path: Path) -> None:
    async with open_system(nats_url, tmp_path) as system, agent_in(system) as agent:
        call = asyncio.create_task(agent.call_tool(COMPUTER, "sleep", {"seconds": 60, "mark": "m"}, timeout=100))
        await eventually(lambda: "sleep m" in system.ran(), timeout=PATIENCE_S)
        await system.kill_gateway()
        await system.stop_computer()
        await system.start_computer()
        await system.start_gateway()
        with pytest.raises(Unavailable) as caught:
            async with asyncio.timeout(60):
                await call
        assert may_have_run(caught.value)
        assert system.ran().count("sleep m") == 1
        assert (await agent.call_tool(COMPUTER, "echo", {"text": "x"})).text == "x"


async def test_a_call_survives_a_short_disconnect_and_runs_once(nats_url: str, tmp_path: Path) -> None:
    async with open_system(nats_url, tmp_path) as system, system.line() as line:
        async with SmcpAgent(line.url, office=OFFICE, name="bot") as agent:
            stream = agent.events()
            call = asyncio.create_task(agent.call_tool(COMPUTER, "sleep", {"seconds": 3, "mark": "m"}, timeout=60))
            await eventually(lambda: "sleep m" in system.ran(), timeout=PATIENCE_S)
            line.cut()
            async with asyncio.timeout(60):
                while not isinstance(await anext(stream), Reconnected):
                    pass
                # longer than the gateway waits before it cancels the calls of who has not come back
                longer = agent.call_tool(COMPUTER, "sleep", {"seconds": 6, "mark": "n"}, timeout=60)
                results = await asyncio.gather(call, longer)
            assert [(each.text, each.cancelled) for each in results] == [("slept 3.0", False), ("slept 6.0", False)]
            assert system.ran() == ["sleep m", "sleep n"]


NOBODY: int = 1
"""A port on which nobody listens."""


@asynccontextmanager
async def cut_gateway(nats_url: str) -> AsyncIterator[tuple[str, Line]]:
    """A gateway whose line to NATS can be hurt."""
    async with open_line(int(nats_url.rpartition(":")[2])) as line:
        async with gateway_at(line.to(nats_url)) as url:
            yield url, line


async def called(agent: SmcpAgent) -> bool:
    try:
        return (await agent.call_tool(COMPUTER, "echo", {"text": "x"}, timeout=5)).text == "x"
    except Unavailable:
        return False


def agent_at(url: str, system: System) -> SmcpAgent:
    return SmcpAgent([url, system.url], office=OFFICE, name="bot")


async def test_an_agent_moves_to_the_next_gateway_when_its_own_loses_nats(nats_url: str, tmp_path: Path) -> None:
    async with open_system(nats_url, tmp_path) as system, cut_gateway(nats_url) as (url, line):
        async with agent_at(url, system) as agent:
            assert await called(agent)
            stream = agent.events()
            line.port = NOBODY
            line.cut()
            began = asyncio.get_running_loop().time()
            assert not await called(agent)
            await eventually(lambda: called(agent), timeout=40)
            assert asyncio.get_running_loop().time() - began >= LEASE_S
            told = [await next_move(stream) for _ in range(2)]
            assert isinstance(told[0], Disconnected)
            assert told[1] == Reconnected(system.url)
            assert [(each.role, each.name) for each in await agent.list_room() if each.role == "agent"] == [
                ("agent", "bot")
            ]


async def next_move(stream: AsyncIterator[object]) -> object:
    """Events about rooms and tools are skipped."""
    async with asyncio.timeout(30):
        while True:
            if is_move(event := await anext(stream)):
                return event


def is_move(event: object) -> bool:
    return isinstance(event, Disconnected | Reconnected)
