"""Tool calls that go all the way to an MCP server and back."""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import pytest

from tests.e2e.actors.agents import OpenAgent, lists
from tests.e2e.worlds.world import ELSEWHERE, LAB, World


def text(result: Mapping[str, Any]) -> str:
    """The text of a CallToolResult."""
    return "".join(block.get("text", "") for block in result["content"])


@pytest.mark.rule("events.tool_call.flow", "events.classes.client.routing")
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
            files = {(host.office, host.name): host.ran for host in world.computers}
            ran = {place: file.read_text("utf-8").split().count(mark) for place, file in files.items() if file.exists()}
            assert {place: count for place, count in ran.items() if count} == {(LAB, name): 1}


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
