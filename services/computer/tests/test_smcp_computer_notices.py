"""What becomes of the changes that MCP servers tell, and that Agents subscribed to: bounded, fair, told once."""

import tracemalloc

import pytest

from smcp_computer.mcp.events import ResourceUpdated
from smcp_computer.resources import notices as notices_module
from smcp_testing.computer_office import world
from smcp_testing.mcp_servers import configs
from smcp_testing.resource_agent import ResourceAgent
from smcp_testing.waiting import eventually


async def test_an_update_whose_uri_the_wire_does_not_carry_is_dropped_and_said_once(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(nats_url, one=configs.context("2025", content=[{"uri": "note://a/b/"}])) as here:
        alice = ResourceAgent(here)
        await alice.result("resources/subscribe", uri="note://a/b/")
        events, notices = here.computer.fleet.events, here.computer.resources.notices
        for uri in ("note://a/b" + "/c" * 20_000, "note://a/b/\ud800", ""):
            events.tell(ResourceUpdated("one", uri))
        assert notices.untold == 0
        for uri in ("note://a/b/c", "note://a/b/d?" + "x" * (8192 - len("note://a/b/d?"))):
            events.tell(ResourceUpdated("one", uri))
        await eventually(lambda: len(here.told("resources_updated")) == 2)
        assert len(here.told("resources_updated")[1]["payload"]["params"]["uri"]) == 8192
    assert caplog.text.count("with URIs that are none, or too long") == 1


async def test_a_uri_of_any_depth_costs_no_more_than_its_length(nats_url: str) -> None:
    async with world(nats_url, one=configs.context("2026", content=[{"uri": "note://a/b"}])) as here:
        await ResourceAgent(here).result("resources/subscribe", uri="note://a/b")
        deep = "note://a/b" + "/c" * 4000
        tracemalloc.start()
        try:
            assert list(here.computer.resources.agents.concerned("one", deep)) == []
            assert tracemalloc.get_traced_memory()[1] < 2_000_000
        finally:
            tracemalloc.stop()
        near = "note://a/b" + "/c" * 20
        assert list(here.computer.resources.agents.concerned("one", near)) == ["alice"]


async def test_what_is_to_be_told_while_nobody_hears_it_is_bounded(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices_module, "MOST_UNTOLD", 3)
    async with world(nats_url, one=configs.context("2026", content=[{"uri": "note://a/b"}])) as here:
        await ResourceAgent(here).result("resources/subscribe", uri="note://a/b")
        await eventually(lambda: not here.computer.resources.notices.untold)
        for number in range(10):
            here.computer.fleet.events.tell(ResourceUpdated("one", f"note://a/b/{number}"))
        assert here.computer.resources.notices.untold == 3
        await eventually(lambda: len(here.told("resources_updated")) == 3)
