"""The resources of an office for MCP clients of MCP 2025 and 2026; the Computers behind it are scripted."""

import asyncio
from base64 import b64encode
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from smcp_testing.bridged import ERAS, Bridged, bridged
from smcp_testing.context_computer import WINDOW, computers_at
from smcp_testing.fake_gateway import fake_gateway
from smcp_testing.mcp_servers.shelf import HOST, document
from smcp_testing.waiting import eventually

PICTURE = "file:///p.png"


async def watch(bridge: Bridged, request: types.SubscribeRequest | types.UnsubscribeRequest) -> None:
    # the SDK's own method warns that MCP 2026 has none
    await bridge.client.session.send_request(request, types.EmptyResult)


def text_of(result: types.ReadResourceResult) -> tuple[str, str]:
    (content,) = result.contents
    assert isinstance(content, types.TextResourceContents)
    return content.uri, content.text


@ERAS
async def test_windows_and_documents_are_listed_and_read_as_their_mcp_server_has_them(era: str) -> None:
    async with fake_gateway() as gateway:
        red = computers_at(gateway, "red")["red"]
        red.page_size = 1
        red.shelf.put(
            PICTURE, {"mimeType": "image/png", "size": 2}, [{"uri": PICTURE, "blob": b64encode(b"hi").decode()}]
        )
        uri = red.shelf.put_document(document("a", title="A report"))
        async with bridged(gateway, era) as bridge:
            listed = (await bridge.client.list_resources()).resources
            assert [each.uri for each in listed] == [WINDOW, PICTURE, uri]
            assert (listed[0].title, listed[1].size) == ("Now at red", 2)
            assert text_of(await bridge.client.read_resource(WINDOW)) == (WINDOW, "red")
            (picture,) = (await bridge.client.read_resource(PICTURE)).contents
            assert isinstance(picture, types.BlobResourceContents)
            assert picture.blob == "aGk="
            templates = (await bridge.client.list_resource_templates()).resource_templates
            assert [each.uri_template for each in templates] == [
                f"dpe://{HOST}/{{doc_ref}}/pages/{{page_index}}",
                f"dpe://{HOST}/{{doc_ref}}/elements/{{element_id}}",
            ]
            page = f"{uri}/pages/0?format=markdown"
            assert text_of(await bridge.client.read_resource(page))[0] == page


async def test_a_uri_that_two_computers_have_is_qualified_for_the_second() -> None:
    async with fake_gateway() as gateway:
        computers_at(gateway, "blue", "red 1")
        async with bridged(gateway) as bridge:
            uris = [each.uri for each in (await bridge.client.list_resources()).resources]
            assert uris == [WINDOW, f"smcp://red%201/{WINDOW}"]
            assert [text_of(await bridge.client.read_resource(uri)) for uri in uris] == [
                (uris[0], "blue"),
                (uris[1], "red 1"),
            ]
            assert text_of(await bridge.client.read_resource(f"smcp://blue/{WINDOW}"))[1] == "blue"


async def test_what_no_list_names_is_asked_of_the_computers_in_turn() -> None:
    async with fake_gateway() as gateway:
        made = computers_at(gateway, "blue", "red")
        made["red"].shelf.put("file:///only", None, [{"uri": "file:///only", "text": "here"}])
        async with bridged(gateway) as bridge:
            assert text_of(await bridge.client.read_resource("file:///only"))[1] == "here"
            with pytest.raises(MCPError) as refused:
                await bridge.client.read_resource("file:///nowhere")
            with pytest.raises(MCPError, match="Resource not found"):  # what that Computer says
                await bridge.client.read_resource("smcp://red/file:///nowhere")
    said = "no Computer that you may ask has this resource"
    assert (refused.value.error.code, refused.value.error.message) == (-32602, said)


@pytest.mark.parametrize("uri", ["smcp://gone/file:///a", "smcp://", "http://[", "window://x/y"])
async def test_a_uri_that_nobody_has_is_an_error_and_no_more(uri: str) -> None:
    async with fake_gateway() as gateway:
        computers_at(gateway, "red")
        async with bridged(gateway) as bridge:
            with pytest.raises(MCPError):
                await bridge.client.read_resource(uri)
            assert len((await bridge.client.list_resources()).resources) == 1


async def test_a_client_hears_that_a_watched_window_changed_until_it_says_enough() -> None:
    async with fake_gateway() as gateway:
        red = computers_at(gateway, "red")["red"]
        async with bridged(gateway) as bridge:
            await watch(bridge, types.SubscribeRequest(params=types.SubscribeRequestParams(uri=WINDOW)))
            assert red.subscribed == {WINDOW}
            await gateway.notify("notify:resources/updated", **red.says("resources/updated", uri=WINDOW))
            await eventually(lambda: "notifications/resources/updated" in bridge.heard)
            await watch(bridge, types.UnsubscribeRequest(params=types.UnsubscribeRequestParams(uri=WINDOW)))
            assert red.subscribed == set()
            await gateway.notify("notify:resources/list_changed", **red.says("resources/list_changed"))
            await eventually(lambda: "notifications/resources/list_changed" in bridge.heard)


async def test_a_client_of_2026_watches_as_long_as_its_stream_is_open() -> None:
    async with fake_gateway() as gateway:
        red = computers_at(gateway, "red")["red"]
        async with bridged(gateway, "2026-07-28") as bridge:
            async with bridge.client.listen(resource_subscriptions=[WINDOW, f"smcp://gone/{WINDOW}"]) as changes:
                assert red.subscribed == {WINDOW}
                await gateway.notify("notify:resources/updated", **red.says("resources/updated", uri=WINDOW))
                async with asyncio.timeout(30):
                    change = await anext(aiter(changes))
                assert getattr(change, "uri", None) == WINDOW
            await eventually(lambda: red.subscribed == set())


async def test_a_computer_that_does_not_list_its_resources_costs_only_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smcp_agent.mcp.resources.LIST_S", 3.0)
    async with fake_gateway() as gateway:
        computers_at(gateway, "hung", "red")
        listing = gateway.answers["client:resources/list"]

        async def answer(data: dict[str, Any]) -> Any:
            return await (gateway.never if data["computerId"] == "hung" else listing)(data)

        gateway.answers["client:resources/list"] = answer
        async with bridged(gateway) as bridge:
            assert [each.uri for each in (await bridge.client.list_resources()).resources] == [WINDOW]


async def test_a_computer_that_lists_resources_without_end_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smcp_agent.mcp.resources.LIST_S", 600.0)
    async with fake_gateway() as gateway:
        endless = computers_at(gateway, "endless", "red")["endless"]
        listing = gateway.answers["client:resources/list"]

        async def answer(data: dict[str, Any]) -> Any:
            if data["computerId"] == "red":
                return await listing(data)
            cursor = int(data["payload"]["params"].get("cursor", 0)) + 1
            items = [{"uri": f"file:///{cursor}-{number}", "name": ""} for number in range(1000)]
            return endless._reply(data, result={"resources": items, "nextCursor": str(cursor)})

        gateway.answers["client:resources/list"] = answer
        async with bridged(gateway) as bridge, asyncio.timeout(60):
            assert await uris(bridge) == [WINDOW]


async def test_a_uri_keeps_its_computer_while_that_one_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smcp_agent.mcp.resources.LIST_S", 3.0)
    async with fake_gateway() as gateway:
        blue = computers_at(gateway, "blue", "red")["blue"]
        listing = gateway.answers["client:resources/list"]
        async with bridged(gateway) as bridge:
            assert WINDOW in await uris(bridge)

            async def answer(data: dict[str, Any]) -> Any:
                return await (gateway.never if data["computerId"] == "blue" else listing)(data)

            gateway.answers["client:resources/list"] = answer
            await gateway.notify("notify:resources/list_changed", **blue.says("resources/list_changed"))
            await eventually(lambda: _are(bridge, [f"smcp://red/{WINDOW}"]))
            await gateway.leave("blue")
            await eventually(lambda: _are(bridge, [WINDOW]))


async def uris(bridge: Bridged) -> list[str]:
    return [each.uri for each in (await bridge.client.list_resources(cache_mode="bypass")).resources]


async def _are(bridge: Bridged, wanted: list[str]) -> bool:
    return await uris(bridge) == wanted


async def test_a_content_that_is_neither_text_nor_bytes_is_an_error() -> None:
    async with fake_gateway() as gateway:
        red = computers_at(gateway, "red")["red"]
        red.shelf.put("file:///odd", None, [{"uri": "file:///odd"}])
        async with bridged(gateway) as bridge:
            with pytest.raises(MCPError, match="the content of file:///odd is not valid in MCP"):
                await bridge.client.read_resource("file:///odd")
