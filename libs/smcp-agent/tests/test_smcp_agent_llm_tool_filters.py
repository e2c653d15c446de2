"""Which tools a model gets, how much of their results, and their pictures."""

import json
from base64 import b64encode
from types import SimpleNamespace
from typing import Any

import pytest

from smcp_agent import Content, ImageContent, LinkContent, SmcpAgent, TextContent
from smcp_agent.errors import Malformed, NotFound
from smcp_agent.llm import MAX_PICTURE, READ_RESULT, anthropic_output, model_parts
from smcp_agent.results import CallResult, ResourceContent, call_result
from smcp_agent.tool_calls import KEPT_CHARS, KEPT_TEXTS, Previews
from smcp_testing.fake_gateway import FakeGateway, fake_gateway, tool
from smcp_testing.waiting import eventually

JsonObject = dict[str, Any]
PNG = b64encode(b"a picture").decode()


def agent_at(gateway: FakeGateway) -> SmcpAgent:
    return SmcpAgent(gateway.url, office="office", name="bot")


def tagged(name: str, *tags: str, **meta: Any) -> JsonObject:
    return {**tool(name), "meta": {"a2c_tool_meta": json.dumps({"tags": tags}), **meta}}


def answering(gateway: FakeGateway, *content: JsonObject, **fields: Any) -> None:
    async def answer(data: JsonObject) -> Any:
        return {"content": list(content), **fields}

    gateway.answers["client:tool_call"] = answer


def chat_call(name: str, call_id: str = "call_1", **arguments: Any) -> JsonObject:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def two_computers(gateway: FakeGateway) -> None:
    gateway.computers = {
        "red": [tagged("echo", "speech"), tagged("look", "browser", "slow"), tool("stop")],
        "blue": [tagged("echo", "speech")],
    }


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({}, ["blue__echo", "red__echo", "look", "stop"]),
        ({"computers": ["red"]}, ["red__echo", "look", "stop"]),
        ({"tags": ["slow", "speech"]}, ["blue__echo", "red__echo", "look"]),
        ({"only": ["echo", "stop"]}, ["blue__echo", "red__echo", "stop"]),
        ({"only": ["red__echo"]}, ["red__echo"]),
        ({"only": []}, []),
    ],
)
async def test_a_model_gets_the_tools_of_the_chosen_computers_tags_and_names(filters: Any, names: list[str]) -> None:
    async with fake_gateway() as gateway:
        two_computers(gateway)
        async with agent_at(gateway) as agent:
            assert [each["name"] for each in await agent.openai_tools("responses", **filters)] == names
            assert [each["name"] for each in await agent.anthropic_tools(**filters)] == names


async def test_a_misspelt_filter_is_an_unexpected_keyword_argument() -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        for listing in (agent.openai_tools, agent.anthropic_tools):
            with pytest.raises(TypeError, match="unexpected keyword argument 'onyl'"):
                await listing(onyl=["look"])  # type: ignore[call-arg]
        for find in (agent.finder, agent.get_finder):
            with pytest.raises(TypeError, match="unexpected keyword argument 'keyword'"):
                await find("red", keyword="sales")  # type: ignore[call-arg]


@pytest.mark.parametrize("field", ["computers", "tags", "only"])
async def test_a_filter_that_is_text_is_refused(field: str) -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        with pytest.raises(Malformed, match=f"^{field}: a list of names, not text$"):
            filters: JsonObject = {field: "red"}
            await agent.openai_tools(**filters)


async def test_an_api_that_there_is_not_is_refused_by_the_names_of_those_that_there_are() -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        with pytest.raises(Malformed, match=r"^api: has to be 'chat' or 'responses'$"):
            await agent.openai_tools(api="respnses")  # type: ignore[arg-type]


async def test_a_model_cannot_call_a_tool_that_it_was_not_given() -> None:
    async with fake_gateway() as gateway:
        two_computers(gateway)
        async with agent_at(gateway) as agent:
            await agent.openai_tools(only=["look"])
            assert (await agent.run_tool("look")).text == "look"
            refused = (await agent.run_openai_tool_calls([chat_call("stop")]))[0]
            assert refused["content"] == "Error 404: there is no tool 'stop'"
            misspelt = (await agent.run_openai_tool_calls([chat_call("loko")]))[0]
            assert misspelt["content"] == "Error 404: there is no tool 'loko'; did you mean 'look'?"
            assert [data["tool_name"] for data in gateway.seen("client:tool_call")] == ["look"]


async def test_a_name_that_another_tool_has_by_now_does_not_run_that_tool() -> None:
    async with fake_gateway() as gateway:
        gateway.computers = {"red": [tool("echo")]}
        async with agent_at(gateway) as agent:
            await agent.openai_tools()
            await gateway.leave("red")
            await gateway.enter("blue", [tool("echo")])
            await eventually(lambda: agent.computers() == ["blue"])
            await agent.openai_tools(computers=["red"])
            assert (await agent.run_tool("echo")).text == "Error 404: there is no tool 'echo'"


async def test_all_tool_calls_of_an_answer_run_and_come_back_in_order() -> None:
    async with fake_gateway() as gateway:
        two_computers(gateway)
        async with agent_at(gateway) as agent:
            calls = [chat_call("stop", "a"), chat_call("none", "b"), chat_call("look", "c")]
            messages = await agent.run_openai_tool_calls(calls)
            assert [(each["role"], each["tool_call_id"]) for each in messages] == [
                ("tool", "a"), ("tool", "b"), ("tool", "c"),
            ]  # fmt: skip
            assert await agent.run_openai_tool_calls(None) == []
            output = [
                {"type": "reasoning", "id": "r"},
                {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
            ]
            [item] = await agent.run_openai_tool_calls(output)
            assert item == {"type": "function_call_output", "call_id": "c", "output": "look"}
            content = [
                SimpleNamespace(type="text", text="I look."),
                SimpleNamespace(type="tool_use", id="t", name="look", input={}),
            ]
            [block] = await agent.run_anthropic_tool_uses(content)
            assert (block["tool_use_id"], block["content"]) == ("t", [{"type": "text", "text": "look"}])


async def test_pictures_are_beside_the_messages_in_chat_completions_and_in_the_output_of_responses() -> None:
    shot = {"type": "image", "data": PNG, "mimeType": "image/png"}
    url = f"data:image/png;base64,{PNG}"
    async with fake_gateway() as gateway:
        two_computers(gateway)
        answering(gateway, {"type": "text", "text": "see"}, shot)
        async with agent_at(gateway) as agent:
            first, second, beside = await agent.run_openai_tool_calls(
                [chat_call("look", "a"), chat_call("stop", "b")], pictures=True
            )
            described = "see\n[image/png, 9 bytes, not shown]"
            assert (first["content"], second["tool_call_id"]) == (described, "b")
            assert beside["role"] == "user"
            assert beside["content"][:2] == [
                {"type": "text", "text": "The pictures of tool call a:"},
                {"type": "image_url", "image_url": {"url": url}},
            ]
            assert len(beside["content"]) == 4
            call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
            [item] = await agent.run_openai_tool_calls([call], pictures=True)
            assert item["output"] == [
                {"type": "input_text", "text": "see"},
                {"type": "input_image", "image_url": url},
            ]
            assert [each["output"] for each in await agent.run_openai_tool_calls([call])] == [described]
            block = (
                await agent.run_anthropic_tool_uses([{"type": "tool_use", "id": "t", "name": "look", "input": {}}])
            )[0]
            assert [each["type"] for each in block["content"]] == ["text", "image"]


def test_a_picture_that_an_api_would_refuse_is_described() -> None:
    embedded = ResourceContent("file:///p", "image/png", blob=PNG)
    refused: list[Content] = [
        ImageContent("no base64!", "image/png"),
        ImageContent("", "image/png"),
        ImageContent(PNG, "image/tiff"),
        ImageContent("A" * (MAX_PICTURE + 4), "image/png"),
        ResourceContent("file:///p", "application/pdf", blob=PNG),
    ]
    assert model_parts(CallResult(content=(embedded,))) == [ImageContent(PNG, "image/png")]
    for each in refused:
        [block] = anthropic_output(CallResult(content=(each,)))
        assert (block["type"], "not shown" in block["text"]) == ("text", True)


async def test_a_long_result_is_cut_and_can_be_read_on() -> None:
    whole = "".join(f"line {number}\n" for number in range(1000))
    picture = {"type": "image", "data": PNG, "mimeType": "image/png"}
    async with fake_gateway() as gateway:
        answering(gateway, {"type": "text", "text": whole}, picture, structuredContent={"result": whole})
        async with agent_at(gateway) as agent:
            result = await agent.call_tool("red", "log", max_chars=100)
            shown, image, link = result.content
            assert (shown, image) == (TextContent(whole[:100]), ImageContent(PNG, "image/png"))
            assert isinstance(link, LinkContent)
            assert link.name == f"characters 0 to 100 of {len(whole)}; read on here"
            assert (result.structured_content, result.raw["structuredContent"]) == (None, None)
            assert result.raw["content"][-1]["uri"] == link.uri
            start = link.uri.partition("?")[0]
            assert agent.read_result(start).text == whole
            rest = agent.read_result(link.uri)
            assert (rest.text, len(rest.content)) == (whole[100:], 1)
            page = agent.read_result(f"{start}?offset=7", max_chars=3)
            next_page = page.content[-1]
            assert isinstance(next_page, LinkContent)
            assert (page.text, agent.read_result(next_page.uri).text) == (whole[7:10], whole[10:])
            for wrong_offset in (str(len(whole) + 1), "-1", "x", "1" * 5000):
                with pytest.raises(
                    Malformed, match=f"^uri: its offset has to be a whole number from 0 to {len(whole)}$"
                ):
                    agent.read_result(f"{start}?offset={wrong_offset}")
            with pytest.raises(NotFound, match="call the tool again"):
                agent.read_result("a2c-result://other")
            assert (await agent.call_tool("red", "log", max_chars=len(whole))).structured_content is not None
            for wrong in (0, -1, True, 1.5, "9"):
                with pytest.raises(Malformed, match=r"^max_chars: "):
                    await agent.call_tool("red", "log", max_chars=wrong)  # type: ignore[arg-type]


async def test_a_model_reads_on_in_a_result_that_was_cut() -> None:
    async with fake_gateway() as gateway:
        gateway.computers = {"red": [tool("log"), tool(READ_RESULT)]}
        answering(gateway, {"type": "text", "text": "0123456789"})
        async with agent_at(gateway) as agent:
            names = [each["function"]["name"] for each in await agent.openai_tools(max_chars=4)]
            assert names == [f"red__{READ_RESULT}", "log", READ_RESULT], "a Computer's tool does not get this name"
            message = (await agent.run_openai_tool_calls([chat_call("log")]))[0]
            shown, link = message["content"].split("\n")
            assert shown == "0123"
            uri = link.partition("(")[2].rstrip(")")
            read = []
            for _ in range(2):
                message = (await agent.run_openai_tool_calls([chat_call(READ_RESULT, uri=uri)]))[0]
                text, *more = message["content"].split("\n")
                read.append(text)
                uri = more[0].partition("(")[2].rstrip(")") if more else "x"
            assert (read, uri) == (["4567", "89"], "x")
            wrong = (await agent.run_openai_tool_calls([chat_call(READ_RESULT, uri=uri)]))[0]
            assert wrong["content"].startswith("Error 404: x is not kept")
            await agent.openai_tools()
            assert "there is no tool" in (await agent.run_tool(READ_RESULT, {"uri": uri})).text


async def test_a_tool_whose_results_are_useful_when_long_is_cut_later() -> None:
    async with fake_gateway() as gateway:
        gateway.computers = {"red": [tagged("log", **{"anthropic/maxResultSizeChars": 8})]}
        answering(gateway, {"type": "text", "text": "0123456789"})
        async with agent_at(gateway) as agent:
            await agent.tools("red")
            assert (await agent.call_tool("red", "log", max_chars=4)).text == "01234567"
            assert (await agent.call_tool("red", "other", max_chars=4)).text == "0123"
            assert (await agent.call_tool("red", "log", max_chars=9)).text == "012345678"


def long_result(text: str) -> CallResult:
    return call_result({"content": [], "structuredContent": text}, req_id="r", trace_id="t", duration_s=0)


def uri_of(result: CallResult) -> str:
    link = result.content[-1]
    assert isinstance(link, LinkContent)
    return link.uri


def test_the_newest_texts_are_kept_up_to_a_bound() -> None:
    previews, large = Previews(), "y" * (KEPT_CHARS // 2)
    first, second = (uri_of(previews.cut(long_result(large), 10)) for _ in range(2))
    with pytest.raises(NotFound):
        previews.read(first, 3)
    assert previews.read(second, 3).content[0] == TextContent("yyy")


def test_a_number_of_texts_is_kept_however_short_they_are() -> None:
    previews = Previews()
    uris = [uri_of(previews.cut(long_result("yy"), 1)) for _ in range(KEPT_TEXTS + 1)]
    with pytest.raises(NotFound):
        previews.read(uris[0], 1)
    assert previews.read(uris[1], 1).text


def test_a_text_is_read_by_the_user_alone_for_whom_the_tool_was_called() -> None:
    previews = Previews()
    uri = uri_of(previews.cut(long_result("0123456789"), 3, "anna"))
    assert previews.read(uri, 9, "anna").text
    for other in ("eve", None):
        with pytest.raises(NotFound):
            previews.read(uri, 9, other)
