"""What a desktop or a catalog lacked is told once it is there: over the wire, with real MCP servers of both eras."""

from typing import Any

import pytest

from smcp_bus.headers import REPLY_LIMIT
from smcp_computer.announcing import DESKTOP, FINDER
from smcp_computer.finder import catching_up, library
from smcp_computer.resources import index
from smcp_testing.computer_office import NAME, World, world
from smcp_testing.mcp_servers import configs
from smcp_testing.office_told import all_told, next_told, settled
from smcp_testing.waiting import eventually

HOST = "com.example.desk"
FIRST, SECOND, THIRD = (f"window://{HOST}/{number}" for number in range(3))
DOCUMENT = f"dpe://{HOST}/doc-0"
TOLD = {"computer": NAME}


async def shown(here: World) -> list[str]:
    """The URIs of the windows on the desktop."""
    desktops = (await here.ask("get_desktop"))["desktops"]
    return [entry.partition("\n\n")[0] for entry in desktops]


async def shows(here: World, *uris: str) -> None:
    async def so() -> bool:
        return await shown(here) == list(uris)

    await eventually(so, timeout=30)


async def document(here: World) -> dict[str, Any]:
    found: dict[str, Any] = (await here.ask("get_finder"))["documents"][0]
    return found


@pytest.mark.rule("answers.desktop.missing")
async def test_windows_that_a_desktop_lacked_are_told_when_their_server_gives_them(nats_url: str) -> None:
    async with world(nats_url, {"read_s": 1.0}, desk=configs.context("2026", windows=3)) as here:
        await settled(here, "desk", FIRST, SECOND, THIRD)
        await here.tell("desk", "misbehave", uri=FIRST, how="fail")
        await here.tell("desk", "misbehave", uri=SECOND, how="never")
        assert await shown(here) == [THIRD]

        async def tried_again() -> bool:
            reads = await here.tell("desk", "reads")
            return bool(min(reads[FIRST], reads[SECOND]) > 1)

        await eventually(tried_again, timeout=30)
        await all_told(here)
        assert here.told(DESKTOP) == [], "nothing is there that was not"
        await here.tell("desk", "misbehave", uri=SECOND, how="")
        assert await next_told(here, DESKTOP) == [TOLD]
        assert await shown(here) == [SECOND, THIRD]
        await here.tell("desk", "misbehave", uri=FIRST, how="")
        assert await next_told(here, DESKTOP, 2) == [TOLD, TOLD]
        assert await shown(here) == [FIRST, SECOND, THIRD]


@pytest.mark.rule("answers.desktop.missing")
async def test_windows_of_a_server_that_did_not_list_are_told_when_it_does(nats_url: str) -> None:
    silent = configs.context("2026", windows=1, without=["list_changed"])
    async with world(nats_url, {"read_s": 1.0}, desk=silent) as here:
        await settled(here, "desk", FIRST)
        await here.tell("desk", "misbehave", uri="list", how="never")
        assert await shown(here) == []
        await here.tell("desk", "misbehave", uri="list", how="")
        assert (await next_told(here, DESKTOP))[0] == TOLD
        await shows(here, FIRST)


@pytest.mark.rule("answers.desktop.missing")
async def test_what_no_try_can_bring_is_not_tried_and_not_told(nats_url: str) -> None:
    empty, large = {"uri": FIRST, "contents": []}, {"uri": SECOND, "contents": [{"uri": SECOND, "text": "x" * 500}]}
    async with world(nats_url, desk=configs.context("2026", content=[empty, large])) as here:
        await settled(here, "desk", FIRST, SECOND)
        await here.tell("desk", "misbehave", uri=FIRST, how="refuse")
        assert (await here.ask("get_desktop", {REPLY_LIMIT: "200"}))["desktops"] == []
        await here.tell("desk", "misbehave", uri=FIRST, how="")

        async def tried_again() -> bool:
            return bool((await here.tell("desk", "reads"))[FIRST] == 2)

        await eventually(tried_again, timeout=30)
        await all_told(here)
        assert here.told(DESKTOP) == [], "a window without contents is not shown either"
        assert (await here.tell("desk", "reads"))[SECOND] == 1, "it is too large"


@pytest.mark.rule("answers.finder.missing")
async def test_documents_that_a_catalog_lacked_are_told_when_they_are_read(nats_url: str) -> None:
    slow = configs.context("2026", documents=1, delay=2.0)
    async with world(nats_url, {"finder_wait_s": 0.5}, desk=slow) as here:
        await settled(here, "desk", DOCUMENT)
        assert "page_count" not in await document(here)
        assert await next_told(here, FINDER) == [TOLD]
        assert (await document(here))["page_count"] == 2
        await all_told(here)
        assert here.told(FINDER) == [TOLD]


@pytest.mark.rule("answers.finder.missing")
@pytest.mark.parametrize("how", ["refuse", "never", "no_list"])
async def test_documents_that_did_not_come_are_told_when_their_server_gives_them(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(library, "READ_S", 1.0)
    monkeypatch.setattr(library, "RETRY_S", 0.1)
    monkeypatch.setattr(catching_up, "CATCH_UP_S", 0.4)
    async with world(nats_url, {"finder_wait_s": 2.0}, desk=configs.context("2026", documents=2)) as here:
        await settled(here, "desk", DOCUMENT, f"dpe://{HOST}/doc-1")
        await here.tell("desk", "misbehave", uri=DOCUMENT, how=how)
        found = await here.ask("get_finder")
        assert sum("page_count" in each for each in found["documents"]) == 1
        await here.tell("desk", "misbehave", uri=DOCUMENT, how="")
        assert (await next_told(here, FINDER))[0] == TOLD
        found = await here.ask("get_finder")
        assert [each["page_count"] for each in found["documents"]] == [2, 2]


@pytest.mark.rule("answers.desktop.list.untold")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_another_set_of_windows_is_told_of_a_server_that_does_not_tell_of_its_list(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, era: Any
) -> None:
    monkeypatch.setattr(index, "UNTOLD_S", 0.2)
    async with world(nats_url, desk=configs.context(era, windows=1, without=["list_changed"])) as here:
        await settled(here, "desk", FIRST)
        await here.tell("desk", "put", uri=SECOND)
        assert (await next_told(here, DESKTOP))[0] == TOLD
        assert await shown(here) == [FIRST, SECOND]
