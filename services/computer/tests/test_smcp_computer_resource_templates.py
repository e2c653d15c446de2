"""Templates of MCP servers are listed apart from resources, and cached until a server announces a change."""

import asyncio
from typing import Any, Literal

import pytest

from smcp_computer.mcp import resources
from smcp_computer.mcp.events import ResourcesChanged, ServerEvent
from smcp_testing.computer_office import world
from smcp_testing.mcp_servers import configs
from smcp_testing.resource_agent import ResourceAgent
from smcp_testing.waiting import eventually

Era = Literal["2025", "2026"]
ERAS = pytest.mark.parametrize("era", ["2025", "2026"])
TEMPLATES = "resources/templates/list"
NOTES = {"name": "notes", "template": "note://{id}"}


def names(result: dict[str, Any]) -> list[str]:
    return [each["name"] for each in result["resourceTemplates"]]


@pytest.mark.rule("computer.resources.computer.resilient")
async def test_a_server_that_never_lists_its_templates_shows_its_windows_and_lists_its_resources(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smcp_computer.resources.index.LIST_S", 1.5)
    silent = configs.context("2025", host="silent", windows=1, misbehave={"templates": "never"})
    async with world(nats_url, {"read_s": 10.0}, silent=silent) as here:
        alice, index = ResourceAgent(here), here.computer.resources.index
        await eventually(lambda: index.is_listed("silent"), timeout=30)
        missing = {"resourceTemplates": [], "meta": {"a2c_skipped_servers": ["silent"]}}
        assert await alice.result(TEMPLATES) == missing
        assert await alice.uris() == ["window://silent/0"]
        assert len((await here.ask("get_desktop"))["desktops"]) == 1
        await here.tell("silent", "put", uri="window://silent/1")
        await eventually(lambda: len(index.known("silent")) == 2)
        assert len((await here.ask("get_desktop"))["desktops"]) == 2


@pytest.mark.rule("computer.resources.computer.resilient")
async def test_a_server_that_never_lists_its_resources_lists_its_templates(nats_url: str) -> None:
    silent = configs.context("2026", host="silent", misbehave={"list": "never"})
    async with world(nats_url, silent=silent) as here:
        result = await ResourceAgent(here).result(TEMPLATES)
        assert names(result) == ["page", "element"]
        assert "meta" not in result


@pytest.mark.rule("computer.resources.computer.templates")
@ERAS
async def test_templates_that_change_while_they_are_listed_are_listed_again(nats_url: str, era: Era) -> None:
    async with world(nats_url, one=configs.context(era)) as here:
        alice, heard = ResourceAgent(here), list[ServerEvent]()
        here.computer.fleet.events.listen(heard.append)
        await here.tell("one", "misbehave", uri="templates", how="late")
        asking = asyncio.create_task(alice.result(TEMPLATES))

        async def is_asked() -> bool:
            return "templates" in await here.tell("one", "reads")

        await eventually(is_asked)
        heard.clear()
        await here.tell("one", "put_template", **NOTES)
        await eventually(lambda: ResourcesChanged("one") in heard)
        await here.tell("one", "misbehave", uri="templates", how="")
        assert names(await asking) == ["page", "element"]
        assert names(await alice.result(TEMPLATES)) == ["page", "element", "notes"]


@pytest.mark.rule("computer.resources.computer.list_changed")
@ERAS
async def test_changed_templates_are_announced_as_list_changed(nats_url: str, era: Era) -> None:
    async with world(nats_url, one=configs.context(era, windows=1)) as here:
        alice = ResourceAgent(here)
        await eventually(lambda: here.computer.resources.index.is_listed("one"), timeout=30)
        assert names(await alice.result(TEMPLATES)) == ["page", "element"]
        await eventually(lambda: here.computer.outbox.held() == {"pending": 0})
        here.heard.clear()
        await here.tell("one", "put_template", **NOTES)
        await eventually(lambda: here.told("resources_list_changed"))
        assert here.told("resources_list_changed")[0]["serverId"] == "one"
        assert names(await alice.result(TEMPLATES)) == ["page", "element", "notes"]


async def test_a_server_has_so_many_templates(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resources, "MAX_FEW", 1)
    async with world(nats_url, desk=configs.context("2025")) as here:
        assert names(await ResourceAgent(here).result(TEMPLATES)) == ["page"]
        assert "its list of resourceTemplates is too long, or has no end; 1 are taken" in caplog.text
