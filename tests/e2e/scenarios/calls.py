"""Tool calls that go all the way to an MCP server and back."""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import pytest

from tests.e2e.actors.agents import OpenAgent, lists
from tests.e2e.actors.bare import FlatError
from tests.e2e.worlds.world import ELSEWHERE, LAB, World


def text(result: Mapping[str, Any]) -> str:
    """The text of a CallToolResult."""
    return "".join(block.get("text", "") for block in result["content"])


@pytest.mark.rule("events.tool_call.flow")
async def an_agent_on_one_gateway_calls_tools_on_both_computers(world: World, open_agent: OpenAgent) -> None:
    async with open_agent(world.url(0), LAB, "caller") as agent:
        await lists(agent, ("agent", "caller"), ("computer", "alpha"), ("computer", "beta"))
        for name in ("alpha", "beta"):
            assert {"echo", "add", "fail"} <= await agent.tools(name)
            said = f"to {name}: 你好 {uuid4().hex}"
            result = await agent.call(name, "echo", {"text": said})
            assert result["isError"] is False
            assert text(result) == said
            mark = uuid4().hex
            await agent.call(name, "append", {"mark": mark})
            ran = {each: world.computer(LAB, each).ran for each in ("alpha", "beta")}
            assert [each for each, file in ran.items() if file.exists() and mark in file.read_text("utf-8")] == [name]


@pytest.mark.rule("events.classes.client.routing")
async def a_call_runs_once_on_the_computer_it_names(world: World, open_agent: OpenAgent) -> None:
    mark = uuid4().hex
    async with open_agent(world.url(1), LAB, "caller") as agent:
        await agent.call("beta", "append", {"mark": mark})
    ran = {
        (host.office, host.name): host.ran.read_text(encoding="utf-8").split().count(mark)
        for host in world.computers
        if host.ran.exists()
    }
    assert ran.pop((LAB, "beta")) == 1
    assert not any(ran.values())


@pytest.mark.rule("answers.errors.tool")
async def a_tool_that_fails_is_a_result_and_not_an_error(world: World, open_agent: OpenAgent) -> None:
    async with open_agent(world.url(0), LAB, "caller") as agent:
        result = await agent.call("alpha", "fail", {"message": "on purpose"})
        assert result["isError"] is True
        assert "fail" in text(result)


@pytest.mark.rule("answers.errors.404", "answers.who.own-office", "answers.who.same-404")
async def an_unknown_computer_and_one_of_another_office_get_the_same_404(world: World, open_agent: OpenAgent) -> None:
    async with open_agent(world.url(0), ELSEWHERE, "caller") as agent:
        refusals: dict[str, str] = {}
        for name in ("beta", "nobody"):
            with pytest.raises(FlatError) as refused:
                await agent.call(name, "echo", {"text": "hidden"})
            assert refused.value.code == 404
            refusals[name] = str(refused.value)
        assert refusals["beta"].replace("beta", "nobody") == refusals["nobody"]


@pytest.mark.rule("answers.rooms.computer-names.not-beyond")
async def two_offices_may_use_the_same_computer_name(world: World, open_agent: OpenAgent) -> None:
    marks = {office: uuid4().hex for office in (LAB, ELSEWHERE)}
    async with (
        open_agent(world.url(0), LAB, "caller") as here,
        open_agent(world.url(1), ELSEWHERE, "caller") as there,
    ):
        await here.call("alpha", "append", {"mark": marks[LAB]})
        await there.call("alpha", "append", {"mark": marks[ELSEWHERE]})
        await lists(there, ("agent", "caller"), ("computer", "alpha"))
        for office, mark in marks.items():
            for host in world.computers:
                lines = host.ran.read_text(encoding="utf-8").split() if host.ran.exists() else []
                assert lines.count(mark) == int((host.office, host.name) == (office, "alpha"))
