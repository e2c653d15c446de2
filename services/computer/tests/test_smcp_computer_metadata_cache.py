"""The metadata cache: metadata are read once, several at a time, and read again after a change; its bound in bytes, its
speed with 10,000 documents, and servers that are slow, silent or gone.

A function stands for the MCP servers; real servers are in `test_smcp_computer_finder.py`.
"""

import asyncio
import json
import time
from typing import Any

import pytest

from smcp_bus.callers import Caller
from smcp_bus.dispatch import Dispatcher
from smcp_computer import finder as cache_module
from smcp_computer.access import Access
from smcp_computer.finder import Finder, MetadataCache
from smcp_computer.mcp.errors import (
    AnswerTooLarge,
    BadAnswer,
    RequestRefused,
    ServerDied,
    ServerError,
    ServerNotRunning,
    ServerTimedOut,
)
from smcp_computer.mcp.resources import AT_ONCE
from smcp_computer.tools import Catalogue, History
from smcp_proto import catalog
from smcp_testing.document_servers import Servers, answer, listed, listing, opened, titles
from smcp_testing.waiting import eventually


async def test_metadata_are_read_once_and_kept() -> None:
    servers, lists = Servers(), {"a": listed("a", 3)}
    async with opened(servers) as cache:
        first = await cache.documents(lists, timeout=10)
        assert titles(first) == ["title of d0", "title of d1", "title of d2"]
        assert await cache.documents(lists, timeout=10) == first
        assert await cache.documents({"a": listed("a", 3)}, timeout=10) == first, "the same in another list"
        assert sorted(servers.read) == ["dpe://a/d0", "dpe://a/d1", "dpe://a/d2"]


@pytest.mark.rule("finder.update.content")
@pytest.mark.parametrize(
    ("uri", "again"),
    [
        ("dpe://a/d1", ["dpe://a/d1"]),
        ("dpe://a/d1/pages/4", ["dpe://a/d1"]),
        ("dpe://a/d1/elements/e?format=text", ["dpe://a/d1"]),
        ("dpe://a", ["dpe://a/d0", "dpe://a/d1", "dpe://a/d2"]),
        ("dpe://b/d1", []),
        ("dpe://a/unknown", []),
        ("window://a/d1", []),
        ("no uri", []),
        (None, ["dpe://a/d0", "dpe://a/d1", "dpe://a/d2"]),
    ],
)
async def test_a_change_makes_the_documents_concerned_unread(uri: str | None, again: list[str]) -> None:
    servers, lists = Servers(), {"a": listed("a", 3)}
    async with opened(servers) as cache:
        await cache.documents(lists, timeout=10)
        kept, servers.read = cache.kept_bytes, []
        cache.changed("b", uri)
        cache.changed("a", uri)
        await cache.documents(lists, timeout=10)
        assert sorted(servers.read) == again
        assert cache.kept_bytes == kept


async def test_a_change_does_not_search_all_documents() -> None:
    servers, lists = Servers(), {"a": listed("a", 10_000)}
    servers.gate.clear()  # the update comes while a request waits for the catalog
    async with opened(servers) as cache:
        await cache.documents(lists, timeout=0.01)
        began = time.thread_time()
        for number in range(1000):
            cache.changed("a", f"dpe://a/d{number}")
        assert time.thread_time() - began < 0.5, "all of them are gone through for each"


async def test_a_document_that_changes_while_it_is_read_is_read_again_for_the_waiting_request() -> None:
    servers, lists = Servers(), {"a": listed("a", 3)}
    servers.gate.clear()
    async with opened(servers) as cache:
        asking = asyncio.create_task(cache.documents(lists, timeout=10))
        await eventually(lambda: len(servers.read) == 3)
        for uri in ("dpe://a/d0", "dpe://a/d2", "file:///x", "dpe://a/d1"):
            cache.changed("a", uri)
        servers.gate.set()
        assert titles(await asking) == ["title of d0", "title of d1", "title of d2"]
        assert sorted(servers.read) == sorted(2 * [*lists["a"]])


async def test_a_document_without_updates_is_read_again_when_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "UNSUBSCRIBED_S", 0.0)
    servers, lists = Servers(), {"a": listed("a", 2)}
    async with opened(servers, told=lambda server: {"dpe://a/d0"}) as cache:
        await cache.documents(lists, timeout=10)
        servers.read, kept = [], cache.kept_bytes
        servers.say = lambda server, uri: answer(title=f"nouvel of {uri[-2:]}")
        assert titles(await cache.documents(lists, timeout=10)) == ["title of d0", "nouvel of d1"]
        assert servers.read == ["dpe://a/d1"]
        assert cache.kept_bytes == kept + 1
        monkeypatch.setattr(cache_module, "UNSUBSCRIBED_S", 60.0)
        await cache.documents(lists, timeout=10)
        assert servers.read == ["dpe://a/d1"]


@pytest.mark.rule("finder.update.list")
async def test_after_a_new_list_only_new_documents_are_read() -> None:
    servers = Servers()
    async with opened(servers) as cache:
        await cache.documents({"a": listed("a", 2)}, timeout=10)
        servers.read = []
        another = listing("dpe://a/d1", "dpe://a/d0", "dpe://a/d7")
        documents = await cache.documents({"a": another}, timeout=10)
        assert titles(documents) == ["title of d1", "title of d0", "title of d7"]
        assert servers.read == ["dpe://a/d7"]
        assert await cache.documents({"a": listing()}, timeout=10) == ([], 0)
        assert cache.kept_bytes == 0


async def test_metadata_of_a_server_that_is_gone_are_dropped() -> None:
    servers = Servers()
    async with opened(servers) as cache:
        await cache.documents({"a": listed("a", 2)}, timeout=10)
        assert cache.kept_bytes > 0
        cache.changed("a")
        assert cache.kept_bytes == 0
        await cache.documents({"a": listed("a", 2)}, timeout=10)
        assert len(servers.read) == 4


@pytest.mark.rule("finder.server.level_1")
async def test_resources_other_than_documents_are_not_read() -> None:
    servers = Servers()
    others = ["window://a", "dpe://a", "dpe://a/d/pages/1", "dpe:///d", "dpe://a/%zz", "file:///x", "", "dpe:"]
    async with opened(servers) as cache:
        assert await cache.documents({"a": listing(*others)}, timeout=10) == ([], 0)
        assert servers.read == []
    invalid = ("dpe:///d", "dpe://a/%zz", "dpe:")
    assert listing(*others).problems == [f"lists {uri!r}, which is not a dpe:// URI" for uri in invalid]


@pytest.mark.rule("answers.finder.kept")
async def test_at_most_four_documents_of_a_server_are_read_at_a_time() -> None:
    servers = Servers()
    lists = {f"s{number:02}": listed(f"s{number:02}", 50) for number in range(20)}
    async with opened(servers) as cache:
        documents, _ = await cache.documents(lists, timeout=30)
        assert len(documents) == len(servers.read) == 1000
        assert servers.most["s00"] == AT_ONCE


async def test_an_answer_to_a_read_from_before_a_change_is_thrown_away() -> None:
    servers, lists = Servers(), {"a": listed("a", 1)}
    servers.gate.clear()
    said = iter([answer(title="old"), answer(title="new")])
    servers.say = lambda server, uri: next(said)
    async with opened(servers) as cache:
        await cache.documents(lists, timeout=0.3)  # it is asked within that
        cache.changed("a", "dpe://a/d0")
        servers.gate.set()
        assert titles(await cache.documents(lists, timeout=10)) == ["new"]


@pytest.mark.rule("answers.finder.unreadable")
@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"contents": None},
        {"contents": []},
        {"contents": ["x", None, {}]},
        {"contents": [{"uri": "x", "blob": "e30="}]},
        {"contents": [{"uri": "x", "text": ""}]},
        {"contents": [{"uri": "x", "text": "# Markdown"}]},
        {"contents": [{"uri": "x", "text": "[]"}]},
        {"contents": [{"uri": "x", "text": "null"}]},
        {"contents": [{"uri": "x", "text": '{"a":' + "[" * 200 + "]" * 200 + "}"}]},
        BadAnswer("a", "sent contents that are not a list"),
        AnswerTooLarge("a", limit=1),
        RequestRefused("a", -32602, "no such resource", None),
    ],
)
async def test_a_document_with_unusable_metadata_is_shown_as_listed_and_a_refused_one_is_left_out(
    wrong: dict[str, Any] | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    servers, lists = Servers(), {"a": listed("a", 3)}

    def say(server: str, uri: str) -> dict[str, Any]:
        if uri.endswith("d1"):
            if isinstance(wrong, Exception):
                raise wrong
            return wrong
        return answer(title=uri)

    servers.say = say
    async with opened(servers) as cache:
        for _ in range(3):
            shown = [] if isinstance(wrong, RequestRefused) else ["name 1"]
            assert titles(await cache.documents(lists, timeout=10)) == ["dpe://a/d0", *shown, "dpe://a/d2"]
    assert sum("dpe://a/d1" in record.getMessage() for record in caplog.records) == 1
    assert servers.read.count("dpe://a/d1") == 1, "it is not read again"


@pytest.mark.rule("answers.errors.surrogates")
async def test_half_a_surrogate_pair_in_metadata_is_replaced() -> None:
    servers = Servers()
    servers.say = lambda server, uri: {"contents": [{"text": r'{"title":"a\ud800b"}'}]}
    async with opened(servers) as cache:
        assert titles(await cache.documents({"a": listed("a", 1)}, timeout=10)) == ["a\ufffdb"]


async def test_metadata_fields_of_wrong_types_are_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    servers = Servers()
    servers.say = lambda server, uri: answer(uri="dpe://other/x", title=7, summary="s", page_count=-1, mine=[1])
    async with opened(servers) as cache:
        [document], _ = await cache.documents({"a": listed("a", 1)}, timeout=10)
    assert document.summary == {"doc_ref": "d0", "uri": "dpe://a/d0", "summary": "s", "mine": [1]}
    assert "its title is" in caplog.text
    assert "have another URI" in caplog.text


@pytest.mark.rule("answers.finder.kept")
async def test_a_document_with_too_large_metadata_is_shown_as_listed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    servers = Servers()
    servers.say = lambda server, uri: answer(title="t" * 50_000)
    async with opened(servers) as cache:
        assert titles(await cache.documents({"a": listed("a", 1)}, timeout=10)) == ["name 0"]
        assert cache.kept_bytes == 0
    assert "more than 32768" in caplog.text


async def test_metadata_that_are_too_large_are_read_again_only_after_a_change() -> None:
    servers, lists = Servers(), {"a": listed("a", 1)}
    servers.say = lambda server, uri: answer(title="t" * 50_000)
    async with opened(servers) as cache:
        for _ in range(3):
            await cache.documents(lists, timeout=1)
        assert servers.read == ["dpe://a/d0"]
        servers.say = lambda server, uri: answer(title="short")
        cache.changed("a", "dpe://a/d0")
        assert titles(await cache.documents(lists, timeout=10)) == ["short"]


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


@pytest.mark.rule("answers.finder.kept", "answers.finder.as_listed")
async def test_documents_above_the_bound_are_shown_as_listed_and_not_read_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "CACHE_BYTES", 4000)
    servers = Servers()
    servers.say = described
    async with opened(servers) as cache:
        lists = {"a": listed("a", 30)}
        await cache.documents(lists, timeout=10)
        documents, as_listed = await cache.documents(lists, timeout=10)
        known = sum(str(document.summary["title"]).startswith("title") for document in documents)
        assert as_listed == 30 - known
        assert 0 < known < 30
        assert cache.kept_bytes <= 4000
        assert len(servers.read) == 30
        [said] = caplog.messages
        assert "more than 4000 bytes of metadata" in said
        assert (await finder(cache, {"a": listed("a", 30)}))["a2c_as_listed"] == 30 - known
        cache.changed("a")
        assert "a2c_as_listed" not in await finder(cache, {"b": listed("b", 3)})


async def test_ten_thousand_documents_of_20_servers_are_answered_from_the_cache_within_50_ms() -> None:
    servers = Servers()
    servers.say = described
    lists = {f"s{number:02}": listed(f"s{number:02}", 500) for number in range(20)}
    async with opened(servers) as cache:
        assert (await cache.documents(lists, timeout=60))[1] == 0
        took = []
        for _ in range(7):
            began = time.thread_time()
            assert (await finder(cache, lists, keywords=["title 00499"]))["total_count"] == 20
            took.append(time.thread_time() - began)
        assert sorted(took)[3] < 0.05


async def finder(cache: MetadataCache, lists: dict[str, Any], **asked: Any) -> dict[str, Any]:
    """The answer to `client:get_finder`."""

    async def known(timeout: float) -> dict[str, Any]:
        return lists

    access = Access(dict, Catalogue({}), "o")
    dispatcher = Dispatcher({"client:get_finder": Finder(cache, known, History(), access, wait_s=30.0)})
    body = json.dumps({"agent": "a", "req_id": "r", "computer": "c", **asked}).encode()
    answered = await asyncio.wait_for(
        dispatcher.dispatch(catalog.CATALOG["client:get_finder"], Caller(role="agent", office="o"), body), 60
    )
    assert answered.error is None, answered.body
    found: dict[str, Any] = json.loads(answered.body)
    return found


@pytest.mark.rule("answers.finder.kept")
async def test_a_late_document_is_shown_as_listed_until_its_metadata_have_come() -> None:
    servers = Servers()
    servers.gate.clear()
    modified = {"lastModified": "2026-01-01T00:00:00Z", "priority": 1}
    lists = {"a": listed("a", 20, title="a title", description="as listed", annotations=modified)}
    async with opened(servers) as cache:
        documents, _ = await cache.documents(lists, timeout=0.01)
        assert documents[1].summary == {
            "doc_ref": "d1", "uri": "dpe://a/d1", "title": "a title", "summary": "as listed",
            "last_modified": "2026-01-01T00:00:00Z",
        }  # fmt: skip
        servers.gate.set()
        assert titles(await cache.documents(lists, timeout=10))[1] == "title of d1"
        assert len(servers.read) == 20, "what was asked for already is not asked for twice"


async def test_servers_that_hang_do_not_delay_the_documents_of_another_server() -> None:
    servers, never = Servers(), asyncio.Event()

    async def read(server: str, uri: str, timeout: float) -> dict[str, Any]:
        if server != "well":
            await never.wait()
        return await servers(server, uri, timeout)

    silent = {f"silent{number}": listed(f"silent{number}", 12) for number in range(64)}
    async with opened(read) as cache:
        documents = await cache.documents({**silent, "well": listed("well", 3)}, timeout=1)
        assert titles(documents)[-3:] == ["title of d0", "title of d1", "title of d2"]
        never.set()


@pytest.mark.rule("answers.finder.unreadable")
@pytest.mark.parametrize("error", [ServerTimedOut, ServerNotRunning, ServerDied])
async def test_a_document_that_did_not_come_costs_no_other_one_and_the_next_request_reads_it_again(
    error: type[ServerError],
) -> None:
    servers, lists = Servers(), {"a": listed("a", 100)}
    is_silent = True

    async def read(server: str, uri: str, timeout: float) -> dict[str, Any]:
        result = await servers(server, uri, timeout)
        if is_silent and uri.endswith("/d0"):
            raise error("a", "did not answer in time")
        return result

    async with opened(read) as cache:
        found = await cache.documents(lists, timeout=10)
        assert (titles(found)[0], found[1]) == ("name 0", 1)
        assert len(servers.read) == 100, "once for each request"
        is_silent = False
        assert titles(await cache.documents(lists, timeout=10))[0] == "title of d0"
        assert servers.read[100:] == ["dpe://a/d0"]


async def test_no_document_is_read_after_its_request_has_ended_however_often_it_changes() -> None:
    servers, lists = Servers(), {"a": listed("a", 20)}

    async def read(server: str, uri: str, timeout: float) -> dict[str, Any]:
        cache.changed(server, uri)
        return await servers(server, uri, timeout)

    async with opened(read) as cache:
        documents = await cache.documents(lists, timeout=0.05)
        assert titles(documents)[0] == "name 0", "it always changes before it is read"
        await eventually(lambda: not any(servers.at_a_time.values()))
        before = len(servers.read)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert len(servers.read) == before


async def test_documents_not_read_in_time_are_read_by_the_next_request_and_not_in_between() -> None:
    servers, lists = Servers(), {"a": listed("a", 20)}
    servers.gate.clear()
    async with opened(servers) as cache:
        await cache.documents(lists, timeout=0.3)  # the first ones are asked for within that
        servers.gate.set()
        await eventually(lambda: not any(servers.at_a_time.values()))
        for _ in range(1000):
            await asyncio.sleep(0)
        assert len(servers.read) == AT_ONCE
        assert (await cache.documents(lists, timeout=10))[1] == 0
