"""More documents than there is room for: what is kept of them, what is read again, and what is said of the rest."""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from smcp_bus.door.dispatch import Door
from smcp_bus.door.types import Caller
from smcp_computer.finder import catching_up
from smcp_computer.finder import library as library_module
from smcp_computer.finder.at_need import AT_ONCE, PER_SERVER
from smcp_computer.finder.library import Library
from smcp_computer.finder.overflow import METRIC
from smcp_computer.handlers.get_finder import Finder
from smcp_computer.mcp.errors import RequestRefused, ServerTimedOut
from smcp_proto import catalog
from smcp_proto.documents import Document
from smcp_proto.finder import organize_finder
from smcp_testing.document_servers import Servers, answer, listed, opened, titles
from smcp_testing.waiting import eventually

WIDE = 10**7


def described(server: str, uri: str) -> dict[str, Any]:
    """Metadata in which the number of the document counts."""
    number = int(uri.rpartition("/d")[2])
    return answer(
        title=f"title {number:05}",
        summary="s" * 300,
        file_type=("pdf", "xlsx")[number % 2],
        page_count=number,
        last_modified=f"2026-01-{number % 28 + 1:02}",
    )


async def page(library: Library, documents: Sequence[Document], **asked: Any) -> tuple[list[Any], int]:
    """The titles of a page of the catalog, and how many of its documents are as they are listed."""
    found = organize_finder(documents, asked.pop("keywords", None), asked.pop("file_type", None), (), **asked)
    shown, missing = await library.whole(found.documents, documents, timeout=10)
    return [summary.get("title") for summary in shown], missing


@pytest.mark.rule("answers.finder.kept", "answers.finder.kept.index")
@pytest.mark.parametrize("cache_bytes", [0, 1500, WIDE])
async def test_the_catalog_is_the_same_however_few_metadata_are_kept(cache_bytes: int) -> None:
    servers, lists = Servers(), {"a": listed("a", 20), "b": listed("b", 20)}
    servers.say = described
    async with opened(servers, cache_bytes=cache_bytes) as library:
        documents = await library.documents(lists, timeout=10)
        assert library.kept_bytes <= cache_bytes
        assert library.as_listed(lists) == 0
        assert await page(library, documents, keywords=["title 00007"]) == (["title 00007"] * 2, 0)
        assert await page(library, documents, file_type="pdf", limit=3) == (
            ["title 00018", "title 00016", "title 00014"],
            0,
        )
        assert await page(library, documents, offset=18, limit=4) == (
            ["title 00001", "title 00000", "title 00019", "title 00018"], 0,
        )  # fmt: skip


@pytest.mark.rule("answers.finder.kept.index")
async def test_only_what_is_shown_is_read_again_side_by_side_and_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    servers = Servers()
    servers.say = described
    lists = {f"s{number:02}": listed(f"s{number:02}", 50) for number in range(40)}
    async with opened(servers, cache_bytes=0) as library:
        documents = await library.documents(lists, timeout=30)
        assert len(servers.read) == 2000
        servers.read, servers.most = [], {"": 0}
        titles_of_page, missing = await page(library, documents, keywords=["title 00049"], limit=40)
        assert (titles_of_page, missing) == (["title 00049"] * 40, 0)
        assert sorted(servers.read) == [f"dpe://{name}/d49" for name in lists]
        await page(library, documents, limit=100)
        assert servers.most["s00"] == PER_SERVER
        assert servers.most[""] <= AT_ONCE
        assert library.kept_bytes == 0
    assert caplog.text.count("SMCP_FINDER_CACHE_BYTES") == 1


@pytest.mark.rule("answers.finder.as_listed")
@pytest.mark.parametrize(
    "wrong", [ServerTimedOut("a", "was silent"), RequestRefused("a", -32602, "gone", None), {"contents": []}, None]
)
async def test_what_cannot_be_read_again_is_shown_as_it_is_listed_at_its_place_and_counted(wrong: Any) -> None:
    servers, lists, asked_before = Servers(), {"a": listed("a", 4)}, set[str]()

    def say(server: str, uri: str) -> dict[str, Any]:
        if uri.endswith("d2") and uri in asked_before:
            if isinstance(wrong, Exception):
                raise wrong
            return wrong  # type: ignore[no-any-return]
        asked_before.add(uri)
        return described(server, uri)

    servers.say = say
    async with opened(servers, cache_bytes=0) as library:
        documents = await library.documents(lists, timeout=10)
        if wrong is None:  # it does not come at all
            servers.gate.clear()
            found = organize_finder(documents, None, None, ())
            shown, missing = await library.whole(found.documents, documents, timeout=0.05)
            servers.gate.set()
            assert ([summary["title"] for summary in shown], missing) == (["name 3", "name 2", "name 1", "name 0"], 4)
            return
        assert await page(library, documents) == (["title 00003", "name 2", "title 00001", "title 00000"], 1)


@pytest.mark.rule("answers.finder.kept.index")
async def test_a_document_that_changes_is_found_by_what_it_says_now() -> None:
    servers, lists = Servers(), {"a": listed("a", 3)}
    servers.say = described
    async with opened(servers, cache_bytes=0) as library:
        await library.documents(lists, timeout=10)
        servers.say = lambda server, uri: answer(title=f"new {uri[-1:]}")
        library.changed("a", "dpe://a/d1")
        documents = await library.documents(lists, timeout=10)
        assert await page(library, documents, keywords=["new"]) == (["new 1"], 0)


@pytest.mark.rule("answers.finder.kept.nothing")
async def test_above_the_bound_of_the_index_documents_are_as_listed_counted_and_said_by_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reader = InMemoryMetricReader()
    meter = MeterProvider(metric_readers=[reader]).get_meter("test")
    servers = Servers()
    servers.say = described
    async with opened(servers, index_bytes=4000, meter=meter) as library:
        for _ in range(2):
            await library.documents({"a": listed("a", 30)}, timeout=10)
        documents = await library.documents({"a": listed("a", 30)}, timeout=10)
        known = sum(str(title).startswith("title") for title in titles(documents))
        assert (len(documents), library.as_listed({"a"})) == (30, 30 - known)
        assert 0 < known < 30
        assert len(servers.read) == 30, "they are not asked for all the time"
        [said] = caplog.messages
        assert said.startswith(f"MCP server 'a': the metadata of {30 - known} of its documents are not kept")
        assert "SMCP_FINDER_INDEX_BYTES" in said
        assert gauged(reader) == {"a": 30 - known}
        found = await finder(library, {"a": listed("a", 30)})
        assert found["a2c_as_listed"] == 30 - known
        await library.documents({}, timeout=10)
        assert gauged(reader) == {"a": 0}
        assert "a2c_as_listed" not in await finder(library, {"b": listed("b", 3)})


@pytest.mark.rule("answers.finder.kept.nothing")
async def test_what_did_not_fit_is_read_once_there_is_room_again() -> None:
    servers = Servers()
    servers.say = described
    both = {"a": listed("a", 8), "b": listed("b", 4)}
    async with opened(servers, index_bytes=3000) as library:
        await library.documents({"a": both["a"]}, timeout=10)
        await library.documents(both, timeout=10)
        assert library.as_listed({"b"}) == 4
        assert titles(await library.documents({"b": both["b"]}, timeout=10)) == [f"title {n:05}" for n in range(4)]
        assert library.as_listed({"b"}) == 0


@pytest.mark.rule("answers.finder.missing")
async def test_the_index_of_what_a_catalog_lacked_is_told_of_though_the_rest_is_not_kept() -> None:
    servers, lists = Servers(), {"a": listed("a", 3)}
    servers.say = described
    servers.gate.clear()
    async with opened(servers, cache_bytes=0) as library:
        assert titles(await library.documents(lists, timeout=0.01)) == ["name 0", "name 1", "name 2"]
        servers.gate.set()
        await eventually(lambda: servers.told == 1)
        documents = await library.documents(lists, timeout=10)
        assert await page(library, documents, keywords=["title 00002"]) == (["title 00002"], 0)
        assert servers.told == 1


@pytest.mark.rule("answers.finder.missing")
async def test_what_a_catalog_lacked_and_there_is_no_room_for_is_not_told_and_not_asked_for_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library_module, "RETRY_S", 0.0)
    monkeypatch.setattr(catching_up, "CATCH_UP_S", 0.02)

    def waiting() -> bool:
        return any(task.get_name() == "finder:a:again" for task in asyncio.all_tasks())

    servers, lists = Servers(), {"a": listed("a", 3)}
    servers.say = described
    servers.gate.clear()
    async with opened(servers, index_bytes=0) as library:
        for _ in range(2):
            assert titles(await library.documents(lists, timeout=0.01)) == ["name 0", "name 1", "name 2"]
            assert waiting()
        servers.gate.set()
        await eventually(lambda: not waiting())
        for _ in range(2):
            assert titles(await library.documents(lists, timeout=10)) == ["name 0", "name 1", "name 2"]
            assert library.as_listed(lists) == 3
            assert not waiting()
        assert sorted(servers.read) == [*lists["a"]], "each once"
        assert servers.told == 0


async def test_ten_thousand_documents_of_20_servers_are_answered_from_the_cache_within_50_ms() -> None:
    servers = Servers()
    servers.say = described
    lists = {f"s{number:02}": listed(f"s{number:02}", 500) for number in range(20)}
    async with opened(servers, cache_bytes=WIDE, index_bytes=WIDE) as library:
        await library.documents(lists, timeout=60)
        assert library.as_listed(lists) == 0
        took = []
        for _ in range(7):
            began = time.thread_time()
            assert (await finder(library, lists, keywords=["title 00499"]))["total_count"] == 20
            took.append(time.thread_time() - began)
        assert sorted(took)[3] < 0.05


async def finder(library: Library, lists: dict[str, Any], **asked: Any) -> dict[str, Any]:
    """The answer to `client:get_finder`."""

    async def known(timeout: float) -> dict[str, Any]:
        return lists

    door = Door({"client:get_finder": Finder(library, known, tuple, wait_s=30.0, max_body=2**25)})
    body = json.dumps({"agent": "a", "req_id": "r", "computer": "c", **asked}).encode()
    answered = await asyncio.wait_for(
        door.dispatch(catalog.CATALOG["client:get_finder"], Caller(role="agent", office="o"), body), 60
    )
    assert answered.error is None, answered.body
    found: dict[str, Any] = json.loads(answered.body)
    return found


def gauged(reader: InMemoryMetricReader) -> dict[str, int]:
    """How many documents are not kept, by server."""
    data = reader.get_metrics_data()
    assert data is not None
    [metric] = data.resource_metrics[0].scope_metrics[0].metrics
    assert metric.name == METRIC
    points = json.loads(metric.to_json())["data"]["data_points"]
    return {point["attributes"]["smcp.mcp_server"]: point["value"] for point in points}
