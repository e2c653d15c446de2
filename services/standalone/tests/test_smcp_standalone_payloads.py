"""`SMCP_MAX_PAYLOAD`, smaller and larger than where nobody sets it, as the Agent SDK meets it: 413, no lost socket."""

import json
import re
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from smcp_agent import Disconnected, Event, SmcpAgent
from smcp_agent.errors import TooLarge
from smcp_testing.fork_server import COMMANDS, born
from smcp_testing.mcp_servers import configs
from smcp_testing.service_process import service_process
from smcp_testing.waiting import eventually

SMCP = Path(sys.executable).parent / "smcp"
KIB = 1024
MIB = 1024 * KIB


@asynccontextmanager
async def gateway(tmp_path: Path, max_payload: int) -> AsyncIterator[str]:
    """The URL of a whole system with this limit."""
    config = tmp_path / "computer.json"
    config.write_text(json.dumps({"servers": {"toolbox": configs.stdio()}}))
    env = {"SMCP_MAX_PAYLOAD": str(max_payload), "SMCP_CONFIRM": "allow"}
    async with service_process(
        *born(SMCP, "up", "--port", "0", "--config", str(config), knows=COMMANDS), env=env
    ) as process:

        def url() -> str:
            found = re.search(r"Agents connect to +(\S+)", "\n".join(process.output))
            return found[1] if found else ""

        yield await eventually(url, timeout=60, message="smcp up printed no URL")


async def sent(agent: SmcpAgent, size: int) -> str:
    """What a tool says that was given so many bytes."""
    return (await agent.call_tool("computer", "sleep", {"seconds": 0, "mark": "x" * size})).text


async def got(agent: SmcpAgent, size: int) -> int:
    return len((await agent.call_tool("computer", "big", {"size": size})).text)


async def test_above_a_smaller_limit_of_the_gateway_is_413_with_that_limit_and_the_connection_stays(
    tmp_path: Path,
) -> None:
    limit, told = MIB, list[Event]()
    async with gateway(tmp_path, limit) as url:
        async with SmcpAgent(url, office="home", name="caller") as agent:
            agent.on_event(told.append)
            assert await sent(agent, limit - 10 * KIB) == "slept 0.0"
            assert await got(agent, limit - 10 * KIB) == limit - 10 * KIB
            for size in (limit + 10 * KIB, 5 * limit):  # the gateway says so, and the Agent, whom it would cut off
                await refused_above(limit, sent(agent, size))
            await refused_above(limit, got(agent, 2 * limit))
            assert [event for event in told if isinstance(event, Disconnected)] == []
        own = 512 * KIB
        async with SmcpAgent(url, office="home", name="caller", max_message=own) as agent:
            await refused_above(own, got(agent, own + KIB))
            assert await got(agent, own - 10 * KIB) == own - 10 * KIB


async def test_up_to_a_quarter_of_a_larger_limit_requests_arrive_and_above_it_is_413(tmp_path: Path) -> None:
    limit = 48 * MIB
    async with gateway(tmp_path, limit) as url, SmcpAgent(url, office="home", name="caller") as agent:
        assert await sent(agent, 11 * MIB) == "slept 0.0"
        assert await got(agent, 33 * MIB) == 33 * MIB
        # An answer, and no end of the connection. On a busy machine 33 MiB may cost the client its heartbeat.
        await refused_above(limit // 4, sent(agent, 13 * MIB))
        await refused_above(limit, sent(agent, limit + MIB))


async def refused_above(limit: int, call: Awaitable[object]) -> None:
    with pytest.raises(TooLarge) as refused:
        await call
    assert refused.value.details["limit"] == limit
    assert refused.value.details["size"] > limit
