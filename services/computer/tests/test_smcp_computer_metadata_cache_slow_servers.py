"""Servers that are slow, silent or gone while the metadata of their documents are read."""

import asyncio
from typing import Any

import pytest

from smcp_computer.finder import PER_SERVER
from smcp_computer.mcp.errors import ServerDied, ServerError, ServerNotRunning, ServerTimedOut
from smcp_testing.document_servers import Servers, listed, opened, titles
from smcp_testing.waiting import eventually


@pytest.mark.rule("answers.finder.kept")
async def test_a_late_document_is_shown_as_listed_until_its_metadata_have_come() -> None:
    servers = Servers()
    servers.gate.clear()
    resources = listed(
        "a", 20, description="as listed", annotations={"lastModified": "2026-01-01T00:00:00Z", "priority": 1}
    )
    resources["dpe://a/d0"]["title"] = "a title"
    lists = {"a": resources}
    async with opened(servers) as cache:
        documents = await cache.documents(lists, timeout=0.01)
        assert titles(documents)[:2] == ["a title", "name 1"]
        assert documents[1].summary == {
            "doc_ref": "d1", "uri": "dpe://a/d1", "title": "name 1", "summary": "as listed",
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
        assert titles(await cache.documents(lists, timeout=10))[0] == "name 0"
        assert cache.as_listed({"a"}) == 1
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
        assert len(servers.read) == PER_SERVER
        assert cache.as_listed({"a"}) == 20 - PER_SERVER
        await cache.documents(lists, timeout=10)
        assert cache.as_listed({"a"}) == 0
