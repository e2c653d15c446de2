"""The metadata cache: metadata are read once, several at a time, and read again after a change.

A function stands for the MCP servers; real servers are in `test_smcp_computer_finder.py`.
"""

import asyncio
import time
from typing import Any

import pytest

from smcp_computer import finder as cache_module
from smcp_computer.finder import PER_SERVER
from smcp_computer.mcp.errors import AnswerTooLarge, BadAnswer, RequestRefused
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
        renamed = listing("dpe://a/d1", description="another") | listed("a", 1) | listing("dpe://a/d7")
        documents = await cache.documents({"a": renamed}, timeout=10)
        assert titles(documents) == ["title of d1", "title of d0", "title of d7"]
        assert sorted(servers.read) == ["dpe://a/d1", "dpe://a/d7"]
        assert await cache.documents({"a": {}}, timeout=10) == []
        assert cache.kept_bytes == 0


async def test_metadata_of_a_server_that_is_gone_are_dropped() -> None:
    servers = Servers()
    async with opened(servers) as cache:
        await cache.documents({"a": listed("a", 2)}, timeout=10)
        assert cache.kept_bytes > 0
        assert await cache.documents({}, timeout=10) == []
        assert cache.kept_bytes == 0
        await cache.documents({"a": listed("a", 2)}, timeout=10)
        assert len(servers.read) == 4


@pytest.mark.rule("finder.server.level_1")
async def test_resources_other_than_documents_are_not_read(caplog: pytest.LogCaptureFixture) -> None:
    servers = Servers()
    others = ["window://a", "dpe://a", "dpe://a/d/pages/1", "dpe:///d", "dpe://a/%zz", "file:///x", "", "dpe:"]
    async with opened(servers) as cache:
        assert await cache.documents({"a": listing(*others)}, timeout=10) == []
        assert servers.read == []
        assert await cache.documents({"a": listing(*others)}, timeout=10) == []
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == sum(uri.startswith("dpe:") for uri in others), "once for each that means to be one"
    assert any("'dpe://a/d/pages/1'" in line for line in said)


@pytest.mark.rule("answers.finder.kept")
async def test_at_most_four_documents_of_a_server_are_read_at_a_time() -> None:
    servers = Servers()
    lists = {f"s{number:02}": listed(f"s{number:02}", 50) for number in range(20)}
    async with opened(servers) as cache:
        documents = await cache.documents(lists, timeout=30)
        assert len(documents) == len(servers.read) == 1000
        assert servers.most["s00"] == PER_SERVER


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
        BadAnswer("a", "sent contents that are no list"),
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
        [document] = await cache.documents({"a": listed("a", 1)}, timeout=10)
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
