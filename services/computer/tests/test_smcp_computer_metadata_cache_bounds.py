"""The byte bound of the metadata cache, and its speed with 10,000 documents."""

import asyncio
import json
import time
from typing import Any

import pytest

from smcp_bus.callers import Caller
from smcp_bus.dispatch import Dispatcher
from smcp_computer.access import Access
from smcp_computer.finder import Finder, MetadataCache
from smcp_computer.tools import Catalogue, History
from smcp_proto import catalog
from smcp_testing.document_servers import Servers, answer, listed, opened, titles

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


@pytest.mark.rule("answers.finder.kept", "answers.finder.as_listed")
async def test_documents_above_the_bound_are_shown_as_listed_and_not_read_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    servers = Servers()
    servers.say = described
    async with opened(servers, cache_bytes=4000) as cache:
        lists = {"a": listed("a", 30)}
        await cache.documents(lists, timeout=10)
        documents = await cache.documents(lists, timeout=10)
        known = sum(str(title).startswith("title") for title in titles(documents))
        assert cache.as_listed({"a"}) == 30 - known
        assert 0 < known < 30
        assert cache.kept_bytes <= 4000
        assert len(servers.read) == 30
        [said] = caplog.messages
        assert "SMCP_FINDER_CACHE_BYTES" in said
        assert (await finder(cache, {"a": listed("a", 30)}))["a2c_as_listed"] == 30 - known
        assert "a2c_as_listed" not in await finder(cache, {"b": listed("b", 3)})


async def test_documents_that_had_no_room_are_read_once_there_is_room_although_they_are_subscribed() -> None:
    servers = Servers()
    servers.say = described
    both = {"a": listed("a", 8), "b": listed("b", 4)}
    async with opened(servers, cache_bytes=4000) as cache:
        await cache.documents({"a": both["a"]}, timeout=10)
        await cache.documents(both, timeout=10)
        assert cache.as_listed({"b"}) > 0
        assert titles(await cache.documents({"b": both["b"]}, timeout=10)) == [f"title {n:05}" for n in range(4)]
        assert cache.as_listed({"b"}) == 0


async def test_ten_thousand_documents_of_20_servers_are_answered_from_the_cache_within_50_ms() -> None:
    servers = Servers()
    servers.say = described
    lists = {f"s{number:02}": listed(f"s{number:02}", 500) for number in range(20)}
    async with opened(servers, cache_bytes=WIDE) as cache:
        await cache.documents(lists, timeout=60)
        assert cache.as_listed(lists) == 0
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
    dispatcher = Dispatcher({"client:get_finder": Finder(cache, known, History(), access, wait_s=30.0, max_body=2**25)})
    body = json.dumps({"agent": "a", "req_id": "r", "computer": "c", **asked}).encode()
    answered = await asyncio.wait_for(
        dispatcher.dispatch(catalog.CATALOG["client:get_finder"], Caller(role="agent", office="o"), body), 60
    )
    assert answered.error is None, answered.body
    found: dict[str, Any] = json.loads(answered.body)
    return found
