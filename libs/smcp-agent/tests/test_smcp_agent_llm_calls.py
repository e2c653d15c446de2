import json
from types import SimpleNamespace
from typing import Any

import pytest

from smcp_agent import SmcpAgent
from smcp_agent.llm import NOTHING, anthropic_output, result_text
from smcp_agent.results import AudioContent, CallResult, ImageContent, LinkContent, ResourceContent, TextContent
from smcp_testing.fake_gateway import FakeGateway, fake_gateway, tool
from smcp_testing.waiting import eventually

JsonObject = dict[str, Any]


def agent_at(gateway: FakeGateway) -> SmcpAgent:
    return SmcpAgent(gateway.url, office="office", name="bot")


def two_computers(gateway: FakeGateway) -> None:
    gateway.computers = {
        "red": [tool("echo", "Says it.", type="object", properties={"x": {"type": "string"}})],
        "blue": [tool("echo"), tool("stop")],
    }

    async def answer(data: JsonObject) -> Any:
        return {"content": [{"type": "text", "text": f"{data['computer']}: {data['params']}"}]}

    gateway.answers["client:tool_call"] = answer


def chat_call(name: str, arguments: str) -> JsonObject:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


async def test_a_round_trip_with_chat_completions() -> None:
    async with fake_gateway() as gateway:
        two_computers(gateway)
        async with agent_at(gateway) as agent:
            tools = await agent.openai_tools()
            assert [each["function"]["name"] for each in tools] == ["blue__echo", "stop", "red__echo"]
            message = (await agent.run_openai_tool_calls([chat_call("red__echo", '{"x": "hi"}')]))[0]
            assert message == {"role": "tool", "tool_call_id": "call_1", "content": "red: {'x': 'hi'}"}


async def test_a_round_trip_with_the_objects_of_openais_sdk() -> None:
    call = SimpleNamespace(id="call_2", type="function", function=SimpleNamespace(name="stop", arguments=""))
    async with fake_gateway() as gateway:
        two_computers(gateway)
        async with agent_at(gateway) as agent:
            message = (await agent.run_openai_tool_calls([call]))[0]
            assert message == {"role": "tool", "tool_call_id": "call_2", "content": "blue: {}"}


async def test_a_round_trip_with_the_responses_api() -> None:
    call = {"type": "function_call", "call_id": "call_3", "id": "fc_1", "name": "stop", "arguments": "{}"}
    async with fake_gateway() as gateway:
        two_computers(gateway)
        async with agent_at(gateway) as agent:
            assert "stop" in [each["name"] for each in await agent.openai_tools(api="responses")]
            item = (await agent.run_openai_tool_calls([call]))[0]
            assert item == {"type": "function_call_output", "call_id": "call_3", "output": "blue: {}"}


@pytest.mark.parametrize("as_object", [False, True])
async def test_a_round_trip_with_anthropic(as_object: bool) -> None:
    fields = {"type": "tool_use", "id": "toolu_1", "name": "blue__echo", "input": {"x": 1}}
    async with fake_gateway() as gateway:
        two_computers(gateway)
        async with agent_at(gateway) as agent:
            (first, *_) = await agent.anthropic_tools()
            assert first["name"] == "blue__echo"
            assert first["input_schema"] == {"type": "object", "properties": {}}
            block = (await agent.run_anthropic_tool_uses([SimpleNamespace(**fields) if as_object else fields]))[0]
            assert block == {
                "type": "tool_result",
                "tool_use_id": "toolu_1",
                "content": [{"type": "text", "text": "blue: {'x': 1}"}],
                "is_error": False,
            }


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("nonsense", "{}", "there is no tool 'nonsense'"),
        ("stop", "{x", "the arguments are not JSON"),
        ("stop", "[" * 100_000, "the arguments are not JSON"),
        ("stop", "[1]", "the arguments are not a JSON object"),
    ],
)
async def test_mistakes_of_a_model_become_a_readable_tool_result(name: str, arguments: str, said: str) -> None:
    async with fake_gateway() as gateway:
        two_computers(gateway)
        async with agent_at(gateway) as agent:
            message = (await agent.run_openai_tool_calls([chat_call(name, arguments)]))[0]
            assert said in message["content"]
            assert message["content"].startswith("Error 40")
            assert gateway.seen("client:tool_call") == []


async def test_an_error_of_the_call_becomes_a_result_that_says_whether_the_tool_may_have_run() -> None:
    async with fake_gateway() as gateway:
        two_computers(gateway)
        async with agent_at(gateway) as agent:

            async def answer(data: JsonObject) -> Any:
                return {"code": 503, "message": "its owner died", "details": {"may_have_run": True}}

            gateway.answers["client:tool_call"] = answer
            block = (
                await agent.run_anthropic_tool_uses(
                    [{"type": "tool_use", "id": "t", "name": "stop", "input": {}}], timeout=3
                )
            )[0]
            assert block["is_error"] is True
            text = "Error 503: its owner died (the tool may have run nevertheless)"
            assert block["content"] == [{"type": "text", "text": text}]


def test_other_contents_than_text_are_described_or_passed_to_the_api() -> None:
    result = CallResult(
        content=(
            TextContent(""),
            TextContent("see"),
            ImageContent("AAAA", "image/png"),
            ImageContent("AAAA", "image/tiff"),
            AudioContent("AAAA", "audio/wav"),
            ResourceContent("file:///x", text="inside"),
            ResourceContent("file:///y", "application/pdf", blob="AAAA"),
            LinkContent("file:///z", "z"),
        )
    )
    described = [
        "[image/tiff, 3 bytes, not shown]",
        "[audio/wav, 3 bytes, not shown]",
        "file:///x\ninside",
        "[file:///y, application/pdf, not shown]",
        "[z](file:///z)",
    ]
    assert result_text(result).split("\n", 2)[:2] == ["see", "[image/png, 3 bytes, not shown]"]
    blocks = anthropic_output(result)
    assert blocks[0] == {"type": "text", "text": "see"}
    assert blocks[1] == {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"},
    }
    assert [block["text"] for block in blocks[2:]] == described


def test_a_structured_result_without_contents_is_given_as_json() -> None:
    result = CallResult(content=(), structured_content={"和": 3})
    assert json.loads(result_text(result)) == {"和": 3}
    assert anthropic_output(result) == [{"type": "text", "text": '{"和": 3}'}]


def test_an_empty_result_gets_a_placeholder_text() -> None:
    assert result_text(CallResult(content=())) == NOTHING
    assert anthropic_output(CallResult(content=(TextContent(""),))) == [{"type": "text", "text": NOTHING}]


def test_a_failure_is_marked_in_the_text_for_openai() -> None:
    assert result_text(CallResult(content=(TextContent("no disk"),), is_error=True)) == "The tool failed: no disk"


async def test_a_tool_name_from_an_earlier_list_still_works() -> None:
    async with fake_gateway() as gateway:
        two_computers(gateway)
        blue = gateway.computers.pop("blue")
        async with agent_at(gateway) as agent:

            async def runs(name: str) -> str:
                text: str = ((await agent.run_openai_tool_calls([chat_call(name, "{}")]))[0])["content"]
                return text

            await agent.openai_tools()
            assert await runs("echo") == "red: {}"
            await gateway.enter("blue", blue)
            await eventually(lambda: agent.computers() == ["blue", "red"])
            await agent.openai_tools()
            assert await runs("echo") == "red: {}"
            assert await runs("blue__echo") == "blue: {}"
            await gateway.leave("red")
            await eventually(lambda: agent.computers() == ["blue"])
            await agent.openai_tools()
            assert await runs("echo") == "blue: {}"
            assert "there is no tool" in await runs("nothing")
