"""The MCP server of an office, asked by the MCP SDK's client of MCP 2025 and 2026; what is behind it is scripted."""

import asyncio
import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND

from smcp_agent import NotFound, ToolProgress
from smcp_agent.mcp.tools import ToolListOptions, ToolMode
from smcp_testing.bridged import ERAS, Bridged, bridged
from smcp_testing.fake_gateway import answered_the_second_time, fake_gateway, tool
from smcp_testing.waiting import eventually

LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}")
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}


@ERAS
async def test_a_tool_is_listed_as_its_mcp_server_lists_it(era: str) -> None:
    async with fake_gateway() as gateway:
        meta = {
            "owner": "math",
            "ui": '{"resourceUri": "ui://add"}',
            "said": '["a"]',
            "a2c_tool_meta": '{"tags": ["x"]}',
            "MCP_TOOL_ANNOTATION": '{"title": "Adder", "readOnlyHint": true}',
            "a2c_mcp_tool": '{"title": "Add", "icons": [{"src": "https://example.com/i.png"}]}',
        }
        listed = {**tool("add", "Adds."), "params_schema": SCHEMA, "return_schema": SCHEMA, "meta": meta}
        gateway.computers["red"] = [listed]
        async with bridged(gateway, era) as bridge:
            (found,) = (await bridge.client.list_tools()).tools
    assert found.model_dump(by_alias=True, mode="json", exclude_none=True) == {
        "name": "add",
        "title": "Add",
        "description": "Adds.",
        "inputSchema": SCHEMA,
        "outputSchema": SCHEMA,
        "annotations": {"title": "Adder", "readOnlyHint": True},
        "icons": [{"src": "https://example.com/i.png"}],
        "_meta": {"owner": "math", "ui": {"resourceUri": "ui://add"}, "said": '["a"]'},
    }


async def test_names_are_legal_sorted_and_qualified_only_where_two_computers_share_one() -> None:
    async with fake_gateway() as gateway:
        gateway.computers |= {"red": [tool("stop"), tool("echo")], "blue": [tool("echo"), tool("回声")]}
        async with bridged(gateway) as bridge:
            names = await bridge.names()
            assert names == sorted(names)
            assert {"stop", "red__echo", "blue__echo"} < set(names)
            assert all(map(LEGAL.fullmatch, names))
            assert await bridge.text("red__echo") == "echo"
            assert [data["computer"] for data in gateway.seen("client:tool_call")] == ["red"]


@ERAS
async def test_a_name_stays_with_the_tool_that_had_it_first(era: str) -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("echo")]
        async with bridged(gateway, era) as bridge:
            assert await bridge.names() == ["echo"]
            await gateway.enter("blue", [tool("echo")])
            await eventually(lambda: len(gateway.seen("client:get_tools")) == 2)
            await eventually(lambda: _is(bridge, ["blue__echo", "echo"]))
            await gateway.leave("red")
            await eventually(lambda: _is(bridge, ["blue__echo"]))
            assert await bridge.text("echo") == "echo"  # red's gateway knows whether red comes back
            assert [data["computer"] for data in gateway.seen("client:tool_call")] == ["red"]
            await gateway.enter("red", [tool("echo")])
            await eventually(lambda: _is(bridge, ["blue__echo", "echo"]))


@ERAS
async def test_a_long_list_of_tools_comes_in_pages(era: str) -> None:
    names = [f"t{number:04}" for number in range(2500)]
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool(name) for name in names]
        async with bridged(gateway, era, listing=ToolListOptions(ToolMode.ALL)) as bridge:
            first = await bridge.client.list_tools()
            second = await bridge.client.list_tools(cursor=first.next_cursor)
            assert [each.name for each in (*first.tools, *second.tools)] == names
            assert second.next_cursor is None
            for wrong in ("x", "-1", "10000000000"):
                with pytest.raises(MCPError, match="there is no such cursor"):
                    await bridge.client.list_tools(cursor=wrong)


async def test_a_page_of_large_tools_is_shorter() -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool(f"t{number}", "x" * 1024 * 1024) for number in range(6)]
        async with bridged(gateway, listing=ToolListOptions(ToolMode.ALL)) as bridge:
            first = await bridge.client.list_tools()
            second = await bridge.client.list_tools(cursor=first.next_cursor)
            assert [len(first.tools), len(second.tools)] == [3, 3]


async def test_a_very_long_name_is_not_kept_for_a_tool_that_is_gone() -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("x" * 2000), tool("y" * 200)]
        async with bridged(gateway) as bridge:
            long, short = await bridge.names()
            await gateway.leave("red")
            await eventually(lambda: _is(bridge, []))
            assert await bridge.text(long) == f"!Error 404: there is no tool '{long}' that you may use"
            assert await bridge.text(short) == "y" * 200  # red's gateway knows whether red comes back


async def _is(bridge: Bridged, names: list[str]) -> bool:
    return await bridge.names() == names


async def test_a_client_hears_of_computers_that_come_and_go() -> None:
    async with fake_gateway() as gateway:
        async with bridged(gateway) as bridge:
            assert await bridge.names() == []
            await gateway.enter("red", [tool("echo")])
            await eventually(lambda: bridge.heard.count("notifications/tools/list_changed") == 1)
            assert await bridge.names() == ["echo"]
            await gateway.leave("red")
            await eventually(lambda: bridge.heard.count("notifications/tools/list_changed") == 2)
            assert await bridge.names() == []


async def test_a_client_of_2026_hears_of_changes_that_it_asked_to_hear() -> None:
    async with fake_gateway() as gateway:
        async with bridged(gateway, "2026-07-28") as bridge, bridge.client.listen(tools_list_changed=True) as changes:
            await gateway.enter("red", [tool("echo")])
            async with asyncio.timeout(30):
                assert type(await anext(aiter(changes))).__name__ == "ToolsListChanged"
            assert await bridge.names() == ["echo"]


@ERAS
async def test_a_result_passes_as_the_tool_gave_it(era: str) -> None:
    said = {
        "content": [
            {"type": "text", "text": "two", "annotations": {"priority": 0.5}},
            {"type": "image", "data": "aGk=", "mimeType": "image/png", "_meta": {"a": 1}},
            {"type": "resource_link", "uri": "file:///a", "name": "a"},
        ],
        "structuredContent": {"n": None, "list": [1, "二"]},
        "isError": True,
        "meta": {"example.com/x": {"deep": [1]}},
    }

    async def answer(_: dict[str, Any]) -> Any:
        return said

    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("look")]
        gateway.answers["client:tool_call"] = answer
        async with bridged(gateway, era) as bridge:
            result = await bridge.client.call_tool("look", {"x": 1})
        (call,) = gateway.seen("client:tool_call")
    found = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    assert (call["params"], call["tool_name"], call["timeout"]) == ({"x": 1}, "look", 3600)
    assert found["content"] == said["content"]
    assert found["structuredContent"] == said["structuredContent"]
    assert found["isError"] is True
    assert found["_meta"]["example.com/x"] == {"deep": [1]}


@ERAS
async def test_content_that_mcp_does_not_know_reaches_the_client_as_text_and_not_the_log(
    era: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The MCP SDK refused such a result: the client got an error, and the log ten lines for each content."""
    strange: list[Any] = [{}, {"type": "hologram", "é": 1}, {"type": "text"}, {"type": "resource", "resource": {}}]
    strange.append({"text": "it has no type"})
    content = [*strange, {"type": "text", "text": "fine", "annotations": {"priority": 0.5}}]
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("show")]

        async def answer(_: Any) -> Any:
            return {"content": content * 300, "structuredContent": {"x": 1}}

        gateway.answers["client:tool_call"] = answer
        async with bridged(gateway, era) as bridge:
            caplog.clear()
            result = await bridge.client.call_tool("show", {})
    shown = {"type": "text", "text": "\n".join(json.dumps(each, ensure_ascii=False) for each in strange)}
    given = [each.model_dump(by_alias=True, mode="json", exclude_none=True) for each in result.content]
    assert given == [shown, content[-1]] * 300, "thousands of contents of their own would hold the event loop"
    assert (result.is_error, result.structured_content) == (False, {"x": 1})
    assert caplog.text == ""


@ERAS
async def test_structured_content_that_is_a_list_reaches_the_clients_whose_version_of_mcp_has_it(
    era: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("show")]

        async def answer(_: Any) -> Any:
            return {"content": [{"type": "text", "text": "[1]"}], "structuredContent": [1], "isError": True}

        gateway.answers["client:tool_call"] = answer
        async with bridged(gateway, era) as bridge:
            caplog.clear()
            result = await bridge.client.call_tool("show", {})
    assert [each.text for each in result.content if each.type == "text"] == ["[1]"]
    assert (result.is_error, result.structured_content) == (True, None if era == "legacy" else [1])
    assert caplog.text == ""


async def test_an_error_of_the_office_is_a_result_that_a_model_can_read() -> None:
    async def refuse(_: dict[str, Any]) -> Any:
        return {"code": 400, "message": "params.a: is wrong", "details": {"field": "params.a"}}

    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("echo")]
        gateway.answers["client:tool_call"] = refuse
        async with bridged(gateway) as bridge:
            assert await bridge.text("echo") == "!Error 400: params.a: is wrong"
            assert await bridge.text("nothing") == "!Error 404: there is no tool 'nothing' that you may use"


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
@ERAS
async def test_a_client_that_wants_the_log_is_told_that_an_office_has_none(era: str) -> None:
    async with fake_gateway() as gateway, bridged(gateway, era) as bridge:
        with pytest.raises(MCPError, match="logging is not supported") as refused:
            await bridge.client.set_logging_level("debug")
        assert refused.value.error.code == METHOD_NOT_FOUND


@ERAS
async def test_a_cancelled_call_is_cancelled_in_the_office(era: str) -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("sleep")]
        gateway.answers["client:tool_call"] = gateway.never
        async with bridged(gateway, era) as bridge:
            call = asyncio.create_task(bridge.client.call_tool("sleep", {}))
            await eventually(lambda: gateway.seen("client:tool_call"))
            call.cancel()
            await eventually(lambda: gateway.seen("server:tool_call_cancel"))
            assert await bridge.names() == ["sleep"]
        (cancelled,) = gateway.seen("server:tool_call_cancel")
        assert cancelled["req_id"] == gateway.seen("client:tool_call")[0]["req_id"]


@ERAS
async def test_tools_that_mcp_cannot_express_cost_only_themselves_and_one_line_in_the_log(
    era: str, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = {"meta": {"MCP_TOOL_ANNOTATION": '{"title": 5}'}}
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [
            *({**tool(f"odd{number}"), **wrong} for number in range(3)),
            {**tool("bare"), "params_schema": {}, "meta": {"MCP_TOOL_ANNOTATION": "no JSON", "a2c_mcp_tool": "[]"}},
        ]
        async with bridged(gateway, era) as bridge:
            caplog.clear()
            assert await bridge.names() == ["bare"]
    (said,) = caplog.messages
    assert said.startswith("tools/list: 3 items are not valid in MCP, and left out; the first is {")


async def test_a_computer_that_does_not_answer_delays_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smcp_agent.mcp.resources.LIST_S", 0.05)
    async with fake_gateway() as gateway:
        gateway.computers |= {"hung": [], "red": [tool("echo")]}

        async def answer(data: dict[str, Any]) -> Any:
            if data["computer"] == "hung":
                await gateway.never(data)
            return {"tools": gateway.computers[data["computer"]], "req_id": data["req_id"]}

        gateway.answers["client:get_tools"] = answer
        async with bridged(gateway) as bridge:
            assert await bridge.names() == ["echo"]


async def test_calls_fail_while_the_office_is_away_and_work_when_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smcp_agent.mcp.tools.AWAY_S", 0.05)
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("echo")]
        async with bridged(gateway) as bridge:
            await gateway.leave("red")  # as Computers do before their gateway ends
            await eventually(lambda: _is(bridge, []))
            gateway.computers["red"] = [tool("echo")]
            await gateway.stop()
            await eventually(lambda: not bridge.agent.connected)
            assert (await bridge.text("echo")).startswith("!Error 503: the connection was not back in time")
            await gateway.start()
            await eventually(lambda: _says(bridge, "echo"))
            await gateway.stop()
            await eventually(lambda: not bridge.agent.connected)
            said = await bridge.text("echo")
            assert said.startswith("!Error 503: the connection was not back in time")
            assert "may have run" not in said
            assert await bridge.names() == ["echo"]


@ERAS
async def test_a_call_in_flight_fails_when_the_office_stays_away(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smcp_agent.mcp.tools.AWAY_S", 0.05)
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("sleep")]
        gateway.answers["client:tool_call"] = gateway.never
        async with bridged(gateway, era) as bridge:
            call = asyncio.create_task(bridge.text("sleep"))
            await eventually(lambda: gateway.seen("client:tool_call"))
            await gateway.stop()
            said = await call
            await gateway.start()
    assert said.startswith("!Error 503: the connection was not back in time")
    assert said.endswith("(the tool may have run nevertheless)")


async def test_a_call_in_flight_outlives_a_short_loss_of_the_connection() -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("sleep")]
        answered_the_second_time(gateway)
        async with bridged(gateway) as bridge:
            call = asyncio.create_task(bridge.text("sleep"))
            await eventually(lambda: gateway.seen("client:tool_call"))
            gateway.cut()
            assert await call == "done"


async def _says(bridge: Bridged, text: str) -> bool:
    return await bridge.text(text) == text


@ERAS
async def test_progress_reaches_the_client_that_asked_for_it(era: str) -> None:
    heard: list[tuple[float, float | None, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    async with fake_gateway() as gateway:

        async def answer(data: dict[str, Any]) -> Any:
            ids = {key: data[key] for key in ("agent", "computer", "req_id")}
            await gateway.notify("notify:tool_progress", **ids, progress=1, total=2, message="half")
            await eventually(lambda: heard)
            return {"content": []}

        gateway.computers["red"] = [tool("dig")]
        gateway.answers["client:tool_call"] = answer
        async with bridged(gateway, era) as bridge:
            await bridge.client.call_tool("dig", {}, progress_callback=hear)
            assert heard == [(1, 2, "half")]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_client_that_reads_slowly_gets_the_last_progress_before_the_answer(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    told: list[float] = []
    reads = asyncio.Event()

    async def report(_: ServerSession, progress: float, *__: object) -> None:
        told.append(progress)
        await reads.wait()

    async def call(*_: object, on_progress: Any, **__: object) -> Any:
        on_progress(ToolProgress(progress=1))
        await eventually(lambda: told)
        for progress in (2, 100):
            on_progress(ToolProgress(progress=progress))
        if fails:
            raise NotFound("gone")
        return SimpleNamespace(raw={"content": []})

    async def ignore(progress: float, total: float | None, message: str | None) -> None:
        pass

    monkeypatch.setattr(ServerSession, "report_progress", report)
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("dig")]
        async with bridged(gateway) as bridge:
            monkeypatch.setattr(bridge.agent, "call_tool", call)
            calling = asyncio.create_task(bridge.client.call_tool("dig", {}, progress_callback=ignore))
            await eventually(lambda: told)
            await bridge.names()
            assert not calling.done()
            reads.set()
            assert (await calling).is_error is fails
            assert told == [1, 100]
