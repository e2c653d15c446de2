"""Hosts that several MCP servers use, be it in their templates alone: warned about, and in nobody's way."""

from typing import Any

import pytest

from smcp_computer.resources import registering
from smcp_computer.resources.conflicts import HostConflicts
from smcp_testing.computer_office import world
from smcp_testing.mcp_servers import configs
from smcp_testing.waiting import eventually


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "the same host" in record.getMessage()]


@pytest.mark.rule("desktop.uri.conflict.registered")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_server_that_has_nothing_but_templates_of_a_host_is_warned_about_once_too(
    nats_url: str, era: Any, caplog: pytest.LogCaptureFixture
) -> None:
    servers = {"docs": configs.context("2025", host="h", documents=1), "templates": configs.context(era, host="h")}
    async with world(nats_url, other=configs.context(era, host="com.other", windows=1), **servers) as here:
        await eventually(lambda: bool(warnings(caplog)), timeout=30)
        await here.tell("templates", "put", uri="window://h/new")
        await eventually(lambda: "window://h/new" in here.computer.context.index.known("templates"))
        starts = here.computer.fleet.supervisors["templates"].starts
        await here.call("templates__die")
        await eventually(lambda: here.computer.fleet.supervisors["templates"].starts > starts, timeout=30)
        await eventually(lambda: here.computer.context.index.is_listed("templates"), timeout=30)
        assert (await here.ask("get_finder"))["documents"][0]["doc_ref"] == "doc-0", "nothing is blocked"
        assert len(warnings(caplog)) == 1
        assert "'docs' and 'templates' use the same host 'h'" in warnings(caplog)[0]


@pytest.mark.rule("desktop.uri.conflict.registered")
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_template_that_a_server_adds_later_is_warned_about_too(
    nats_url: str, era: Any, caplog: pytest.LogCaptureFixture
) -> None:
    servers = {"docs": configs.context("2025", host="h", documents=1), "late": configs.context(era, host="com.other")}
    async with world(nats_url, **servers) as here:
        assert (await here.ask("get_finder"))["documents"][0]["doc_ref"] == "doc-0"
        assert warnings(caplog) == []
        await here.tell("late", "put_template", name="more", template="dpe://h/{doc_ref}/more")
        await eventually(lambda: bool(warnings(caplog)), timeout=30)
        (warning,) = warnings(caplog)
        assert "'docs' and 'late' use the same host 'h'" in warning


@pytest.mark.rule("desktop.uri.conflict.registered")
async def test_templates_of_a_server_that_tells_of_no_changes_are_asked_for_from_time_to_time(
    nats_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registering, "UNTOLD_S", 0.1)
    late = configs.context("2025", host="com.other", without=["list_changed"])
    async with world(nats_url, docs=configs.context("2025", host="h", documents=1), late=late) as here:
        await here.tell("late", "put_template", name="more", template="dpe://h/{doc_ref}/more")
        await eventually(lambda: bool(warnings(caplog)), timeout=30)


@pytest.mark.rule("desktop.uri.conflict.registered")
def test_a_template_whose_host_is_an_argument_is_in_nobodys_way(caplog: pytest.LogCaptureFixture) -> None:
    conflicts = HostConflicts()
    conflicts.registered("docs", ["dpe://h/doc", "file:///a"])
    conflicts.registered_templates("other", ["dpe://{host}/doc", "file:///{path}", "dpe:///{doc}", "{uri}"])
    conflicts.registered_templates("docs", ["dpe://h/{doc}"])
    assert caplog.messages == []
    conflicts.registered_templates("other", ["WINDOW://h/{path}"])
    conflicts.registered_templates("other", [])
    conflicts.registered_templates("other", ["dpe://h/{doc}"])
    assert len(caplog.messages) == 1
    assert "'docs' and 'other' use the same host 'h'" in caplog.text
