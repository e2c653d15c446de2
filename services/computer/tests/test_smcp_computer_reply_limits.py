"""Oversized messages of MCP servers, and windows and documents with odd contents."""

import asyncio
from typing import Any

import orjson
import pytest

from smcp_bus.headers import ERROR
from smcp_testing.computer_office import World, world
from smcp_testing.mcp_servers import configs
from smcp_testing.resource_agent import ResourceAgent

BUS = 32 * 1024 * 1024


def window(number: int) -> str:
    return f"window://large/{number}"


async def desktop(here: World, **asked: Any) -> dict[str, int]:
    """The windows that are shown, in their order, with their sizes."""
    reply = await here.raw("get_desktop", {}, **asked)
    assert ERROR not in reply.headers, reply.body
    return {text.partition("\n\n")[0]: len(text) for text in orjson.loads(reply.body)["desktops"]}


@pytest.mark.rule("answers.desktop.large", "desktop.practice.text")
async def test_a_window_larger_than_a_message_is_left_out(nats_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with world(nats_url, {"read_s": 20.0}, bad=configs.context("2025", windows=2, host="bad")) as here:
        await here.tell("bad", "misbehave", uri="window://bad/0", how="big")
        assert list(await desktop(here)) == ["window://bad/1"]
        assert "window://bad/0 is left out of the desktop: it sent an answer of more than" in caplog.text
        assert (await here.ask("get_desktop", window="window://bad/0"))["a2c_missing"] == 1


@pytest.mark.rule("answers.desktop.blob")
async def test_a_window_with_text_is_shown_however_large_the_blob_beside_it(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    blob = {"uri": window(0), "mimeType": "image/png", "blob": "AAAA" * 5_000}
    both = [{"uri": window(0), "text": "the text"}, blob]
    listed = [{"uri": window(0), "contents": both}, {"uri": window(1), "contents": [{**blob, "uri": window(1)}]}]
    async with world(nats_url, {"read_s": 20.0}, large=configs.context("2026", host="large", content=listed)) as here:
        sizes = {window(0): len(window(0)) + 2 + len("the text")}
        assert await desktop(here) == sizes
        assert await desktop(here, window=window(0)) == sizes
        assert await desktop(here, window=window(1)) == {}, "there is nothing to show, and nothing too large"
        assert f"'large': {window(0)}: binary contents cannot be shown" in caplog.text


@pytest.mark.rule("answers.resources.server.large")
async def test_calls_go_on_while_a_server_sends_oversized_messages(nats_url: str) -> None:
    async with world(
        nats_url,
        bad=configs.context("2025", content=[{"uri": "note://big"}]),
        fine=configs.context("2026", windows=1, host="fine"),
    ) as here:
        await here.tell("bad", "misbehave", uri="note://big", how="big")
        reading = asyncio.create_task(ResourceAgent(here).ask("resources/read", uri="note://big"))
        calls = 0
        while not reading.done():
            assert not (await here.call("fine__pid", req_id=f"r{calls}")).get("isError")
            calls += 1
        refused = await reading
        assert (refused["code"], refused["details"]["limit"]) == (413, BUS)
        assert "'bad' sent an answer of more than" in refused["message"]
        assert calls > 1
        assert not (await here.call("bad__pid", req_id="bad")).get("isError"), "the server goes on"


@pytest.mark.rule("answers.finder.categories.sent", "answers.finder.format.ignored")
async def test_odd_parts_of_documents_pass_unchanged_with_one_warning(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def at(uri: str, text: str) -> dict[str, Any]:
        return {"uri": uri, "contents": [{"uri": uri, "text": text}]}

    content = [
        at("dpe://h/d/pages/0", '{"elements":[{"category":"hologram"},{"category":"text"}]}'),
        at("dpe://h/d/elements/e", '{"category":"scent"}'),
        at("dpe://h/d?format=markdown", '{"title":"t","category":"mine"}'),
        at("dpe://h/d/pages/1", "no JSON"),
        at("dpe://h/d/pages/2", '{"elements":[{"category":"text"}]}'),
        at("note://1", '{"category":"scent"}'),
    ]
    async with world(nats_url, one=configs.context("2026", content=content)) as here:
        alice = ResourceAgent(here)
        for _ in range(2):
            for each in content:
                result = await alice.result("resources/read", uri=each["uri"])
                assert result["contents"] == each["contents"]
    said = [record.getMessage() for record in caplog.records if "dpe://h/d" in record.getMessage()]
    assert sorted(said) == [
        "MCP server 'one': dpe://h/d/elements/e: 'scent' is none of the categories of elements; it is kept",
        "MCP server 'one': dpe://h/d/pages/0: 'hologram' is none of the categories of elements; it is kept",
    ]
