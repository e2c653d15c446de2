"""Metadata of documents: read once, side by side, kept within a bound, and read anew after a change.

What reads them is a function here, so that it can be slow, late and wrong at will; whole servers are in
`test_smcp_computer_finder.py`.
"""

import asyncio
import time
from typing import Any

import pytest

from smcp_computer import metadata_cache as cache_module
from smcp_computer.mcp.errors import AnswerTooLarge, BadAnswer, RequestRefused
from smcp_computer.metadata_cache import PER_SERVER
from smcp_testing.document_servers import Servers, answer, listed, listing, opened, titles
from smcp_testing.waiting import eventually


async def test_metadata_are_read_once_and_kept() -> None:
    servers, lists = Servers(), {"a": listed("a", 3)}
    async with opened(servers) as library:
        first = await library.documents(lists, timeout=10)
        assert titles(first) == ["title of d0", "title of d1", "title of d2"]
        assert await library.documents(lists, timeout=10) == first
        assert await library.documents({"a": listed("a", 3)}, timeout=10) == first, "the same in another list"
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
async def test_a_change_has_what_it_concerns_read_anew(uri: str | None, again: list[str]) -> None:
    servers, lists = Servers(), {"a": listed("a", 3)}
    async with opened(servers) as library:
        await library.documents(lists, timeout=10)
        kept, servers.read = library.kept_bytes, []
        library.changed("b", uri)
        library.changed("a", uri)
        await library.documents(lists, timeout=10)
        assert sorted(servers.read) == again
        assert library.kept_bytes == kept


async def test_a_change_of_one_document_of_very_many_costs_next_to_nothing() -> None:
    servers, lists = Servers(), {"a": listed("a", 10_000)}
    servers.gate.clear()  # it is told while somebody waits for the catalog
    async with opened(servers) as library:
        await library.documents(lists, timeout=0.01)
        began = time.thread_time()
        for number in range(1000):
            library.changed("a", f"dpe://a/d{number}")
        assert time.thread_time() - began < 0.5, "all of them are gone through for each"


async def test_a_document_that_changes_while_it_is_read_is_read_again_for_the_waiting_request() -> None:
    servers, lists = Servers(), {"a": listed("a", 3)}
    servers.gate.clear()
    async with opened(servers) as library:
        asking = asyncio.create_task(library.documents(lists, timeout=10))
        await eventually(lambda: len(servers.read) == 3)
        library.subscribed("a", ["dpe://a/d0", "dpe://a/d2", "file:///x"])
        library.changed("a", "dpe://a/d1")
        servers.gate.set()
        assert titles(await asking) == ["title of d0", "title of d1", "title of d2"]
        assert sorted(servers.read) == sorted(2 * [*lists["a"]])


async def test_a_document_without_updates_is_read_anew_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "UNTOLD_S", 0.0)
    servers, lists = Servers(), {"a": listed("a", 2)}
    async with opened(servers, told=lambda server: {"dpe://a/d0"}) as library:
        await library.documents(lists, timeout=10)
        servers.read, kept = [], library.kept_bytes
        servers.say = lambda server, uri: answer(title=f"nouvel of {uri[-2:]}")
        assert titles(await library.documents(lists, timeout=10)) == ["title of d0", "nouvel of d1"]
        assert servers.read == ["dpe://a/d1"]
        assert library.kept_bytes == kept + 1
        monkeypatch.setattr(cache_module, "UNTOLD_S", 60.0)
        await library.documents(lists, timeout=10)
        assert servers.read == ["dpe://a/d1"]


@pytest.mark.rule("finder.update.list")
async def test_a_new_list_has_only_what_is_new_in_it_read() -> None:
    servers = Servers()
    async with opened(servers) as library:
        await library.documents({"a": listed("a", 2)}, timeout=10)
        servers.read = []
        renamed = listing("dpe://a/d1", description="another") | listed("a", 1) | listing("dpe://a/d7")
        documents = await library.documents({"a": renamed}, timeout=10)
        assert titles(documents) == ["title of d1", "title of d0", "title of d7"]
        assert sorted(servers.read) == ["dpe://a/d1", "dpe://a/d7"]
        assert await library.documents({"a": {}}, timeout=10) == []
        assert library.kept_bytes == 0


async def test_a_server_that_is_gone_takes_what_was_kept_of_it_along() -> None:
    servers = Servers()
    async with opened(servers) as library:
        await library.documents({"a": listed("a", 2)}, timeout=10)
        assert library.kept_bytes > 0
        assert await library.documents({}, timeout=10) == []
        assert library.kept_bytes == 0
        await library.documents({"a": listed("a", 2)}, timeout=10)
        assert len(servers.read) == 4


@pytest.mark.rule("finder.server.level_1")
async def test_a_resource_that_is_no_document_is_not_read(caplog: pytest.LogCaptureFixture) -> None:
    servers = Servers()
    others = ["window://a", "dpe://a", "dpe://a/d/pages/1", "dpe:///d", "dpe://a/%zz", "file:///x", "", "dpe:"]
    async with opened(servers) as library:
        assert await library.documents({"a": listing(*others)}, timeout=10) == []
        assert servers.read == []
        assert await library.documents({"a": listing(*others)}, timeout=10) == []
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == sum(uri.startswith("dpe:") for uri in others), "once for each that means to be one"
    assert any("'dpe://a/d/pages/1'" in line for line in said)


@pytest.mark.rule("answers.finder.kept")
async def test_many_are_read_side_by_side_but_not_all_at_once() -> None:
    servers = Servers()
    lists = {f"s{number:02}": listed(f"s{number:02}", 50) for number in range(20)}
    async with opened(servers) as library:
        documents = await library.documents(lists, timeout=30)
        assert len(documents) == len(servers.read) == 1000
        assert servers.most["s00"] == PER_SERVER


async def test_metadata_that_were_asked_for_before_a_change_are_not_kept() -> None:
    servers, lists = Servers(), {"a": listed("a", 1)}
    servers.gate.clear()
    said = iter([answer(title="old"), answer(title="new")])
    servers.say = lambda server, uri: next(said)
    async with opened(servers) as library:
        await library.documents(lists, timeout=0.01)
        library.changed("a", "dpe://a/d0")
        servers.gate.set()
        assert titles(await library.documents(lists, timeout=10)) == ["new"]


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
async def test_a_document_whose_metadata_cannot_be_used_is_shown_as_it_is_listed_and_one_that_is_refused_is_not(
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
    async with opened(servers) as library:
        for _ in range(3):
            shown = [] if isinstance(wrong, RequestRefused) else ["name 1"]
            assert titles(await library.documents(lists, timeout=10)) == ["dpe://a/d0", *shown, "dpe://a/d2"]
    assert sum("dpe://a/d1" in record.getMessage() for record in caplog.records) == 1
    assert servers.read.count("dpe://a/d1") == 1, "it is left alone for a while"


@pytest.mark.rule("answers.errors.surrogates")
async def test_metadata_with_half_of_a_surrogate_pair_are_read() -> None:
    servers = Servers()
    servers.say = lambda server, uri: {"contents": [{"text": r'{"title":"a\ud800b"}'}]}
    async with opened(servers) as library:
        assert titles(await library.documents({"a": listed("a", 1)}, timeout=10)) == ["a\ufffdb"]


async def test_metadata_of_wrong_types_are_warned_about_and_the_rest_counts(caplog: pytest.LogCaptureFixture) -> None:
    servers = Servers()
    servers.say = lambda server, uri: answer(uri="dpe://other/x", title=7, summary="s", page_count=-1, mine=[1])
    async with opened(servers) as library:
        [document] = await library.documents({"a": listed("a", 1)}, timeout=10)
    assert document.summary == {"doc_ref": "d0", "uri": "dpe://a/d0", "summary": "s", "mine": [1]}
    assert "its title is" in caplog.text
    assert "have another URI" in caplog.text


@pytest.mark.rule("answers.finder.kept")
async def test_metadata_that_are_too_large_are_not_kept_but_the_document_is_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    servers = Servers()
    servers.say = lambda server, uri: answer(title="t" * 50_000)
    async with opened(servers) as library:
        assert titles(await library.documents({"a": listed("a", 1)}, timeout=10)) == ["name 0"]
        assert library.kept_bytes == 0
    assert "more than 32768" in caplog.text
