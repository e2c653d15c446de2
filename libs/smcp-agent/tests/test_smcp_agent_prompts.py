"""The prompts of a Computer for an application; the Computer is scripted."""

import pytest

from smcp_agent import McpError, SmcpError
from smcp_agent.errors import BadReply
from smcp_testing.fake_gateway import fake_gateway
from smcp_testing.file_computer import at

GREET = {"name": "greet", "arguments": [{"name": "who", "required": True}], "serverId": "a"}


async def test_prompts_are_listed_page_by_page_filled_in_and_completed() -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        red.prompts, red.page_size = [GREET, {"name": "part"}, {"title": "no name"}], 1
        async with agent:
            assert [each async for each in agent.iter_prompts("red")] == [GREET, {"name": "part"}]
            assert (await agent.list_prompts("red", server="a"))["computer"] == "red"
            got = await agent.get_prompt("red", "greet", {"who": "anna"}, server="a")
            assert got["messages"] == [{"role": "user", "content": {"type": "text", "text": "red anna"}}]
            assert got["meta"] == {"from": "a"}
            assert (await agent.complete_prompt("red", "greet", "who", "a"))["values"] == ["greetred"]
            params = [each["payload"]["params"] for each in red.seen("client:prompts/get")]
            assert params == [{"name": "greet", "arguments": {"who": "anna"}}]


async def test_a_prompt_that_is_refused_or_malformed_is_an_error() -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        async with agent:
            with pytest.raises(McpError, match="Unknown prompt"):
                await agent.get_prompt("red", "greet")
            for arguments, field in [({"who": 1}, "payload.params.arguments.who"), (["x"], "arguments")]:
                with pytest.raises(SmcpError) as refused:
                    await agent.get_prompt("red", "greet", arguments)  # type: ignore[arg-type]  # tested
                assert refused.value.details["field"] == field

            async def answer(data: dict[str, object]) -> object:
                return red._reply(data, result={"messages": [{"role": "user"}]})

            gateway.answers["client:prompts/get"] = answer
            with pytest.raises(BadReply, match=r"messages\.0\.content"):
                await agent.get_prompt("red", "greet")
