"""Oversized replies: the largest windows are left out, and a page of documents is refused."""

import asyncio
from typing import Any

import orjson
import pytest

from smcp_bus.headers import ERROR, REPLY_LIMIT
from smcp_computer.handlers.get_desktop import largest_items
from smcp_testing.computer_office import World, world
from smcp_testing.mcp_servers import configs
from smcp_testing.resource_agent import ResourceAgent
from smcp_testing.waiting import eventually

BUS = 32 * 1024 * 1024


def window(number: int) -> str:
    return f"window://large/{number}"


async def desktop(here: World, limit: int | None = None, **asked: Any) -> dict[str, int]:
    """The windows that are shown, in their order, with their sizes; the answer has at most `limit` bytes."""
    headers = {} if limit is None else {REPLY_LIMIT: str(limit)}
    reply = await here.raw("get_desktop", headers, **asked)
    assert ERROR not in reply.headers, reply.body
    assert len(reply.body) <= (limit or BUS)
    return {text.partition("\n\n")[0]: len(text) for text in orjson.loads(reply.body)["desktops"]}


@pytest.mark.rule("answers.desktop.large", "desktop.practice.text")
async def test_the_largest_windows_are_left_out_of_an_oversized_desktop(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(
        nats_url,
        {"read_s": 20.0},
        bad=configs.context("2025", windows=2, host="bad"),
        large=configs.context("2026", host="large"),
    ) as here:
        await here.tell("bad", "misbehave", uri="window://bad/0", how="big")
        assert list(await desktop(here)) == ["window://bad/1"]
        assert "window://bad/0 is left out of the desktop: it is too large" in caplog.text
        refused = await here.ask("get_desktop", window="window://bad/0")
        assert (refused["code"], refused["details"]["limit"]) == (413, BUS)
        await here.tell("bad", "remove", uri="window://bad/0")
        for number, size in enumerate((120_000, 130_000, 120_000)):
            uri = window(number)
            await here.tell("large", "put", uri=uri, contents=[{"uri": uri, "text": "x" * size}])
        await eventually(lambda: _lists(here, 1, 3), timeout=30)
        assert list(await desktop(here, 400_000)) == ["window://bad/1", window(0), window(1), window(2)]
        assert list(await desktop(here, 250_000)) == ["window://bad/1", window(0), window(2)]
        assert "'large': window://large/1 is left out of the desktop: together the windows are larger" in caplog.text
        assert list(await desktop(here, 250_000, desktop_size=3)) == ["window://bad/1", window(0)]
        assert list(await desktop(here, 200_000)) == ["window://bad/1", window(0)]
        assert list(await desktop(here, 10_000)) == ["window://bad/1"]
        assert list(await desktop(here, 10_000, desktop_size=1)) == ["window://bad/1"]
        assert await desktop(here, 200_000, window=window(1)) == {window(1): 130_000 + len(window(1)) + 2}
        for limit in (10_000, 130_050):
            refused = await here.ask("get_desktop", {REPLY_LIMIT: str(limit)}, window=window(1))
            assert (refused["code"], refused["details"]["limit"]) == (413, limit)


@pytest.mark.rule("answers.desktop.blob")
async def test_a_window_with_text_is_shown_however_large_the_blob_beside_it(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    blob = {"uri": window(0), "mimeType": "image/png", "blob": "AAAA" * 5_000}
    both = [{"uri": window(0), "text": "the text"}, blob]
    listed = [{"uri": window(0), "contents": both}, {"uri": window(1), "contents": [{**blob, "uri": window(1)}]}]
    async with world(nats_url, {"read_s": 20.0}, large=configs.context("2026", host="large", content=listed)) as here:
        sizes = {window(0): len(window(0)) + 2 + len("the text")}
        assert await desktop(here, 10_000) == sizes
        assert await desktop(here, 10_000, window=window(0)) == sizes
        assert await desktop(here, 10_000, window=window(1)) == {}, "there is nothing to show, and nothing too large"
        assert f"'large': {window(0)}: binary contents cannot be shown" in caplog.text


def _lists(here: World, *counts: int) -> bool:
    known = [here.computer.resources.index.known(server) for server in ("bad", "large")]
    return [len(listed) for listed in known] == list(counts)


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


@pytest.mark.rule("answers.finder.large")
async def test_a_page_of_documents_that_its_caller_cannot_take_is_refused_and_a_smaller_one_is_not(
    nats_url: str,
) -> None:
    content = [{"document": {"ref": f"d{number}", "summary": "s" * 5_000}} for number in range(3)]
    async with world(nats_url, one=configs.context("2026", host="h", content=content)) as here:
        refused = await here.ask("get_finder", {REPLY_LIMIT: "12000"})
        assert (refused["code"], refused["details"]["limit"]) == (413, 12000)
        page = await here.ask("get_finder", {REPLY_LIMIT: "12000"}, limit=2)
        assert [each["summary"] for each in page["documents"]] == ["s" * 5_000] * 2
        assert page["total_count"] == 3


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


@pytest.mark.rule("answers.desktop.large")
@pytest.mark.parametrize(
    ("sizes", "room", "giving"),
    [
        ([], 0, set()),
        ([3, 4], 8, set()),
        ([3, 4], 7, {1}),
        ([4, 4, 4], 9, {2}),
        ([1, 9, 5], 7, {1}),
        ([1, 9, 5], 6, {1, 2}),
        ([5], 4, {0}),
        ([5], -9, {0}),
    ],
)
def test_the_fewest_and_largest_items_are_left_out(sizes: list[int], room: int, giving: set[int]) -> None:
    assert largest_items(sizes, room) == giving
