"""The prompts of an office for MCP clients of MCP 2025 and 2026; the Computers behind it are scripted."""

import time
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from smcp_testing.bridged import ERAS, Bridged, bridged
from smcp_testing.context_computer import ContextComputer, computers_at
from smcp_testing.fake_gateway import fake_gateway
from smcp_testing.mcp_servers.shelf import HOST, document
from smcp_testing.waiting import eventually, longest_step

WHO = {"arguments": [{"name": "who", "required": True}]}


async def named(bridge: Bridged) -> list[str]:
    return [each.name for each in (await bridge.client.list_prompts()).prompts]


async def text(bridge: Bridged, name: str, **arguments: str) -> str:
    (message,) = (await bridge.client.get_prompt(name, arguments)).messages
    assert isinstance(message.content, types.TextContent)
    return message.content.text


def with_prompts(red: ContextComputer, *prompts: dict[str, Any]) -> None:
    red.prompts = list(prompts)


@ERAS
async def test_prompts_of_all_computers_are_listed_filled_in_and_completed(era: str) -> None:
    async with fake_gateway() as gateway:
        made = computers_at(gateway, "blue", "red")
        with_prompts(made["blue"], {"name": "greet", "title": "Greet", "serverId": "a", **WHO})
        with_prompts(made["red"], {"name": "greet", "serverId": "a"}, {"name": "greet", "serverId": "b"})
        async with bridged(gateway, era) as bridge:
            listed = (await bridge.client.list_prompts()).prompts
            assert [(each.name, each.title) for each in listed] == [
                ("greet", "Greet"),
                ("red__a__greet", None),
                ("red__b__greet", None),
            ]
            assert listed[0].arguments == [types.PromptArgument(name="who", required=True)]
            assert await text(bridge, "greet", who="anna") == "blue anna"
            assert await text(bridge, "red__b__greet") == "red"
            assert made["red"].seen("client:prompts/get")[-1]["serverId"] == "b"
            reference = types.PromptReference(name="red__a__greet")
            completed = await bridge.client.complete(reference, {"name": "who", "value": ""})
            assert completed.completion.values == ["greetred"]
            with pytest.raises(MCPError, match="there is no prompt 'gone' that you may use"):
                await bridge.client.get_prompt("gone", {})


async def test_a_prompt_keeps_its_name_while_the_client_is_there() -> None:
    async with fake_gateway() as gateway:
        made = computers_at(gateway, "blue", "red")
        with_prompts(made["red"], {"name": "greet", "serverId": "a"})
        async with bridged(gateway) as bridge:
            assert await named(bridge) == ["greet"]
            with_prompts(made["blue"], {"name": "greet"})
            assert await named(bridge) == ["blue__greet", "greet"]
            assert await text(bridge, "greet") == "red"
            await gateway.notify("notify:leave_office", office_id="office", computer="red")
            await eventually(lambda: "notifications/prompts/list_changed" in bridge.heard)
            assert await named(bridge) == ["greet"]


async def test_a_prompt_whose_computer_has_just_left_is_an_error_that_names_no_other_computer() -> None:
    async def gone(_: dict[str, Any]) -> Any:
        said = "no such Computer in this office: 'red'; did you mean 'rod'?"
        return {"code": 404, "message": said, "details": {"computer": "red"}}

    async with fake_gateway() as gateway:
        with_prompts(computers_at(gateway, "red")["red"], {"name": "greet"})
        async with bridged(gateway) as bridge:
            assert await named(bridge) == ["greet"]
            gateway.answers["client:prompts/get"] = gone
            with pytest.raises(MCPError, match=r"^error 404: its Computer has left the office$"):
                await text(bridge, "greet")


async def test_a_prompt_whose_mcp_server_was_removed_does_not_say_that_its_computer_has_left() -> None:
    async def removed(_: dict[str, Any]) -> Any:
        said = "serverId: this Computer has no MCP server 'a'; there are: b"
        return {"code": 404, "message": said, "details": {"smcp_code": "SMCP_RESOURCE_NOT_FOUND", "field": "serverId"}}

    async with fake_gateway() as gateway:
        with_prompts(computers_at(gateway, "red")["red"], {"name": "greet"})
        async with bridged(gateway) as bridge:
            assert await named(bridge) == ["greet"]
            gateway.answers["client:prompts/get"] = removed
            with pytest.raises(MCPError, match=r"^error 404: .*this Computer has no MCP server 'a'; there are: b$"):
                await text(bridge, "greet")


async def test_a_prompt_of_thousands_of_wrong_messages_is_refused_in_less_time_than_checking_them_all() -> None:
    wrong = {"messages": [{"role": "user", "content": {"type": "text", "text": 1}}] * 5000}
    began = time.thread_time()
    with pytest.raises(ValidationError):
        types.GetPromptResult.model_validate(wrong)
    all_at_once = time.thread_time() - began

    async def answer(data: dict[str, Any]) -> Any:
        return {**data, "payload": {"jsonrpc": "2.0", "id": 1, "result": wrong}}

    async with fake_gateway() as gateway:
        with_prompts(computers_at(gateway, "red")["red"], {"name": "greet"})
        gateway.answers["client:prompts/get"] = answer
        async with bridged(gateway) as bridge:

            async def refused() -> None:
                with pytest.raises(MCPError, match="the prompt 'greet' is not valid in MCP"):
                    await bridge.client.get_prompt("greet", {})

            assert await named(bridge) == ["greet"]
            took = [(await longest_step(refused()))[1] for _ in range(3)]
    assert min(took) < all_at_once / 2


async def test_no_prompt_takes_the_name_of_another_computers_prompt() -> None:
    async with fake_gateway() as gateway:
        made = computers_at(gateway, "blue", "red")
        with_prompts(made["blue"], {"name": "greet"}, {"name": "blue__own"})
        with_prompts(made["red"], {"name": "greet"}, {"name": "blue__greet"})
        async with bridged(gateway) as bridge:
            assert await named(bridge) == ["greet", "blue__own", "red__greet", "red__blue__greet"]


async def test_a_prompt_whose_server_is_no_name_is_left_out_and_costs_no_other() -> None:
    async with fake_gateway() as gateway:
        red = computers_at(gateway, "red")["red"]
        with_prompts(red, {"name": "good"}, *({"name": "bad", "serverId": each} for each in ([1], 7, {"a": 1}, "")))
        async with bridged(gateway) as bridge:
            assert await named(bridge) == ["good"]


async def test_arguments_of_templates_are_completed_by_the_computer_that_has_them() -> None:
    async with fake_gateway() as gateway:
        made = computers_at(gateway, "blue", "red")
        made["red"].shelf.put_document(document("report"))
        async with bridged(gateway) as bridge:
            await bridge.client.list_resources()
            reference = types.ResourceTemplateReference(uri=f"dpe://{HOST}/{{doc_ref}}/pages/{{page_index}}")
            completed = await bridge.client.complete(reference, {"name": "doc_ref", "value": "r"})
            assert completed.completion.values == ["report"]
            chosen = {"doc_ref": "report"}
            pages = await bridge.client.complete(reference, {"name": "page_index", "value": ""}, chosen)
            assert pages.completion.values == ["0", "1"]


async def test_what_an_mcp_server_says_against_a_prompt_reaches_the_client() -> None:
    async with fake_gateway() as gateway:
        red = computers_at(gateway, "red")["red"]
        with_prompts(red, {"name": "greet"})
        async with bridged(gateway) as bridge:
            assert await named(bridge) == ["greet"]
            with_prompts(red)
            with pytest.raises(MCPError, match="Unknown prompt") as refused:
                await bridge.client.get_prompt("greet", {})
            assert refused.value.error.code == -32602
