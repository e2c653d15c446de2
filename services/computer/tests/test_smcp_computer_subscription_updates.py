"""Updates for subscriptions of Agents: bounded, fair, sent once."""

import tracemalloc
from typing import Any

import pytest

from smcp_bus import outbox
from smcp_computer.mcp.events import ResourceUpdated
from smcp_computer.outbox import MAX_TITLE
from smcp_testing.computer_office import World, world
from smcp_testing.mcp_servers import configs
from smcp_testing.resource_agent import ResourceAgent
from smcp_testing.waiting import eventually


def told_uris(here: World) -> list[str]:
    return [each["payload"]["params"]["uri"] for each in here.told("resources_updated")]


async def test_an_update_with_an_invalid_uri_is_dropped_with_one_warning(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(nats_url, one=configs.context("2025", content=[{"uri": "note://a/b/"}])) as here:
        alice = ResourceAgent(here)
        await alice.result("resources/subscribe", uri="note://a/b/")
        events, notices = here.computer.fleet.events, here.computer.outbox
        for uri in ("note://a/b" + "/c" * 20_000, "note://a/b/\ud800", ""):
            events.tell(ResourceUpdated("one", uri))
        assert outbox.UPDATED not in {each.key.verb for each in notices.waiting}
        for uri in ("note://a/b/c", "note://a/b/d?" + "x" * (8192 - len("note://a/b/d?"))):
            events.tell(ResourceUpdated("one", uri))
        await eventually(lambda: len(here.told("resources_updated")) == 2)
        assert len(here.told("resources_updated")[1]["payload"]["params"]["uri"]) == 8192
    assert caplog.text.count("of URIs that are invalid or too long") == 1


async def test_the_cost_of_a_uri_grows_with_its_length_only(nats_url: str) -> None:
    async with world(nats_url, one=configs.context("2026", content=[{"uri": "note://a/b"}])) as here:
        await ResourceAgent(here).result("resources/subscribe", uri="note://a/b")
        deep = "note://a/b" + "/c" * 4000
        tracemalloc.start()
        try:
            assert list(here.computer.resources.subscriptions.concerned("one", deep)) == []
            assert tracemalloc.get_traced_memory()[1] < 2_000_000
        finally:
            tracemalloc.stop()
        near = "note://a/b" + "/c" * 20
        assert list(here.computer.resources.subscriptions.concerned("one", near)) == ["alice"]


@pytest.mark.rule("answers.resources.flood")
async def test_too_many_waiting_updates_become_one_list_changed(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outbox, "MOST_BYTES", 600)
    async with world(nats_url, one=configs.context("2026", content=[{"uri": "note://a/b"}])) as here:
        await ResourceAgent(here).result("resources/subscribe", uri="note://a/b")
        await eventually(lambda: here.computer.outbox.held() == {"pending": 0})
        here.heard.clear()
        for number in range(4):
            here.computer.fleet.events.tell(ResourceUpdated("one", f"note://a/b/{number}"))
        assert {each.key.verb for each in here.computer.outbox.waiting} == {outbox.LIST_CHANGED}
        await eventually(lambda: here.told("resources_list_changed"))
        [told] = here.told("resources_list_changed")
        assert (told["serverId"], told["a2c_missed"]) == ("one", True)
        assert told_uris(here) == []
        await here.tell("one", "update", uri="note://a/b")
        await eventually(lambda: told_uris(here) == ["note://a/b"], message="the subscription stands")
    assert caplog.text.count("more resources of MCP server 'one' change than can be sent one by one") == 1


async def test_a_server_with_very_many_updates_does_not_delay_others(nats_url: str) -> None:
    content: dict[str, list[dict[str, Any]]] = {"one": [{"uri": "note://a/b"}], "two": [{"uri": "note://c"}]}
    servers = {name: configs.context("2026", host=name, content=items) for name, items in content.items()}
    async with world(nats_url, **servers) as here:
        alice = ResourceAgent(here)
        for uri in ("note://a/b", "note://c"):
            await alice.result("resources/subscribe", uri=uri)
        notices = here.computer.outbox
        await eventually(lambda: notices.held() == {"pending": 0})
        here.heard.clear()
        for number in range(3_000):  # the loop must not be blocked for as long as a lease, on a busy machine too
            here.computer.fleet.events.tell(ResourceUpdated("one", f"note://a/b/{number}"))
            if number == 1000:
                here.computer.fleet.events.tell(ResourceUpdated("two", "note://c"))
        await eventually(lambda: "two" in [each["serverId"] for each in here.told("resources_updated")], timeout=30)
        servers_told = [each["serverId"] for each in here.told("resources_updated")]
        assert servers_told.index("two") < 500, "it is not told after what came before it"
        await eventually(lambda: missed(here), timeout=60)


def missed(here: World) -> list[str]:
    """The servers whose updates Agents may have missed, according to notifications."""
    return [each["serverId"] for each in here.told("resources_list_changed") if each.get("a2c_missed")]


async def test_a_notification_that_cannot_be_sent_is_dropped_with_one_warning(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(nats_url, one=configs.context("2026", content=[{"uri": "note://small"}])) as here:
        await ResourceAgent(here).result("resources/subscribe", uri="note://small")
        notices = here.computer.outbox
        for number in range(3):
            refused = f"note://small/{number}" + "x" * 9000
            notices.resource_updated("alice", "one", refused, None)
        await here.tell("one", "update", uri="note://small")
        await eventually(lambda: here.told("resources_updated"))
        await eventually(lambda: notices.held() == {"pending": 0})
        assert told_uris(here) == ["note://small"]
    assert caplog.text.count("resources_updated of MCP server 'one' cannot be sent, and is dropped") == 1
    assert "could not be sent" not in caplog.text


async def test_an_endless_title_is_cut_in_an_update(nats_url: str) -> None:
    titled = [{"uri": "note://big", "resource": {"title": "x" * 60_000}}]
    async with world(nats_url, one=configs.context("2026", content=titled)) as here:
        await ResourceAgent(here).result("resources/subscribe", uri="note://big")
        await here.tell("one", "update", uri="note://big")
        await eventually(lambda: here.told("resources_updated"))
        assert here.told("resources_updated")[0]["payload"]["params"]["title"] == "x" * MAX_TITLE


async def test_a_faulty_list_is_warned_about_again_after_a_restart_of_the_server(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(nats_url, one=configs.context("2025", content=[{"uri": "note://1"}])) as here:
        supervisor = here.computer.fleet.supervisors["one"]
        for life in (1, 2):
            lived = life - 1
            await eventually(lambda: supervisor.ready and supervisor.starts > lived, timeout=30)  # noqa: B023 -- at once
            await here.tell("one", "misbehave", uri="list", how="refuse")
            await here.tell("one", "tell_list")
            for _ in range(2):
                await ResourceAgent(here).ask("resources/list")
            assert caplog.text.count("left out of a list") == life
            with pytest.raises(Exception, match="went away"):
                await here.tell("one", "die")
