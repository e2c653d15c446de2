"""Resources and documents are cached until a notification invalidates them."""

from typing import Any

import pytest

from smcp_agent import (
    CapabilitiesChanged,
    ComputerEntered,
    ComputerLeft,
    Notified,
    ResourcesChanged,
    ResourceUpdated,
    SmcpAgent,
    ToolsChanged,
)
from smcp_testing.context_computer import SERVER
from smcp_testing.fake_gateway import FakeGateway, fake_gateway
from smcp_testing.file_computer import FILE, at
from smcp_testing.mcp_servers.shelf import document

JsonObject = dict[str, Any]
LIST = "client:resources/list"


async def told(agent: SmcpAgent, gateway: FakeGateway, event: str, data: JsonObject) -> Any:
    """What the agent tells of a notification; who comes and goes meanwhile, and with which tools, is passed over."""
    stream = agent.events()
    await gateway.notify(event, **data)
    while isinstance(said := await anext(stream), ToolsChanged | ComputerEntered | ComputerLeft):
        pass
    return said


@pytest.mark.rule("computer.resources.agent.{list_changed,updated,cache}")
async def test_a_list_is_cached_until_a_notification_outdates_it() -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        async with agent:

            async def asked() -> int:
                """Questions for these lists since the last time."""
                before = len(red.asked)
                for server in (None, SERVER, "other"):
                    await agent.resources("red", server=server)
                await agent.resources()
                await agent.resources("blue")
                return len(red.asked) - before

            assert len(await agent.resources("red")) == 7
            assert await asked() == 4
            assert await asked() == 0
            changed = red.says("resources/list_changed")
            event = await told(agent, gateway, "notify:resources/list_changed", changed)
            assert event == ResourcesChanged("red", SERVER)
            assert await asked() == 4
            changed = {name: value for name, value in changed.items() if name != "serverId"}
            assert await told(agent, gateway, "notify:resources/list_changed", changed) == ResourcesChanged("red")
            assert await asked() == 4
            updated = red.says("resources/updated", uri=FILE, title="Notes")
            event = await told(agent, gateway, "notify:resources/updated", updated)
            assert event == ResourceUpdated("red", FILE, SERVER, "Notes")
            assert await asked() == 4
            await gateway.leave("red")
            await gateway.enter("red", [])
            await told(agent, gateway, "notify:mark", {})
            assert await asked() == 4


@pytest.mark.rule("computer.resources.agent.cache")
@pytest.mark.parametrize("skipped", [{"a2c_skipped": ["blue"]}, {"a2c_skipped_servers": ["notes"]}])
async def test_an_incomplete_list_is_returned_but_not_cached(skipped: JsonObject) -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        red.page_size = 4
        whole = gateway.answers[LIST]

        async def partly(data: JsonObject) -> Any:
            answer = await whole(data)
            result = answer["payload"]["result"]
            if "nextCursor" in result:  # the first of two pages
                result["meta"] = skipped
            return answer

        async with agent:
            gateway.answers[LIST] = partly
            for _ in range(2):
                assert len(await agent.resources()) == 7
            assert len(red.seen(LIST)) == 4
            gateway.answers[LIST] = whole
            for _ in range(2):
                assert len(await agent.resources()) == 7
            assert len(red.seen(LIST)) == 6


@pytest.mark.rule(
    "events.{notify.update_finder.advice,should.agent.update_finder}",
    "finder.{navigation.own,changes.agent}",
)
async def test_a_page_of_documents_is_cached_until_a_change_is_announced() -> None:
    async with fake_gateway() as gateway:
        agent, red = at(gateway)
        async with agent:
            for _ in range(2):
                assert (await agent.finder("red"))["total_count"] == 1
                assert (await agent.finder("red", keywords="nothing"))["documents"] == []
                assert (await agent.finder("red", keywords=["nothing"], offset=0))["documents"] == []
            assert len(red.seen("client:get_finder")) == 2
            red.shelf.put_document(document("second"))
            await told(agent, gateway, "notify:update_finder", {"computer": "red"})
            assert (await agent.finder(computer="red"))["total_count"] == 2


@pytest.mark.rule("computer.resources.compat.agent")
async def test_capabilities_are_published_and_malformed_notifications_passed_unchanged() -> None:
    async with fake_gateway() as gateway:
        agent, _ = at(gateway)
        async with agent:
            can = {"computer": "red", "capabilities": {"resources": {"subscribe": True}}}
            event = await told(agent, gateway, "notify:update_capabilities", can)
            assert isinstance(event, CapabilitiesChanged)
            assert event.computer == "red"
            assert event.capabilities.resources is not None
            assert event.capabilities.resources.subscribe is True
            for name in ("update_desktop", "update_finder", "update_capabilities", "resources/updated"):
                event = await told(agent, gateway, f"notify:{name}", {"computer": 5})
                assert event == Notified(f"notify:{name}", {"computer": 5})
