"""The Agent SDK's desktops, documents, resources and subscriptions against real services and real MCP servers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal

import pytest

from smcp_agent import (
    DesktopChanged,
    Event,
    FinderChanged,
    McpError,
    Reconnected,
    ResourcesChanged,
    ResourceUpdated,
    SmcpAgent,
    windows,
)
from smcp_computer import finder
from smcp_testing.computer_world import native_computer
from smcp_testing.context_computer import PAGE_HOST, page_documents, watched
from smcp_testing.gateway_world import World, gateway_world
from smcp_testing.mcp_servers.configs import context
from smcp_testing.waiting import eventually

OFFICE = "厨房"
COMPUTER = "red.1"
NOTE = "window://desk/note"
DOCUMENT = f"dpe://{PAGE_HOST}/rpt-2026"
PATIENCE_S = 60.0

Era = Literal["2025", "2026"]
ERAS = pytest.mark.parametrize("era", ["2025", "2026"])
Servers = dict[str, Any]


def servers(era: Era = "2025") -> Servers:
    """One with windows, one with the documents of finder.txt's examples."""
    note = {"uri": NOTE, "contents": [{"uri": NOTE, "text": "buy onions"}]}
    documents = [{"document": each} for each in page_documents()]
    return {
        "desk": context(era, host="desk", content=[note], windows=1),
        "docs": context(era, host=PAGE_HOST, content=documents),
    }


def computer(world: World, servers: Servers) -> Any:
    return native_computer(world, OFFICE, COMPUTER, servers)


@asynccontextmanager
async def working(nats_url: str, era: Era) -> AsyncIterator[tuple[SmcpAgent, list[Event]]]:
    """An Agent and its Computer are in their office, on gateways of their own."""
    async with (
        gateway_world(nats_url) as world,
        computer(world, servers(era)),
        SmcpAgent(world.url, office=OFFICE, name="bot") as agent,
    ):
        yield agent, watched(agent)


async def tell(agent: SmcpAgent, server: str, tool: str, **arguments: Any) -> None:
    """Have an MCP server change, by one of its tools."""
    result = await agent.call_tool(COMPUTER, f"{server}__{tool}", arguments)
    assert not result.is_error, result.text


@pytest.mark.rule("finder.navigation.no_tools", "finder.navigation.steps", "finder.completion.agent")
@ERAS
async def test_desktop_documents_and_resources_of_a_real_computer(nats_url: str, era: Era) -> None:
    async with working(nats_url, era) as (agent, _):
        shown = windows(await agent.get_desktop(COMPUTER))
        assert {window.uri: window.text for window in shown}[NOTE] == "buy onions"
        assert len((await agent.get_desktop(COMPUTER, size=1))["desktops"]) == 1
        assert "buy onions" in await agent.desktop_prompt()
        finder = await agent.get_finder(COMPUTER, keywords=["年报"])
        assert [each["doc_ref"] for each in finder["documents"]] == ["rpt-2026"]
        index = await agent.read_resource(COMPUTER, f"{DOCUMENT}?depth=pages&limit=2")
        assert [page["title"] for page in index["pages"]] == ["概览", "收入分析"]
        page = await agent.read_resource(COMPUTER, f"{index['uri']}/pages/0?categories=table")
        element = await agent.read_resource(COMPUTER, f"{DOCUMENT}/elements/{page['elements'][0]['element_id']}")
        assert element["metadata"]["source_range"] == "A1:C5"
        listed = [each["uri"] async for each in agent.iter_resources(COMPUTER)]
        assert set(listed) == {each["uri"] for each in await agent.resources()} >= {NOTE, DOCUMENT}
        templates = {each["uriTemplate"] async for each in agent.iter_resource_templates(COMPUTER, server="docs")}
        template = f"dpe://{PAGE_HOST}/{{doc_ref}}/pages/{{page_index}}"
        assert template in templates
        assert (await agent.complete(COMPUTER, template, "doc_ref", "rpt"))["values"] == ["rpt-2026"]
        pages = await agent.complete(COMPUTER, template, "page_index", "1", chosen={"doc_ref": "rpt-2026"})
        assert pages["values"] == ["1", "10", "11"]
        with pytest.raises(McpError) as gone:
            await agent.read_resource(COMPUTER, "window://desk/gone", server="desk")
        assert gone.value.smcp_code == "SMCP_RESOURCE_NOT_FOUND"


@pytest.mark.rule("finder.changes.agent", "finder.lifecycle.contents.told", "finder.lifecycle.contents.asked")
@ERAS
async def test_changes_are_events_and_update_the_caches(nats_url: str, era: Era) -> None:
    async with working(nats_url, era) as (agent, events):
        await agent.desktop(COMPUTER)
        await agent.finder(COMPUTER)
        await agent.resources(COMPUTER)
        await tell(agent, "desk", "update", uri=NOTE, text="buy garlic")
        await eventually(lambda: DesktopChanged(COMPUTER) in events, timeout=PATIENCE_S)
        assert "buy garlic" in await agent.desktop_prompt(COMPUTER)
        await tell(agent, "docs", "put", document={"ref": "new", "title": "New"})
        await eventually(lambda: FinderChanged(COMPUTER) in events, timeout=PATIENCE_S)
        assert (await agent.finder(COMPUTER))["total_count"] == 3

        async def listed() -> bool:
            return f"dpe://{PAGE_HOST}/new" in {each["uri"] for each in await agent.resources(COMPUTER)}

        await eventually(listed, timeout=PATIENCE_S)
        await eventually(lambda: any(is_of_docs(event) for event in events), timeout=PATIENCE_S)


def is_of_docs(event: Event) -> bool:
    return isinstance(event, ResourcesChanged) and event.server == "docs"


@pytest.mark.rule("computer.resources.agent.subscribe", "computer.resources.agent.updated")
@ERAS
async def test_a_subscription_reports_only_its_resource_until_it_ends(nats_url: str, era: Era) -> None:
    async with working(nats_url, era) as (agent, events):
        await agent.subscribe_resource(COMPUTER, NOTE)
        await tell(agent, "desk", "update", uri="window://desk/0", text="not subscribed to")
        await tell(agent, "desk", "update", uri=NOTE, text="subscribed to")
        await eventually(partial(told, events, NOTE), timeout=PATIENCE_S)
        assert {event.uri for event in events if isinstance(event, ResourceUpdated)} == {NOTE}
        await agent.unsubscribe_resource(COMPUTER, NOTE)
        await agent.subscribe_resource(COMPUTER, "window://desk/0")
        events.clear()
        await tell(agent, "desk", "update", uri=NOTE, text="not any more")
        await tell(agent, "desk", "update", uri="window://desk/0", text="subscribed to")
        await eventually(partial(told, events, "window://desk/0"), timeout=PATIENCE_S)
        assert {event.uri for event in events if isinstance(event, ResourceUpdated)} == {"window://desk/0"}


def told(events: list[Event], uri: str) -> bool:
    return any(isinstance(event, ResourceUpdated) and event.uri == uri for event in events)


@pytest.mark.rule("computer.resources.agent.cache.subscriptions")
async def test_a_subscription_survives_a_computer_restart_and_a_disconnect(nats_url: str) -> None:
    async with gateway_world(nats_url) as world, SmcpAgent(world.url, office=OFFICE, name="bot") as agent:
        events = watched(agent)
        async with computer(world, servers()):
            await eventually(lambda: agent.computers() == [COMPUTER], timeout=PATIENCE_S)
            await agent.subscribe_resource(COMPUTER, NOTE)
            connection = agent._link.connection
            assert connection is not None
            connection.give_up("cut by the test")
            await eventually(lambda: any(isinstance(event, Reconnected) for event in events), timeout=PATIENCE_S)
            await subscribed_again(agent, events)
        await eventually(lambda: agent.computers() == [], timeout=PATIENCE_S)
        events.clear()
        async with computer(world, servers()):
            await subscribed_again(agent, events)


async def subscribed_again(agent: SmcpAgent, events: list[Event]) -> None:
    """Wait for the event of the change, and for that of the next one."""
    await eventually(partial(told, events, NOTE), timeout=PATIENCE_S)
    events.clear()
    await tell(agent, "desk", "update", uri=NOTE, text="another")
    await eventually(partial(told, events, NOTE), timeout=PATIENCE_S)


@pytest.mark.rule("answers.desktop.missing", "answers.finder.as_listed")
async def test_an_incomplete_desktop_or_catalog_is_requested_again(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finder, "CACHE_BYTES", 0)
    slow = {"desk": context("2026", host="desk", windows=2, documents=1, misbehave={"window://desk/0": "never"})}
    async with (
        gateway_world(nats_url) as world,
        native_computer(world, OFFICE, COMPUTER, slow, read_s=1.0) as computer,
        SmcpAgent(world.url, office=OFFICE, name="bot") as agent,
    ):
        subscribed = computer.resources.subscriptions.subscribed
        await eventually(lambda: len(subscribed("desk")) == 3 and not computer.outbox.waiting, timeout=PATIENCE_S)
        assert (await agent.desktop(COMPUTER))["a2c_missing"] == 1
        assert (await agent.finder(COMPUTER))["a2c_as_listed"] == 1
        supervisor = computer.fleet.supervisors["desk"]
        well = {"uri": "window://desk/0", "how": ""}
        await supervisor.call("misbehave", well, timeout=30)  # no call of the Agent
        changed = {"uri": "window://desk/0", "text": "another"}
        await supervisor.call("update", changed, timeout=30)

        async def is_whole() -> bool:
            return "a2c_missing" not in await agent.desktop(COMPUTER)

        await eventually(is_whole, timeout=PATIENCE_S)
        whole = await agent.desktop(COMPUTER)
        assert [window.uri for window in windows(whole)] == ["window://desk/0", "window://desk/1"]
        assert "a2c_missing" not in whole
