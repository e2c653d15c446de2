"""Many tools as a search: what MCP clients of MCP 2025 and 2026 list, find, describe and call."""

import asyncio
import json
import tracemalloc
from random import Random
from typing import Any, Final, cast

import mcp_types as types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_agent.llm import NamedTool, name_tools
from smcp_agent.mcp.resources import Context
from smcp_agent.mcp.tools import OfficeTools, ToolListOptions, ToolMode
from smcp_proto.schemas import SMCPTool
from smcp_testing.bridged import ERAS, Bridged, bridged, shared_office
from smcp_testing.fake_gateway import fake_gateway, tool
from smcp_testing.waiting import eventually, longest_step

SEARCH: Final = ["search_tools", "describe_tool", "call_tool"]
ALWAYS: Final = ToolListOptions(ToolMode.SEARCH)
DAY: Final = {"type": "object", "properties": {"day": {"type": "string"}}}
CHANGED: Final = "notifications/tools/list_changed"


async def found(bridge: Bridged, query: str, **more: Any) -> list[str]:
    """The names that a search finds, in its order."""
    result = await bridge.client.call_tool("search_tools", {"query": query, **more})
    assert result.structured_content is not None, result.content
    return [each["name"] for each in result.structured_content["tools"]]


async def _lists(bridge: Bridged, names: list[str]) -> bool:
    return await bridge.names() == names


@ERAS
async def test_a_client_lists_the_search_while_the_office_has_more_tools_than_the_limit(era: str) -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("echo"), tool("sing")]
        async with bridged(gateway, era, listing=ToolListOptions(max_tools=2)) as bridge:
            assert await bridge.names() == ["echo", "sing"]
            await gateway.enter("blue", [tool("dance")])
            await eventually(lambda: _lists(bridge, SEARCH))
            assert await bridge.text("echo") == "echo"
            await gateway.leave("blue")
            await eventually(lambda: _lists(bridge, ["echo", "sing"]))
            assert await bridge.text("call_tool", name="sing") == "sing"


async def test_a_client_is_notified_when_the_list_becomes_a_search() -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("echo")]
        async with bridged(gateway, listing=ToolListOptions(max_tools=1)) as bridge:
            await gateway.enter("blue", [tool("dance")])
            await eventually(lambda: CHANGED in bridge.heard)
            assert await bridge.names() == SEARCH


async def test_forty_tools_are_listed_and_forty_one_are_searched() -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool(f"t{number}") for number in range(40)]
        async with bridged(gateway) as bridge:
            assert len(await bridge.names()) == 40
            await gateway.enter("blue", [tool("dance")])
            await eventually(lambda: _lists(bridge, SEARCH))


async def test_all_tools_are_listed_where_that_is_wanted() -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("echo"), tool("sing")]
        async with bridged(gateway, listing=ToolListOptions(ToolMode.ALL, max_tools=1)) as bridge:
            assert await bridge.names() == ["echo", "sing"]


async def test_each_client_can_have_its_own_way_of_listing() -> None:
    def mode(context: Context) -> ToolMode:
        return ToolMode.SEARCH if context.protocol_version == "2026-07-28" else ToolMode.ALL

    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("echo")]
        async with (
            shared_office(gateway, listing=ToolListOptions(mode)) as client,
            client("legacy") as first,
            client("2026-07-28") as second,
        ):
            assert await first.names() == ["echo"]
            assert await second.names() == SEARCH


async def test_a_thousand_tools_cost_less_than_a_thousand_tokens_of_list() -> None:
    async with fake_gateway() as gateway:
        for computer in range(20):
            described = [tool(f"tool_{number}", "Does a thing. " * 20, properties={}) for number in range(50)]
            gateway.computers[f"a-computer-with-a-long-name-{computer}"] = described
        async with bridged(gateway) as bridge:
            listed = await bridge.client.list_tools()
    text = listed.model_dump_json(by_alias=True, exclude_none=True)
    assert [each.name for each in listed.tools] == SEARCH
    # 4 bytes are a token of English and JSON on average; 2.5 leave room for every tokenizer.
    assert len(text.encode()) / 2.5 < 1000, text


@ERAS
async def test_a_search_gives_names_computers_and_one_line_of_each_description(era: str) -> None:
    async with fake_gateway() as gateway:
        gateway.computers |= {
            "red": [tool("read_file", "Reads\n  a file.  " + "x" * 300), tool("sing")],
            "blue": [tool("write_file", "Writes a file.")],
        }
        async with bridged(gateway, era, listing=ALWAYS) as bridge:
            await bridge.names()
            result = await bridge.client.call_tool("search_tools", {"query": "read files"})
    assert result.structured_content == {
        "tools": [
            {"name": "read_file", "computer": "red", "description": "Reads a file. " + "x" * 185 + "…"},
            {"name": "write_file", "computer": "blue", "description": "Writes a file."},
        ],
        "total": 2,
    }
    assert isinstance(result.content[0], types.TextContent)
    assert json.loads(result.content[0].text) == result.structured_content


async def test_a_search_gives_as_many_tools_as_it_is_asked_for_and_says_how_many_there_are() -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool(f"file_{number}") for number in range(60)]
        async with bridged(gateway) as bridge:
            assert len(await found(bridge, "file")) == 10
            assert len(await found(bridge, "file", limit=50)) == 50
            result = await bridge.client.call_tool("search_tools", {"query": "file", "limit": 1})
            assert result.structured_content is not None
            assert result.structured_content["total"] == 60
            assert await found(bridge, "nothing like it") == []


@pytest.mark.parametrize(
    "query", ["reads", "workbook", "spreadsheet", "cells", "sums", "office", "getTotal", "total", "求和", "Adder"]
)
async def test_a_tool_is_found_by_name_title_description_parameters_tags_and_computer(query: str) -> None:
    adder = tool(
        "getTotal", "Reads a workbook; 计算总和并求和。", properties={"cell": {"description": "What it sums"}, "b": 5}
    )
    adder["meta"] = {"a2c_tool_meta": '{"tags": ["spreadsheet"]}', "a2c_mcp_tool": '{"title": "Adder"}'}
    async with fake_gateway() as gateway:
        gateway.computers |= {"back-office": [adder], "red": [tool("echo", "Says it again.")]}
        async with bridged(gateway, listing=ALWAYS) as bridge:
            assert await found(bridge, query) == ["getTotal"]


async def test_the_search_follows_tools_that_change() -> None:
    async with fake_gateway() as gateway:
        gateway.computers |= {"red": [tool("go", "Walks.")], "blue": [tool("stay", "Sits.")]}
        async with bridged(gateway, listing=ALWAYS) as bridge:
            assert await found(bridge, "walks") == ["go"]
            gateway.computers["red"] = [tool("go", "Flies.")]
            await gateway.notify("notify:update_tool_list", computer="red")
            await eventually(lambda: _finds(bridge, "flies", ["go"]))
            assert await found(bridge, "walks") == []
            assert await found(bridge, "sits") == ["stay"]


async def _finds(bridge: Bridged, query: str, names: list[str]) -> bool:
    return await found(bridge, query) == names


@ERAS
async def test_a_tool_is_described_as_the_whole_list_has_it(era: str) -> None:
    add = tool("add", "Adds.", type="object", properties={"x": {"type": "integer"}})
    add |= {"return_schema": {"type": "object"}, "meta": {"MCP_TOOL_ANNOTATION": '{"readOnlyHint": true}', "a": "b"}}
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [add]
        async with bridged(gateway, era) as bridge:
            (listed,) = (await bridge.client.list_tools()).tools
            described = (await bridge.client.call_tool("describe_tool", {"name": "add"})).structured_content
    assert described == listed.model_dump(by_alias=True, mode="json", exclude_none=True)


@ERAS
async def test_a_call_through_call_tool_gives_what_the_tool_gave(era: str) -> None:
    said = {
        "content": [{"type": "text", "text": "two"}],
        "structuredContent": {"n": 2},
        "isError": True,
        "meta": {"a": 1},
    }

    async def answer(_: dict[str, Any]) -> Any:
        return said

    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("look")]
        gateway.answers["client:tool_call"] = answer
        async with bridged(gateway, era, listing=ALWAYS) as bridge:
            direct = await bridge.client.call_tool("look", {"x": 1})
            through = await bridge.client.call_tool("call_tool", {"name": "look", "arguments": {"x": 1}})
        calls = gateway.seen("client:tool_call")
    assert through == direct
    assert [(call["tool_name"], call["params"]) for call in calls] == [("look", {"x": 1})] * 2


@ERAS
async def test_progress_and_cancel_pass_through_call_tool(era: str) -> None:
    heard = asyncio.Event()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.set()

    async with fake_gateway() as gateway:

        async def answer(data: dict[str, Any]) -> Any:
            ids = {key: data[key] for key in ("agent", "computer", "req_id")}
            await gateway.notify("notify:tool_progress", **ids, progress=1)
            await gateway.never(data)

        gateway.computers["red"] = [tool("dig")]
        gateway.answers["client:tool_call"] = answer
        async with bridged(gateway, era, listing=ALWAYS) as bridge:
            calling = asyncio.create_task(bridge.client.call_tool("call_tool", {"name": "dig"}, progress_callback=hear))
            async with asyncio.timeout(30):
                await heard.wait()
            calling.cancel()
            await eventually(lambda: gateway.seen("server:tool_call_cancel"))


@ERAS
async def test_a_question_of_a_tool_is_asked_and_answered_through_call_tool(era: str) -> None:
    form = {"method": "elicitation/create", "params": {"message": "Which day?", "requestedSchema": DAY}}

    async def ask(data: dict[str, Any]) -> Any:
        if "input_state" in data:
            return {"content": [{"type": "text", "text": data["input_responses"]["q"]["content"]["day"]}]}
        return {"content": [], "isError": True, "meta": {"a2c_input_required": {"requests": {"q": form}, "state": "s"}}}

    async def on_input(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert params.message == "Which day?"
        return types.ElicitResult(action="accept", content={"day": "friday"})

    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("book")]
        gateway.answers["client:tool_call"] = ask
        async with bridged(gateway, era, on_input, ALWAYS) as bridge:
            assert await bridge.text("call_tool", name="book", arguments={"for": 2}) == "friday"
        assert [call["params"] for call in gateway.seen("client:tool_call")] == [{"for": 2}] * 2


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("search_tools", {}, "Error 400: query: is missing"),
        ("search_tools", {"query": ""}, "Error 400: query: must have at least 1 character"),
        ("search_tools", {"query": "a" * 501}, "Error 400: query: must have at most 500 characters"),
        ("search_tools", {"query": "a", "limit": 51}, "Error 400: limit: must be less than or equal to 50"),
        ("search_tools", {"query": "a", "max": 1}, "Error 400: max: is not a known field"),
        ("search_tools", {"q": "a"}, "Error 400: query: is missing"),
        ("describe_tool", {"name": 5}, "Error 400: name: must be a string"),
        ("describe_tool", {"tool": "echo"}, "Error 400: name: is missing"),
        ("describe_tool", {"name": "echo", "x": 1}, "Error 400: x: is not a known field"),
        (
            "describe_tool",
            {"name": "ehco"},
            "Error 404: there is no tool 'ehco' that you may use; did you mean 'echo'?",
        ),
        (
            "call_tool",
            {"name": "ehco"},
            "Error 404: there is no tool 'ehco' that you may use; did you mean 'echo'?",
        ),
        ("call_tool", {"name": "echo", "params": {}}, "Error 400: params: is not a known field"),
        ("call_tool", {"name": "echo", "arguments": "{}"}, "Error 400: arguments: must be an object"),
        (
            "call_tool",
            {"name": "call_tool"},
            "Error 404: there is no tool 'call_tool' that you may use",
        ),
        ("ehco", {}, "Error 404: there is no tool 'ehco' that you may use; did you mean 'echo'?"),
    ],
)
async def test_a_mistake_is_a_result_that_names_the_field_or_what_was_probably_meant(
    name: str, arguments: dict[str, Any], said: str
) -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("echo"), tool("echos")]  # less like `ehco`
        async with bridged(gateway, listing=ALWAYS) as bridge:
            assert await bridge.text(name, **arguments) == f"!{said}"
        assert gateway.seen("client:tool_call") == []


@ERAS
async def test_what_a_client_may_not_use_is_not_found_described_called_or_suggested(era: str) -> None:
    def may(_: Context | None, named: NamedTool) -> bool:
        return named.computer == "red"

    async with fake_gateway() as gateway:
        gateway.computers |= {"red": [tool("echo")], "secret": [tool("wipe", "Like echo.", properties={"echo": {}})]}
        async with shared_office(gateway, may, ALWAYS) as client, client(era) as bridge:
            listed = (await bridge.client.list_tools()).tools
            assert listed[0].description is not None
            assert listed[0].description.endswith("Computers: red")
            assert await found(bridge, "echo wipe secret like") == ["echo"]
            for via in ("describe_tool", "call_tool"):
                for name in ("wipe", "wip"):
                    said = f"!Error 404: there is no tool {name!r} that you may use"
                    assert await bridge.text(via, name=name) == said
            assert await bridge.text("call_tool", name="echo") == "echo"
        assert [call["tool_name"] for call in gateway.seen("client:tool_call")] == ["echo"]


async def test_a_client_gets_a_search_by_the_number_of_tools_that_it_may_use() -> None:
    def may(context: Context | None, named: NamedTool) -> bool:
        return named.computer == "red" or (context is not None and context.protocol_version == "2026-07-28")

    async with fake_gateway() as gateway:
        gateway.computers |= {"red": [tool("echo")], "blue": [tool("sing")]}
        async with (
            shared_office(gateway, may, ToolListOptions(max_tools=1)) as client,
            client("legacy") as first,
            client("2026-07-28") as second,
        ):
            assert await first.names() == ["echo"]
            assert await second.names() == SEARCH


@ERAS
async def test_tools_that_are_always_listed_stand_beside_the_search(era: str) -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("git_log"), tool("git_diff"), tool("sing"), tool("open")]
        async with bridged(gateway, era, listing=ToolListOptions(max_tools=3, always=("git_*",))) as bridge:
            assert await bridge.names() == [*SEARCH, "git_diff", "git_log"]
        async with bridged(gateway, era, listing=ToolListOptions(max_tools=1, always=("git_d*",))) as bridge:
            assert await bridge.names() == [*SEARCH, "git_diff"]


async def test_a_tool_that_is_called_as_one_of_the_search_gets_the_name_of_its_computer() -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("search_tools", "Searches a shed.")]
        async with bridged(gateway) as bridge:
            assert await bridge.names() == ["red__search_tools"]
            assert await found(bridge, "shed") == ["red__search_tools"]
            assert await bridge.text("red__search_tools") == "search_tools"


async def test_tools_can_be_searched_while_the_office_cannot_be_reached() -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("echo")]
        async with bridged(gateway, listing=ALWAYS) as bridge:
            await gateway.stop()
            await eventually(lambda: not bridge.agent.connected)
            assert await found(bridge, "echo") == ["echo"]
            await gateway.start()


async def test_the_first_search_of_many_long_tools_stops_the_event_loop_for_at_most_50_ms() -> None:
    parameters = {f"p{number}": {"description": "a word " * 500} for number in range(20)}
    long = [
        SMCPTool(name=f"t{number}", description=f"word{number:03} " * 10_000, params_schema={"properties": parameters})
        for number in range(300)
    ]
    tools = OfficeTools(lambda _, __: True, ToolListOptions())
    tools.put(name_tools({"red": long}))
    anybody: Any = None
    results, longest = await longest_step(tools.search(anybody, "word007"))
    assert [each.name for each in results] == ["t7"]
    assert longest < 0.05


async def test_only_the_beginning_of_a_description_is_searched() -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("echo", "early " + "x" * 2000 + " late", properties={"sound": {}})]
        async with bridged(gateway, listing=ALWAYS) as bridge:
            assert await found(bridge, "early") == await found(bridge, "sound") == ["echo"]
            assert await found(bridge, "late") == []


WORDS: Final = ("read", "write", "file", "Mail", "table", "42", "a", "読")
NAMES: Final = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map("_".join)
TEXTS: Final = st.lists(st.sampled_from((*WORDS, "…", "-")), max_size=6).map(" ".join)
OFFICES: Final = st.dictionaries(
    st.sampled_from(("red", "blue", "…")),
    st.lists(st.builds(lambda name, text: SMCPTool(name=name, description=text, params_schema={}), NAMES, TEXTS)),
)


def search(query: str, tools: list[NamedTool]) -> list[NamedTool]:
    listed, anybody = OfficeTools(lambda _, __: True, ToolListOptions()), cast("Any", None)
    listed.put(tools)
    return asyncio.run(listed.search(anybody, query))


def words(text: str) -> list[str]:
    return text.casefold().replace("_", " ").replace("-", " ").replace("…", " ").split()


@given(OFFICES, TEXTS)
def test_a_search_finds_the_tools_that_share_a_word_with_it_each_once(
    office: dict[str, list[SMCPTool]], query: str
) -> None:
    tools = name_tools(office)
    results = search(query, tools)
    assert len(results) == len({each.name for each in results})
    for each in tools:
        text = f"{each.tool.name} {each.tool.description} {each.computer}"
        assert (each in results) == bool(set(words(query)) & set(words(text)))


@given(OFFICES, TEXTS, st.randoms(use_true_random=False))
def test_the_order_of_results_does_not_depend_on_the_order_of_tools_or_on_words_said_twice(
    office: dict[str, list[SMCPTool]], query: str, random: Random
) -> None:
    tools = name_tools(office)
    results = search(query, tools)
    random.shuffle(tools)
    assert search(query, tools) == results
    assert search(f"{query} {query}", tools) == results


@given(OFFICES, TEXTS)
def test_a_tool_that_has_a_word_in_its_name_comes_before_one_that_has_it_in_its_description(
    office: dict[str, list[SMCPTool]], query: str
) -> None:
    others = [each for each in name_tools(office) if "zebra" not in each.name]
    by_name = NamedTool("feed_zebra", "zoo", SMCPTool(name="feed_zebra", description="ark", params_schema={}))
    by_text = NamedTool("feed_ark", "zoo", SMCPTool(name="feed_ark", description="zebra", params_schema={}))
    results = search("zebra", [*others, by_text, by_name])
    assert results == [by_name, by_text], query


def test_what_a_search_keeps_of_tools_is_not_much_larger_than_they_are() -> None:
    description = "".join(map(chr, range(0x4E00, 0x4E00 + 2000)))  # each character is a word
    properties = {f"p{number}": {"description": description[number:]} for number in range(20)}
    large = [
        SMCPTool(name=f"t{number}", description=description, params_schema={"properties": properties})
        for number in range(20)
    ]
    listed, anybody = OfficeTools(lambda _, __: True, ToolListOptions()), cast("Any", None)
    listed.put(name_tools({"red": large}))
    tracemalloc.start()
    try:
        assert len(asyncio.run(listed.search(anybody, "\u4e00"))) == 20
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 20 * 3 * len(json.dumps(properties, ensure_ascii=False))
