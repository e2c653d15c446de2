"""Calls of an Agent that leaves while they run are cancelled, unless it returns."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from smcp_bus import owner, subjects
from smcp_bus.headers import EPOCH
from smcp_computer.app import NatsMembership
from smcp_testing.computer_office import OFFICE, World, world
from smcp_testing.mcp_servers import configs
from smcp_testing.waiting import eventually

Calls = dict[str, "asyncio.Task[dict[str, Any]]"]


async def sleep(here: World, agent: str, **more: Any) -> dict[str, Any]:
    params = {"seconds": 60, "mark": agent}
    return await here.ask("tool_call", agent=agent, req_id=agent, tool_name="sleep", params=params, timeout=60, **more)


@asynccontextmanager
async def calling(url: str, log: Path, *agents: str) -> AsyncIterator[tuple[World, Calls]]:
    """Each of the Agents has a call in flight, under its own name as the id."""
    async with world(url, box=configs.stdio(log=log)) as here:
        calls: Calls = {agent: asyncio.create_task(sleep(here, agent)) for agent in agents}
        await eventually(lambda: log.exists() and all(f"sleep {agent}" in log.read_text() for agent in agents))
        try:
            yield here, calls
        finally:
            for agent in agents:
                await here.cancel(agent, agent)
            await asyncio.wait(calls.values())


async def told(here: World, verb: str, agent: str, revision: int) -> None:
    body = json.dumps({"office_id": OFFICE, "agent": agent}).encode()
    epoch = 2 * revision + (verb == "enter_office")
    await here.agent.publish(subjects.notify(OFFICE, verb), body, headers={EPOCH: str(epoch)})


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "ABSENT_S", 0.3)


@pytest.mark.rule("answers.calls.disconnect.gateway-died")
async def test_the_calls_of_an_agent_that_left_are_cancelled_at_the_mcp_server(nats_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with calling(nats_url, log, "alice", "bob") as (here, calls):
        await told(here, "enter_office", "alice", 6)
        await told(here, "leave_office", "alice", 7)
        assert (await asyncio.wait_for(calls["alice"], 30))["meta"] == {"a2c_cancelled": True}
        await eventually(lambda: "cancelled alice" in log.read_text())
        assert not calls["bob"].done()
        assert (await sleep(here, "alice"))["meta"] == {"a2c_cancelled": True}
        assert log.read_text().count("sleep alice") == 1


@pytest.mark.rule("answers.calls.disconnect.back")
async def test_calls_of_an_agent_that_returns_or_may_have_returned_go_on(nats_url: str, tmp_path: Path) -> None:
    async with calling(nats_url, tmp_path / "log", "back", "asks", "gone", "missed", "later") as (here, calls):

        async def cancelled(agent: str, revision: int) -> None:
            """What is left by then of those who left before goes on."""
            await told(here, "leave_office", agent, revision)
            assert (await asyncio.wait_for(calls[agent], 30))["meta"] == {"a2c_cancelled": True}

        await told(here, "leave_office", "asks", 6)
        again = asyncio.create_task(sleep(here, "asks", a2c_repeat=True))
        await told(here, "leave_office", "back", 7)
        await told(here, "enter_office", "back", 7)
        await told(here, "leave_office", "back", 7)  # a registry died before it had noted that it told of it
        await cancelled("gone", 8)
        await told(here, "leave_office", "missed", 9)
        await here.ask("get_tools")  # behind that leave
        assert isinstance(here.computer.membership, NatsMembership)
        here.computer.membership._ownership.close(
            "the connection to NATS broke"
        )  # and "missed" may have entered meanwhile
        await cancelled("later", 10)
        assert [agent for agent, call in calls.items() if not call.done()] == ["back", "asks", "missed"]
        assert not again.done()
        await here.cancel("asks", "asks")
        assert (await again)["meta"] == {"a2c_cancelled": True}


@pytest.mark.rule("answers.calls.disconnect", "answers.calls.elicitation.left")
async def test_a_call_that_waits_for_the_answer_of_an_agent_that_left_is_cancelled_at_the_mcp_server(
    nats_url: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    one, other = (configs.stdio("eliciting", "--era", "2025", log=log) for _ in range(2))
    async with world(nats_url, one=one, other=other) as here:
        for agent, tool in (("alice", "one__book"), ("bob", "other__book")):
            asked = await here.ask("tool_call", agent=agent, req_id=agent, tool_name=tool, params={}, timeout=60)
            assert "a2c_input_required" in asked["meta"]
        await told(here, "leave_office", "alice", 6)
        await told(here, "leave_office", "bob", 7)
        await told(here, "enter_office", "bob", 7)
        await eventually(lambda: log.exists() and log.read_text() == "cancelled book\n")
        assert here.computer.calls.held()["open_elicitations"] == 1
