"""Changes at MCP servers become notifications: desktop, finder, capabilities. Servers with one host are a warning."""

import asyncio
from typing import Any

import pytest

from smcp_bus import outbox
from smcp_computer.outbox import CONFIG, DESKTOP, FINDER
from smcp_testing.computer_office import NAME, World, world
from smcp_testing.computer_world import native_computer
from smcp_testing.gateway_world import connected, gateway_world
from smcp_testing.mcp_servers import configs
from smcp_testing.waiting import eventually

ERAS = pytest.mark.parametrize("era", ["2025", "2026"])
HOST = "com.example.desk"
WINDOW, DOCUMENT = f"window://{HOST}/0", f"dpe://{HOST}/doc-0"
TOLD = {"computer": NAME}


@pytest.mark.rule(
    "events.{flow.desktop.3,flow.finder.3,update_desktop.triggers,update_finder.triggers}",
    "desktop.{changes.updated.window,changes.updated.other,events.chain,events.data}",
    "desktop.{servers.notices.updated,lifecycle.contents.notified,lifecycle.contents.confirmed}",
    "desktop.{lifecycle.contents.said,practice.notices}",
    "finder.{changes.updated,changes.events,lifecycle.contents.notified,lifecycle.contents.confirmed}",
    "finder.{lifecycle.contents.said,server.notices.updated}",
)
@ERAS
async def test_updates_of_windows_and_documents_are_announced_and_others_are_not(nats_url: str, era: Any) -> None:
    content = [{"uri": "file:///a.txt"}]
    async with world(nats_url, desk=configs.context(era, windows=1, documents=1, content=content)) as here:
        await settled(here, "desk", WINDOW, DOCUMENT)
        await here.computer.resources.subscriptions.hold("alice", "desk", "file:///a.txt")
        await here.tell("desk", "update", uri="file:///a.txt")
        await here.tell("desk", "update", uri=WINDOW)
        assert await next_told(here, DESKTOP) == [TOLD]
        assert here.told(FINDER) == []
        await here.tell("desk", "update", uri=DOCUMENT)
        assert await next_told(here, FINDER) == [TOLD]
        assert here.told(DESKTOP) == [TOLD]


@pytest.mark.rule(
    "events.{flow.desktop.3,flow.finder.3,update_desktop.triggers,update_finder.triggers,flow.desktop.1}",
    "events.{flow.desktop.2,flow.finder.1,flow.finder.2}",
    "desktop.{changes.list.collect,changes.list.other,changes.list.same,lifecycle.list}",
    "desktop.{servers.notices.list,lifecycle.list.notified,lifecycle.list.collected}",
    "desktop.{lifecycle.list.compared,lifecycle.list.said}",
    "finder.{changes.list,changes.list.collect,lifecycle.list.notified,lifecycle.list.collected}",
    "finder.{lifecycle.list.compared,lifecycle.list.said,server.notices.list}",
)
@ERAS
async def test_a_changed_list_is_announced_only_if_its_windows_or_documents_differ(nats_url: str, era: Any) -> None:
    async with world(nats_url, desk=configs.context(era, windows=1, documents=1)) as here:
        await settled(here, "desk", WINDOW, DOCUMENT)
        await here.tell("desk", "put", uri="file:///b.txt")
        await here.tell("desk", "put", uri=WINDOW, resource={"title": "another title"})
        known = here.computer.resources.index.known
        await eventually(lambda: known("desk")[WINDOW].get("title") == "another title")
        await here.tell("desk", "put", document={"ref": "new"})
        assert await next_told(here, FINDER) == [TOLD]
        assert here.told(DESKTOP) == []
        other = f"window://{HOST}/other"
        await here.tell("desk", "put", uri=other)
        assert await next_told(here, DESKTOP) == [TOLD]
        assert len(here.told(FINDER)) == 1
        here.heard.clear()
        await here.tell("desk", "update", uri=other)  # it was subscribed to meanwhile
        await settled_by_update(here, other)
        await here.tell("desk", "remove", uri=WINDOW)
        await next_told(here, DESKTOP)


@pytest.mark.rule("desktop.uri.check.query", "desktop.changes.list.same")
async def test_a_window_that_is_listed_with_another_query_is_the_same_window(nats_url: str) -> None:
    asked_for = f"{WINDOW}?priority=80"
    async with world(nats_url, desk=configs.context("2025", windows=1)) as here:
        await settled(here, "desk", WINDOW)
        await here.tell("desk", "put", uri=asked_for)
        await here.tell("desk", "remove", uri=WINDOW)
        subscribed = here.computer.resources.subscriptions.subscribed
        await eventually(lambda: subscribed("desk") == {asked_for}, timeout=30)
        here.computer.outbox.changed(CONFIG)  # sent after all pending changes
        await next_told(here, CONFIG)
        assert here.told(DESKTOP) == []
        assert DESKTOP not in {each.key.verb for each in here.computer.outbox.waiting}
        await here.tell("desk", "update", uri=asked_for, text="new")
        assert await next_told(here, DESKTOP) == [TOLD]
        assert (await here.ask("get_desktop"))["desktops"] == [f"{WINDOW}\n\nnew"]
        await here.tell("desk", "put", uri=f"window://{HOST}/other?priority=80")
        assert (await next_told(here, DESKTOP, 2))[1] == TOLD


async def settled_by_update(here: World, uri: str) -> None:
    """An update of that window is sent, sooner or later: updates before the subscription reach nobody."""

    async def told() -> bool:
        await here.tell("desk", "update", uri=uri)
        return bool(here.told(DESKTOP))

    await eventually(told, timeout=30)
    await forgotten(here)


@pytest.mark.rule(
    "desktop.servers.{prerequisite,prerequisite.listing,prerequisite.notices}",
    "finder.changes.prerequisite",
)
async def test_a_server_without_subscriptions_is_left_out_of_desktop_and_finder(nats_url: str) -> None:
    async with world(nats_url, desk=configs.context("2025", windows=1, documents=1, without=["subscribe"])) as here:
        await eventually(lambda: WINDOW in here.computer.resources.index.known("desk"))
        await forgotten(here)
        other = f"window://{HOST}/other"
        await here.tell("desk", "put", uri=other)
        await here.tell("desk", "put", document={"ref": "new"})
        await here.tell("desk", "update", uri=WINDOW)
        await eventually(lambda: f"dpe://{HOST}/new" in here.computer.resources.index.known("desk"))
        assert other in here.computer.resources.index.known("desk")
        assert not {each.key.verb for each in here.computer.outbox.waiting} & {DESKTOP, FINDER}
        assert here.told(DESKTOP) + here.told(FINDER) == []
        assert (await here.ask("get_desktop"))["desktops"] == []
        assert await here.tell("desk", "reads") == {}
        assert await here.tell("desk", "subscribed") == []


@pytest.mark.rule("answers.desktop.gathering")
async def test_a_burst_of_changes_becomes_one_notification(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "GATHER_S", 3.0)
    async with world(nats_url, desk=configs.context("2026", windows=1)) as here:
        await settled(here, "desk", WINDOW)
        await asyncio.gather(*(here.tell("desk", "update", uri=WINDOW) for _ in range(20)))
        assert len(await next_told(here, DESKTOP)) == 1
        await here.tell("desk", "update", uri=WINDOW)
        assert len(await next_told(here, DESKTOP, 2)) == 2


async def test_a_refused_notification_does_not_delay_others(nats_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with world(nats_url, desk=configs.context("2025", windows=1)) as here:
        await settled(here, "desk", WINDOW)
        here.computer.outbox.changed("tool_call_cancel")  # not for a Computer to say
        await here.tell("desk", "update", uri=WINDOW)
        assert await next_told(here, DESKTOP) == [TOLD]
        await eventually(
            lambda: not {each.key.verb for each in here.computer.outbox.waiting},
            message="what is refused for good is not tried again",
        )
    assert caplog.text.count("tool_call_cancel cannot be sent, and is dropped") == 1


@pytest.mark.rule(
    "computer.resources.{capabilities.by_server,computer.report,compatibility}",
    "answers.desktop.restart",
)
@ERAS
async def test_a_server_that_dies_and_comes_back_changes_the_desktop_and_the_capabilities(
    nats_url: str, era: Any
) -> None:
    servers = {"desk": configs.context(era, windows=1), "other": configs.context(era, without=["resources"])}
    async with world(nats_url, **servers) as here:
        await settled(here, "desk", WINDOW)
        assert await here.tell("other", "reads") == {}
        here.computer.fleet.supervisors[
            "desk"
        ]._backoff.first_s = 2.0  # so that it is gone for long enough to be noticed
        result = await here.call("desk__die")
        assert result["isError"] is True
        offered = {"subscribe": True, "listChanged": True}
        nothing = {"subscribe": False, "listChanged": False}
        assert (await next_told(here, "update_capabilities"))[0] == {
            **TOLD, "capabilities": {"resources": {**nothing, "aggregate": nothing, "byServer": {}}},
        }  # fmt: skip
        assert (await next_told(here, "update_capabilities", 2))[1] == {
            **TOLD, "capabilities": {"resources": {**offered, "aggregate": offered, "byServer": {"desk": offered}}},
        }  # fmt: skip
        await next_told(here, DESKTOP)
        await settled(here, "desk", WINDOW)
        await here.tell("desk", "update", uri=WINDOW)
        assert await next_told(here, DESKTOP) == [TOLD]


@pytest.mark.rule(
    "events.flow.desktop.{5,8}",
    "desktop.{overview.aggregate,events.chain,events.data,events.pull,lifecycle.first,lifecycle.contents}",
    "desktop.{lifecycle.contents.told,lifecycle.contents.asked}",
    "computer.resources.{capabilities.flags,capabilities.by_server,computer.report,compatibility}",
    "computer.resources.{capabilities.union,compat.agent}",
)
async def test_the_office_lists_what_each_server_can_do_and_an_update_reaches_an_agent_on_another_gateway(
    nats_url: str,
) -> None:
    servers = {
        "desk": configs.context("2026", windows=1),
        "quiet": configs.context("2025", without=["subscribe", "list_changed"]),
        "none": configs.context("2025", without=["resources"]),
    }
    async with (
        gateway_world(nats_url, gateways=2) as there,
        native_computer(there, "lab", NAME, servers) as computer,
        connected(there.gateways[1].url) as agent,
    ):
        assert await agent.join("agent", "alice", "lab") == [True, None]
        both = {"subscribe": True, "listChanged": True}
        by_server = {"desk": both, "quiet": {"subscribe": False, "listChanged": False}}

        async def listed() -> bool:
            room = await agent.call("server:list_room", {"agent": "alice", "req_id": "r", "office_id": "lab"})
            said = next(member for member in room["sessions"] if member["name"] == NAME)["capabilities"]
            return said == {"resources": {**both, "aggregate": both, "byServer": by_server}}  # type: ignore[no-any-return]

        await eventually(listed, timeout=30)
        asked = {"agent": "alice", "req_id": "r", "computer": NAME}
        shown = await agent.call("client:get_desktop", asked, timeout=30)
        assert shown == {"desktops": [f"{WINDOW}\n\ntext of {WINDOW}"], "req_id": "r"}
        await eventually(lambda: computer.resources.subscriptions.subscribed("desk") == {WINDOW})
        agent.events.clear()
        await _call(agent, "desk__update", uri=WINDOW, text="new")
        await eventually(lambda: agent.told("notify:update_desktop") == [TOLD], timeout=30)
        shown = await agent.call("client:get_desktop", asked, timeout=30)
        assert shown["desktops"] == [f"{WINDOW}\n\nnew"]


async def _call(agent: Any, tool: str, **params: Any) -> None:
    request = {"agent": "alice", "req_id": "c", "computer": NAME, "tool_name": tool, "params": params, "timeout": 30}
    result = await agent.call("client:tool_call", request, timeout=30)
    assert not result.get("isError"), result


@pytest.mark.rule("desktop.uri.conflict.registered", "desktop.practice.host", "finder.practice.host")
async def test_two_servers_with_one_host_are_shown_with_one_warning(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(
        nats_url,
        one=configs.context("2025", windows=1),
        two=configs.context("2026", documents=1),
        three=configs.context("2026", windows=1, host="com.example.three"),
    ) as here:
        await settled(here, "two", DOCUMENT)
        await settled(here, "one", WINDOW)
        await here.tell("two", "put", uri=f"window://{HOST}/7")
        await next_told(here, DESKTOP)
        warned = [record.getMessage() for record in caplog.records if "the same host" in record.getMessage()]
        assert len(warned) == 1
        assert f"'one': uses the same host {HOST!r} as 'two'" in warned[0]
        assert len((await here.ask("get_desktop"))["desktops"]) == 3


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "the same host" in record.getMessage()]


@pytest.mark.rule("desktop.uri.conflict.registered")
async def test_a_conflict_is_logged_once_and_blocks_nothing(nats_url: str, caplog: pytest.LogCaptureFixture) -> None:
    servers = {
        "docs": configs.context("2025", host="h", documents=1),
        "more": configs.context("2026", host="com.other"),
    }
    async with world(nats_url, **servers) as here:
        assert (await here.ask("get_finder"))["documents"][0]["doc_ref"] == "doc-0"
        assert warnings(caplog) == []
        await here.tell("more", "put", uri="window://h/new")
        await eventually(lambda: bool(warnings(caplog)), timeout=30)
        await here.tell("more", "put", uri="window://h/newer")
        await eventually(lambda: "window://h/newer" in here.computer.resources.index.known("more"))
        assert (await here.ask("get_finder"))["documents"][0]["doc_ref"] == "doc-0", "nothing is blocked"
        (warning,) = warnings(caplog)
        assert "MCP server 'docs': uses the same host 'h' as 'more'" in warning


async def settled(here: World, server: str, *uris: str) -> None:
    """Wait until the server has these subscriptions; drop the notifications so far."""

    async def agreed() -> bool:
        return await here.tell(server, "subscribed") == sorted(uris)  # type: ignore[no-any-return]

    await eventually(agreed, timeout=30)
    subscribed = here.computer.resources.subscriptions.subscribed
    await eventually(lambda: subscribed(server) == set(uris), timeout=30)
    await forgotten(here)


async def forgotten(here: World) -> None:
    """Wait until all pending notifications were sent; drop them."""
    await all_told(here)
    here.heard.clear()


async def all_told(here: World) -> None:
    """Wait until all pending notifications were sent."""
    await eventually(lambda: not here.computer.outbox.waiting)
    before = len(here.told(CONFIG))
    here.computer.outbox.changed(CONFIG)  # sent after the one that is being sent
    await next_told(here, CONFIG, before + 1)


async def next_told(here: World, verb: str, count: int = 1) -> list[dict[str, Any]]:
    """Wait for `count` notifications with this verb; returns all of them."""
    await eventually(lambda: len(here.told(verb)) >= count, timeout=30)
    return here.told(verb)
