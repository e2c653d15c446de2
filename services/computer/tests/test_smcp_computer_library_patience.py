"""Servers that are slow, silent or gone while the metadata of their documents are read."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from smcp_computer.finder import catching_up
from smcp_computer.finder import library as library_module
from smcp_computer.finder.library import AT_ONCE, PER_SERVER
from smcp_computer.mcp.errors import RequestRefused, ServerNotRunning, ServerTimedOut
from smcp_testing.document_servers import Servers, answer, listed, opened, titles
from smcp_testing.waiting import eventually


@pytest.mark.rule("answers.finder.kept")
async def test_what_is_not_read_in_time_is_shown_as_the_list_describes_it_and_read_on() -> None:
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


@pytest.mark.rule("answers.finder.unreadable")
async def test_one_document_that_never_comes_does_not_stop_the_others_and_nobody_waits_for_it_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library_module, "RETRY_S", 0.0)
    servers, lists, release = Servers(), {"a": listed("a", 100)}, asyncio.Event()
    silent = 0

    async def read(server: str, uri: str, timeout: float) -> dict[str, Any]:
        nonlocal silent
        if uri.endswith("/d50"):
            silent += 1
            if silent > 1:
                await release.wait()
            raise ServerTimedOut("a", "did not answer in time")
        return await servers(server, uri, timeout)

    async with opened(read) as library:
        documents = await library.documents(lists, timeout=10)
        assert titles(documents)[49:52] == ["title of 49", "name 0", "title of 51"]
        async with asyncio.timeout(5):
            assert await library.documents(lists, timeout=60) == documents
            await eventually(lambda: silent == 2)
        release.set()


async def test_documents_that_never_come_are_asked_for_again_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_module, "RETRY_S", 0.0)
    monkeypatch.setattr(library_module, "SILENT", 10**6)
    servers, lists = Servers(), {"a": listed("a", 30)}

    def say(server: str, uri: str) -> dict[str, Any]:
        raise ServerTimedOut("a", "did not answer in time")

    servers.say = say
    async with opened(servers) as library:
        await library.documents(lists, timeout=10)
        assert servers.most["a"] == PER_SERVER
        servers.most["a"] = 0
        servers.gate.clear()
        for _ in range(20):
            await library.documents(lists, timeout=10)
        await eventually(lambda: servers.most["a"] == 1)
        assert servers.at_a_time["a"] == 1
        servers.gate.set()


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

    silent = {f"silent{number}": listed(f"silent{number}", 12) for number in range(AT_ONCE)}
    async with opened(read) as library:
        documents = await library.documents({**silent, "well": listed("well", 3)}, timeout=1)
        assert titles(documents)[-3:] == ["title of d0", "title of d1", "title of d2"]
        never.set()


@pytest.mark.rule("answers.finder.missing")
async def test_what_a_catalog_lacked_is_told_once_at_the_end_of_the_reading() -> None:
    servers, lists = Servers(), {"a": listed("a", 20), "b": listed("b", 3)}
    servers.gate.clear()
    async with opened(servers) as library:
        for _ in range(3):
            assert titles(await library.documents(lists, timeout=0.01))[0] == "name 0"
        servers.gate.set()
        await eventually(lambda: servers.told == 2, message="once for each server")
        assert len(servers.read) == 23
        assert "name 0" not in titles(await library.documents(lists, timeout=10))
        assert servers.told == 2


@pytest.mark.rule("answers.finder.missing")
async def test_nothing_is_told_where_no_catalog_lacked_it_or_its_metadata_say_no_more_than_the_list() -> None:
    servers = Servers()
    async with opened(servers) as library:
        await library.documents({"a": listed("a", 9)}, timeout=10)
        library.changed("a")
        await library.documents({"a": listed("a", 9)}, timeout=10)
        servers.gate.clear()
        servers.say = lambda server, uri: answer(title=f"name {uri[-1:]}")
        await library.documents({"b": listed("b", 2)}, timeout=0.01)
        servers.gate.set()
        await eventually(lambda: len(servers.read) == 20 and not servers.at_a_time["b"])
        await library.documents({"b": listed("b", 2)}, timeout=10)
        assert servers.told == 0


@pytest.mark.rule("answers.finder.missing")
async def test_what_does_not_come_is_asked_for_again_while_nobody_asks_and_told_when_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library_module, "RETRY_S", 0.0)
    monkeypatch.setattr(catching_up, "CATCH_UP_S", 0.02)
    servers, tried_at = Servers(), []

    def say(server: str, uri: str) -> dict[str, Any]:
        tried_at.append(asyncio.get_running_loop().time())
        if len(tried_at) < 6:
            raise ServerTimedOut("a", "did not answer in time")
        return answer(title="at last")

    servers.say = say
    async with opened(servers) as library:
        assert titles(await library.documents({"a": listed("a", 1)}, timeout=10)) == ["name 0"]
        await eventually(lambda: servers.told == 1, timeout=30)
        assert titles(await library.documents({"a": listed("a", 1)}, timeout=10)) == ["at last"]
        pauses = [later - earlier for earlier, later in pairwise(tried_at)]
        assert all(pause >= 0.01 * 2**number - 0.002 for number, pause in enumerate(pauses)), "less and less often"


async def test_a_document_that_is_refused_only_then_is_told_of_as_well() -> None:
    servers = Servers()
    servers.gate.clear()

    def say(server: str, uri: str) -> dict[str, Any]:
        raise RequestRefused("a", -32602, "no such resource", None)

    servers.say = say
    async with opened(servers) as library:
        assert len(await library.documents({"a": listed("a", 1)}, timeout=0.01)) == 1
        servers.gate.set()
        await eventually(lambda: servers.told == 1)
        assert await library.documents({"a": listed("a", 1)}, timeout=10) == []


@pytest.mark.rule("answers.finder.missing")
async def test_a_slow_server_that_tells_of_no_changes_is_no_loop_of_reading_and_telling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library_module, "UNTOLD_S", 0.0)
    servers, lists = Servers(), {"a": listed("a", 2)}
    async with opened(servers, told=lambda server: ()) as library:

        async def is_asked_and_read_too_late() -> None:
            servers.gate.clear()
            assert titles(await library.documents(lists, timeout=0.01)) == ["name 0", "name 1"]
            count = len(servers.read)
            servers.gate.set()
            await eventually(lambda: not servers.at_a_time["a"])
            assert len(servers.read) == count

        for _ in range(3):  # who is told asks again
            await is_asked_and_read_too_late()
        assert len(servers.read) == 6
        servers.gate.clear()
        assert titles(await library.documents(lists, timeout=0.01)) == ["name 0", "name 1"], "what came before is done"
        assert servers.told == 1


async def test_what_a_catalog_lacked_of_a_server_that_is_gone_is_asked_for_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library_module, "RETRY_S", 0.0)
    monkeypatch.setattr(catching_up, "CATCH_UP_S", 0.02)
    servers = Servers()

    def say(server: str, uri: str) -> dict[str, Any]:
        raise ServerTimedOut(server, "did not answer in time")

    servers.say = say
    async with opened(servers) as library:
        await library.documents({"gone": listed("gone", 1), "here": listed("here", 1)}, timeout=10)
        await library.documents({"here": listed("here", 1)}, timeout=10)
        servers.read.clear()
        await eventually(lambda: len(servers.read) == 4, timeout=30)
        assert set(servers.read) == {"dpe://here/d0"}


async def test_nothing_waits_for_a_server_that_is_gone() -> None:
    def waiting() -> set[str]:
        return {name for task in asyncio.all_tasks() if (name := task.get_name()).endswith(":again")}

    servers = Servers()
    servers.gate.clear()
    lists = {"gone": listed("gone", 1), "here": listed("here", 1)}
    async with opened(servers) as library:
        await library.documents(lists, timeout=0.01)
        assert waiting() == {"finder:gone:again", "finder:here:again"}
        await library.documents({"here": lists["here"]}, timeout=0.01)
        await eventually(lambda: waiting() == {"finder:here:again"})
        servers.gate.set()
