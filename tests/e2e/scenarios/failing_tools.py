"""Tools that throw, hang, or take their MCP server with them: the Agent gets a result that says so, in time."""

import asyncio
from typing import Any, Final
from uuid import uuid4

from smcp_testing.waiting import OWNER_FIRST_S, Stopwatch, eventually
from tests.e2e.actors.agents import Agent, OpenAgent
from tests.e2e.actors.bare import FlatError
from tests.e2e.actors.bystanders import undisturbed
from tests.e2e.scenarios.calls import text
from tests.e2e.worlds.world import LAB, World

AT_ONCE_S: Final = 3.0
SLACK_S: Final = 3.0
"""What all else may take on top of a time-out."""
BACK_S: Final = 40.0


async def a_tool_that_raises_gives_a_failed_result(world: World, open_agent: OpenAgent) -> None:
    async with undisturbed(world), open_agent(world.url(0), LAB, "caller") as agent:
        for tool, params, word in (
            ("fail", {"message": "on purpose"}, "fail"),
            ("no such tool", {}, "no such tool"),
        ):
            result = await _within(AT_ONCE_S, agent, tool, params)
            assert result["isError"] is True, result
            assert word in text(result)
        for arguments, field in (({"a": 1, "b": "two"}, "b"), ({}, "a")):
            assert field in await _refusal_of_arguments(agent, arguments)
        assert text(await agent.call("alpha", "echo", {"text": "fine"})) == "fine"


async def a_hanging_tool_is_stopped_in_time_and_other_tools_work(world: World, open_agent: OpenAgent) -> None:
    mark = uuid4().hex
    ran = world.computer(LAB, "alpha").ran
    async with undisturbed(world), open_agent(world.url(1), LAB, "caller") as agent:
        watch = Stopwatch()
        async with asyncio.TaskGroup() as group:
            hanging = group.create_task(
                agent.call("alpha", "sleep", {"seconds": 60, "mark": mark}, timeout=OWNER_FIRST_S)
            )
            await eventually(lambda: f"sleep {mark}" in _lines(ran), timeout=BACK_S)
            for computer in ("alpha", "beta"):
                assert text(await agent.call(computer, "echo", {"text": "meanwhile"})) == "meanwhile"
            assert not hanging.done()
        assert watch.undisturbed < OWNER_FIRST_S + SLACK_S
        _check_timed_out(hanging.result(), "sleep")
        await eventually(lambda: f"cancelled {mark}" in _lines(ran), timeout=BACK_S)


async def a_hanging_mcp_server_times_out_and_works_again(world: World, open_agent: OpenAgent) -> None:
    within_s = OWNER_FIRST_S + SLACK_S
    hangs = {"seconds": 2 * within_s}  # longer than both calls
    async with undisturbed(world), open_agent(world.url(0), LAB, "caller") as agent:
        pid = text(await agent.call("alpha", "pid"))
        _check_timed_out(await _within(within_s, agent, "block", hangs, timeout=OWNER_FIRST_S), "block")
        waiting = await _within(within_s, agent, "echo", {"text": "too early"}, timeout=OWNER_FIRST_S)
        _check_timed_out(waiting, "echo")
        assert text(await agent.call("beta", "echo", {"text": "elsewhere"})) == "elsewhere"
        assert text(await agent.call("alpha", "pid", timeout=60)) == pid


async def a_dying_mcp_server_is_named_and_works_again(world: World, open_agent: OpenAgent) -> None:
    mark = uuid4().hex
    ran = world.computer(LAB, "alpha").ran
    async with undisturbed(world), open_agent(world.url(1), LAB, "caller") as agent:
        pid = text(await agent.call("alpha", "pid"))
        async with asyncio.TaskGroup() as group:
            beside = group.create_task(agent.call("alpha", "sleep", {"seconds": 60, "mark": mark}, timeout=90))
            await eventually(lambda: f"sleep {mark}" in _lines(ran), timeout=BACK_S)
            died = await _within(AT_ONCE_S, agent, "die", {})
            watch = Stopwatch()
            await beside
        assert watch.undisturbed < AT_ONCE_S
        for result in (died, beside.result()):
            assert result["isError"] is True
            assert "'toolbox'" in text(result)
        assert text(await agent.call("beta", "echo", {"text": "elsewhere"})) == "elsewhere"

        async def is_back() -> bool:
            result = await _within(AT_ONCE_S, agent, "pid", {})
            if result["isError"]:
                assert "toolbox" in text(result) or "no tool" in text(result)
                return False
            return text(result) != pid

        await eventually(is_back, timeout=BACK_S, message="the MCP server is not started again")
        assert {"pid", "echo"} <= await agent.tools("alpha")
    assert _lines(ran).count(f"sleep {mark}") == 1


async def _refusal_of_arguments(agent: Agent, arguments: dict[str, Any]) -> str:
    """Agents that do not read flat errors get a failed result."""
    try:
        result = await _within(AT_ONCE_S, agent, "add", arguments)
    except FlatError as error:
        return str(error) if error.code == 400 else ""
    assert result["isError"] is True
    return text(result)


async def _within(seconds: float, agent: Agent, tool: str, params: dict[str, Any], timeout: int = 60) -> dict[str, Any]:
    watch = Stopwatch()
    result = await agent.call("alpha", tool, params, timeout=timeout)
    assert watch.undisturbed < seconds, f"{tool} took {watch.took:.3f} s"
    return result


def _check_timed_out(result: dict[str, Any], tool: str) -> None:
    assert result["isError"] is True
    assert result["meta"] == {"a2c_timeout": True}
    assert tool in text(result)


def _lines(ran: Any) -> list[str]:
    return ran.read_text(encoding="utf-8").splitlines() if ran.exists() else []
