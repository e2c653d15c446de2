"""The resources of real servers of MCP 2025 and 2026: listed, read, subscribed to, failing."""

import asyncio
from typing import Any

import pytest

from smcp_computer.mcp.errors import (
    ServerDied,
    ServerError,
    ServerNotRunning,
)
from smcp_computer.mcp.events import (
    ResourcesChanged,
    ResourceUpdated,
    ServerGone,
    ServerReady,
)
from smcp_testing.mcp_servers import configs
from smcp_testing.resource_servers import ERAS, OTHER, WINDOW, running
from smcp_testing.waiting import eventually


@pytest.mark.rule("desktop.overview.plain_servers", "desktop.servers.windows")
@ERAS
async def test_resources_are_listed_and_read_as_the_server_sends_them(era: Any) -> None:
    content = [
        {"uri": "window://x/y", "resource": {"annotations": {"priority": 7, "odd": 1}, "_meta": {"fullscreen": 3}}}
    ]
    async with running(desk=configs.context(era, windows=1, content=content)) as servers:
        resources = servers.resources()
        assert (resources.capability.subscribe, resources.capability.list_changed) == (True, True)
        page, _ = await resources.list_page("resources")
        assert [item["uri"] for item in page] == [WINDOW, "window://x/y"]
        assert page[1]["annotations"] == {"priority": 7, "odd": 1}
        assert page[1]["_meta"] == {"fullscreen": 3}
        read = await resources.read(WINDOW)
        assert read["contents"] == [{"uri": WINDOW, "mimeType": "text/plain", "text": f"text of {WINDOW}"}]
        assert [item["name"] for item in (await resources.list_all("templates")).items] == ["page", "element"]


@pytest.mark.rule("desktop.servers.windows", "computer.resources.flow.list.pages")
async def test_all_pages_of_a_list_are_taken() -> None:
    async with running(desk=configs.context("2025", windows=7, page_size=3)) as servers:
        first, following = await servers.resources().list_page("resources")
        assert (len(first), following) == (3, "3")
        assert len((await servers.resources().list_all("resources")).items) == 7
        assert len(await servers.index.list("desk")) == 7


@pytest.mark.rule("computer.resources.computer.without")
async def test_a_server_without_the_resources_capability_has_no_resources() -> None:
    async with running(desk=configs.context("2026", without=["resources"])) as servers:
        assert servers.fleet.supervisors["desk"].resources is None
        assert servers.index.servers() == []
        servers.index.count("resources_list")
        assert servers.index.skipped["resources_list"] == 1
        with pytest.raises(ServerNotRunning):
            await servers.index.list("desk")


@pytest.mark.rule("desktop.changes.list.collect", "finder.changes.list.collect")
@ERAS
async def test_the_index_follows_list_changed_of_a_server(era: Any) -> None:
    async with running(desk=configs.context(era, windows=1)) as servers:
        assert list(await servers.index.list("desk")) == [WINDOW]
        await servers.tell("put", uri=OTHER)
        await eventually(lambda: list(servers.index.known("desk")) == [WINDOW, OTHER])
        await servers.tell("remove", uri=WINDOW)
        await eventually(lambda: list(servers.index.known("desk")) == [OTHER])
        assert ResourcesChanged("desk") in servers.heard


@pytest.mark.rule("desktop.servers.notices.list", "answers.desktop.list.untold")
@ERAS
async def test_a_server_without_list_changed_is_listed_for_each_request(era: Any) -> None:
    async with running(desk=configs.context(era, windows=1, without=["list_changed"])) as servers:
        capability = servers.resources().capability
        assert (capability.subscribe, bool(capability.list_changed)) == (True, False)
        assert list(await servers.index.list("desk")) == [WINDOW]
        await servers.tell("put", uri=OTHER)
        assert list(await servers.index.list("desk")) == [WINDOW, OTHER]


@ERAS
async def test_a_subscription_at_a_server_lasts_until_its_last_holder_releases_it(era: Any) -> None:
    async with running(desk=configs.context(era, windows=2)) as servers:
        await servers.upstream.hold("alice", "desk", WINDOW)
        await servers.upstream.hold("bob", "desk", WINDOW)
        assert await servers.tell("subscribed") == [WINDOW]
        await servers.tell("update", uri=WINDOW)
        await servers.heard_of(ResourceUpdated("desk", WINDOW))
        servers.upstream.release("alice", "desk", WINDOW)
        assert servers.upstream.holders("desk", WINDOW) == {"bob"}
        servers.heard.clear()
        await servers.tell("update", uri=WINDOW)
        await servers.heard_of(ResourceUpdated("desk", WINDOW))
        servers.upstream.release("bob", "desk", WINDOW)
        await servers.agreed()


@pytest.mark.rule("desktop.servers.notices.updated")
@ERAS
async def test_wanted_resources_are_subscribed_to_in_the_background_and_after_restarts(era: Any) -> None:
    async with running(desk=configs.context(era, windows=20)) as servers:
        uris = list(await servers.index.list("desk"))
        servers.upstream.want("desk", uris)
        await servers.upstream.hold("alice", "desk", OTHER)
        await servers.agreed(*sorted(uris))
        servers.upstream.want("desk", uris[:1])
        await servers.agreed(*sorted({uris[0], OTHER}))
        servers.heard.clear()
        with pytest.raises(ServerDied):
            await servers.tell("die")
        await servers.heard_of(ServerGone("desk"))
        assert servers.index.known("desk") == {}
        await servers.heard_of(ServerReady("desk"))
        await servers.agreed(*sorted({uris[0], OTHER}))


@pytest.mark.rule("desktop.servers.notices.updated")
async def test_changes_of_an_http_server_are_announced_after_its_restart() -> None:
    async with (
        configs.http_context(windows=2) as server,
        running(desk=configs.http("streamable", server.url)) as servers,
    ):
        servers.upstream.want("desk", [WINDOW, OTHER])
        await servers.agreed(WINDOW, OTHER)
        await servers.tell("update", uri=OTHER)
        await servers.heard_of(ResourceUpdated("desk", OTHER))
        await servers.tell("put", uri="window://x")
        await eventually(lambda: "window://x" in servers.index.known("desk"))
        await server.kill()
        await servers.heard_of(ServerGone("desk"))
        servers.heard.clear()
        await server.start()
        await eventually(lambda: ServerReady("desk") in servers.heard, timeout=60)
        await servers.agreed(WINDOW, OTHER)
        await servers.tell("update", uri=WINDOW)
        await servers.heard_of(ResourceUpdated("desk", WINDOW))
        assert list(await servers.index.list("desk")) == [WINDOW, OTHER]


@pytest.mark.rule("computer.resources.computer.subscribe.refused")
@ERAS
async def test_a_subscription_that_the_server_does_not_grant_is_refused_and_not_held(era: Any) -> None:
    async with running(desk=configs.context(era, windows=1, without=["subscribe"])) as servers:
        with pytest.raises(ServerError):
            await servers.upstream.hold("alice", "desk", WINDOW)
        assert servers.upstream.holders("desk", WINDOW) == frozenset()


async def test_a_subscription_that_ends_while_the_server_is_asked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smcp_computer.mcp.resources.ONE_OF_MANY_S", 60.0)
    late = {WINDOW: "subscribe_late"}
    async with running(desk=configs.context("2025", windows=1, misbehave=late)) as servers:
        holding = asyncio.create_task(servers.upstream.hold("alice", "desk", WINDOW))
        await eventually(lambda: servers.upstream.holders("desk", WINDOW))
        servers.upstream.release("alice", "desk", WINDOW)
        await servers.tell("misbehave", uri=WINDOW, how="")
        with pytest.raises(ServerNotRunning, match="after the subscription had ended"):
            await asyncio.wait_for(holding, 30)
        await servers.agreed()
