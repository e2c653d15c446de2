"""Servers that are slow, silent or gone while the metadata of their documents are read."""

import asyncio
from typing import Any

import pytest

from smcp_computer import metadata_cache as cache_module
from smcp_computer.mcp.errors import ServerNotRunning, ServerTimedOut
from smcp_computer.metadata_cache import PER_SERVER
from smcp_testing.document_servers import Servers, answer, listed, opened, titles


@pytest.mark.rule("answers.finder.kept")
async def test_a_late_document_is_shown_as_listed_while_its_read_goes_on() -> None:
    servers = Servers()
    servers.gate.clear()
    resources = listed(
        "a", 20, description="as listed", annotations={"lastModified": "2026-01-01T00:00:00Z", "priority": 1}
    )
    resources["dpe://a/d0"]["title"] = "a title"
    lists = {"a": resources}
    async with opened(servers) as library:
        documents = await library.documents(lists, timeout=0.01)
        assert titles(documents)[:2] == ["a title", "name 1"]
        assert documents[1].summary == {
            "doc_ref": "d1", "uri": "dpe://a/d1", "title": "name 1", "summary": "as listed",
            "last_modified": "2026-01-01T00:00:00Z",
        }  # fmt: skip
        servers.gate.set()
        assert titles(await library.documents(lists, timeout=10))[1] == "title of d1"
        assert len(servers.read) == 20, "what was asked for already is not asked for twice"


async def test_a_server_that_never_answers_is_left_alone_after_a_while_and_costs_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers = Servers()

    def say(server: str, uri: str) -> dict[str, Any]:
        if server == "dead":
            raise ServerTimedOut("dead", "did not answer in time")
        return answer(title=uri)

    servers.say = say
    lists = {"dead": listed("dead", 100), "well": listed("well", 100)}
    async with opened(servers) as library:
        documents = await library.documents(lists, timeout=10)
        assert titles(documents)[:2] == ["name 0", "name 1"], "shown as listed"
        assert titles(documents)[100:102] == ["dpe://well/d0", "dpe://well/d1"]
        asked = sum(uri.startswith("dpe://dead") for uri in servers.read)
        assert asked < 2 * PER_SERVER
        await library.documents(lists, timeout=10)
        assert sum(uri.startswith("dpe://dead") for uri in servers.read) == asked
        library.changed("dead", "dpe://dead/d0")
        await library.documents(lists, timeout=10)
        assert sum(uri.startswith("dpe://dead") for uri in servers.read) > asked, "it said that it lives"


async def test_a_server_that_is_not_running_is_not_asked_for_one_document_after_the_other() -> None:
    servers = Servers()

    def say(server: str, uri: str) -> dict[str, Any]:
        raise ServerNotRunning("a", "is not running")

    servers.say = say
    async with opened(servers) as library:
        assert len(await library.documents({"a": listed("a", 100)}, timeout=10)) == 100
        assert len(servers.read) <= PER_SERVER


async def test_however_many_servers_are_silent_another_one_is_read() -> None:
    servers, never = Servers(), asyncio.Event()

    async def read(server: str, uri: str, timeout: float) -> dict[str, Any]:
        if server != "well":
            await never.wait()
        return await servers(server, uri, timeout)

    silent = {f"silent{number}": listed(f"silent{number}", 12) for number in range(64)}
    async with opened(read) as library:
        documents = await library.documents({**silent, "well": listed("well", 3)}, timeout=1)
        assert titles(documents)[-3:] == ["title of d0", "title of d1", "title of d2"]
        never.set()


@pytest.mark.rule("answers.finder.unreadable")
async def test_a_document_that_timed_out_delays_no_other_request_until_it_may_be_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers, lists = Servers(), {"a": listed("a", 100)}
    is_silent = True

    async def read(server: str, uri: str, timeout: float) -> dict[str, Any]:
        result = await servers(server, uri, timeout)
        if is_silent and uri.endswith("/d50"):
            raise ServerTimedOut("a", "did not answer in time")
        return result

    async with opened(read) as library:
        documents = await library.documents(lists, timeout=10)
        assert titles(documents)[49:52] == ["title of 49", "name 0", "title of 51"]
        is_silent = False
        assert await library.documents(lists, timeout=60) == documents
        assert servers.read.count("dpe://a/d50") == 1
        monkeypatch.setattr(cache_module, "RETRY_S", 0.0)
        library.changed("a", "dpe://a/d50")
        is_silent = True
        await library.documents(lists, timeout=10)
        is_silent = False
        assert titles(await library.documents(lists, timeout=10))[50] == "title of 50"
