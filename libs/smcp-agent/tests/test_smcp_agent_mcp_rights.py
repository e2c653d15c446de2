"""An MCP client with rights: it may use some tools and some Computers of an office only."""

import asyncio
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from smcp_agent.llm import NamedTool
from smcp_agent.mcp.resources import Context
from smcp_testing.bridged import ERAS, shared_office
from smcp_testing.context_computer import WINDOW, computers_at
from smcp_testing.fake_gateway import fake_gateway, tool
from smcp_testing.mcp_servers.shelf import HOST, document

REFUSED = "no Computer that you may ask has this resource"
REPORT = f"dpe://{HOST}/report"


def only_red(context: Context, computer: str) -> bool:
    return computer == "red"


async def text_of(client: Any, uri: str) -> str:
    (content,) = (await client.client.read_resource(uri)).contents
    assert isinstance(content, types.TextResourceContents)
    return content.text


@ERAS
async def test_a_tool_that_a_client_may_not_use_is_neither_listed_nor_called_for_it(era: str) -> None:
    def may(context: Context | None, named: NamedTool) -> bool:
        asked_by_a_request = context is None or context.method in ("tools/list", "tools/call")
        return named.tool.name == "echo" and asked_by_a_request

    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("echo"), tool("wipe")]
        async with shared_office(gateway, may) as client, client(era) as bridge:
            assert await bridge.names() == ["echo"]
            assert await bridge.text("echo") == "echo"
            assert await bridge.text("wipe") == "!Error 404: there is no tool 'wipe' that you may use"
            await gateway.leave("red")
            while await bridge.names():
                pass
            assert await bridge.text("wipe") == "!Error 404: there is no tool 'wipe' that you may use"
        assert [call["tool_name"] for call in gateway.seen("client:tool_call")] == ["echo"]


@ERAS
async def test_a_client_gets_no_resources_of_computers_that_it_may_not_ask(era: str) -> None:
    async with fake_gateway() as gateway:
        made = computers_at(gateway, "blue", "red")
        made["blue"].shelf.put_document(document("report"))
        async with shared_office(gateway, may_ask=only_red) as client, client(era) as bridge:
            listed = (await bridge.client.list_resources()).resources
            assert [each.uri for each in listed] == [WINDOW]
            assert await text_of(bridge, WINDOW) == "red"
            for uri in (f"smcp://blue/{WINDOW}", f"smcp://nobody/{WINDOW}"):
                with pytest.raises(MCPError, match=REFUSED):
                    await bridge.client.read_resource(uri)
            with pytest.raises(MCPError, match=REFUSED):
                await bridge.client.read_resource(REPORT)
            reference = types.ResourceTemplateReference(
                uri=f"smcp://blue/dpe://{HOST}/{{doc_ref}}/pages/{{page_index}}"
            )
            with pytest.raises(MCPError, match=REFUSED):
                await bridge.client.complete(reference, {"name": "doc_ref", "value": ""})
        assert made["blue"].seen("client:resources/read") == []


@ERAS
async def test_a_client_gets_no_prompts_of_computers_that_it_may_not_ask(era: str) -> None:
    may_ask_blue = True

    def may_ask(context: Context, computer: str) -> bool:
        return computer == "red" or may_ask_blue

    async with fake_gateway() as gateway:
        made = computers_at(gateway, "blue", "red")
        made["blue"].prompts = [{"name": "greet"}]
        made["red"].prompts = [{"name": "greet"}]
        async with shared_office(gateway, may_ask=may_ask) as client, client(era) as bridge:
            listed = (await bridge.client.list_prompts()).prompts
            assert [each.name for each in listed] == ["greet", "red__greet"]
            may_ask_blue = False
            listed = (await bridge.client.list_prompts()).prompts
            assert [each.name for each in listed] == ["red__greet"]
            for name in ("greet", "nothing"):
                with pytest.raises(MCPError, match=f"there is no prompt '{name}' that you may use"):
                    await bridge.client.get_prompt(name, {})
            with pytest.raises(MCPError, match="there is no prompt 'greet' that you may use"):
                await bridge.client.complete(types.PromptReference(name="greet"), {"name": "who", "value": ""})
        assert made["blue"].seen("client:prompts/get") == []


async def test_a_client_cannot_watch_what_another_one_watches_at_a_computer_that_it_may_not_ask() -> None:
    allowed = {"blue", "red"}
    request = types.SubscribeRequest(params=types.SubscribeRequestParams(uri=WINDOW))
    async with fake_gateway() as gateway:
        computers_at(gateway, "blue", "red")
        async with shared_office(gateway, may_ask=lambda _, computer: computer in allowed) as client:
            async with client("legacy") as first, client("legacy") as second:
                await first.client.session.send_request(request, types.EmptyResult)
                allowed.clear()
                with pytest.raises(MCPError, match=REFUSED):
                    await second.client.session.send_request(request, types.EmptyResult)


async def test_a_stream_hears_of_no_resource_at_a_computer_that_its_client_may_not_ask() -> None:
    allowed = {"blue", "red"}
    async with fake_gateway() as gateway:
        blue = computers_at(gateway, "blue", "red")["blue"]
        async with shared_office(gateway, may_ask=lambda _, computer: computer in allowed) as client:
            async with client("2026-07-28") as first, client("2026-07-28") as second:
                async with first.client.listen(resource_subscriptions=[WINDOW]) as all_changes:
                    allowed.clear()
                    async with second.client.listen(
                        resource_subscriptions=[WINDOW], tools_list_changed=True
                    ) as changes:
                        await gateway.notify("notify:resources/updated", **blue.says("resources/updated", uri=WINDOW))
                        async with asyncio.timeout(30):
                            await anext(aiter(all_changes))
                            await gateway.enter("green", [tool("echo")])
                            assert getattr(await anext(aiter(changes)), "uri", None) is None
