"""Real gateways, one of which is cut off from NATS."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from smcp_agent import Disconnected, Reconnected, SmcpAgent, Unavailable
from smcp_testing.nats_process import NatsServer
from smcp_testing.tcp_proxy import Line, open_line
from smcp_testing.waiting import eventually
from tests.sdk.system import COMPUTER, LEASE_S, OFFICE, System, gateway_at, open_system

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


async def test_an_agent_joins_through_the_next_gateway_when_the_first_has_no_nats(
    nats_url: str, tmp_path: Path
) -> None:
    async with open_system(nats_url, tmp_path) as system, cut_gateway(nats_url) as (url, line):
        line.port = NOBODY
        line.cut()
        async with agent_at(url, system) as agent:
            assert await called(agent)


async def test_an_agent_stays_at_its_gateway_when_all_gateways_lose_nats(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with open_system(nats_server.url, tmp_path) as system, gateway_at(nats_server.url) as url:
        async with agent_at(url, system) as agent:
            assert await called(agent)
            stream = agent.events()
            await nats_server.stop()
            over, answered = asyncio.get_running_loop().time() + 3 * LEASE_S, []

            async def tried_again_and_again() -> bool:
                answered.append(await called(agent))
                return asyncio.get_running_loop().time() > over

            await eventually(tried_again_and_again, timeout=60)
            assert not any(answered)
            await nats_server.start()
            await eventually(lambda: called(agent), timeout=40)
            assert agent.connected
            assert not [each for each in [await anext(stream) for _ in range(stream.waiting)] if is_move(each)]


async def next_move(stream: AsyncIterator[object]) -> object:
    """Events about rooms and tools are skipped."""
    async with asyncio.timeout(30):
        while True:
            if is_move(event := await anext(stream)):
                return event


def is_move(event: object) -> bool:
    return isinstance(event, Disconnected | Reconnected)
