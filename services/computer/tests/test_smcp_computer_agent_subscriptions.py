"""Subscriptions at a native Computer: updates reach the subscriber alone, and end with its membership."""

import json
from typing import Any, Literal

import pytest

from smcp_bus import subjects
from smcp_bus.headers import EPOCH
from smcp_bus.nats.bus import BusConfig, open_bus
from smcp_computer.computer import Computer
from smcp_computer.mcp.events import ResourceUpdated
from smcp_computer.resources import subscriptions
from smcp_proto.schemas.resources import MISSED
from smcp_registry.member_records import record_key, tombstone
from smcp_registry.store import open_store, read_member, write_member
from smcp_testing.computer_office import NAME, OFFICE, World, computer, world
from smcp_testing.gateway_world import Client, connected, gateway_world
from smcp_testing.leaving_gateway import gone, in_time, two_gateways
from smcp_testing.mcp_servers import configs
from smcp_testing.resource_agent import ResourceAgent
from smcp_testing.tcp_proxy import Line, open_line
from smcp_testing.waiting import eventually

Era = Literal["2025", "2026"]
ERAS = pytest.mark.parametrize("era", ["2025", "2026"])


@pytest.mark.rule(
    "computer.resources.{events.subscribe,events.unsubscribe,computer.subscribe,computer.unsubscribe}",
    "computer.resources.{computer.updated,payload.subscribe,payload.updated,payload.envelope}",
    "computer.resources.{flow.subscribe.downstream,flow.subscribe.updated,flow.subscribe.told}",
    "computer.resources.notes.computer",
    "answers.resources.subscribers.native",
)
@ERAS
async def test_an_agent_gets_updates_until_it_unsubscribes_or_leaves(nats_url: str, era: Era) -> None:
    async with (
        gateway_world(nats_url, gateways=2) as both,
        computer(nats_url, {"one": configs.context(era, content=NOTES)}) as here,
        connected(both.gateways[0].url) as anna,
        connected(both.gateways[1].url) as car,
    ):
        await car.join("computer", "car", OFFICE)
        await anna.join("agent", "anna", OFFICE)
        answer = await asked(anna, "subscribe", "note://1")
        assert answer["serverId"] == "one"
        await asked(anna, "subscribe", "note://1")
        await asked(anna, "subscribe", "note://end")
        await downstream(here, "note://1", "note://end")
        for uri in ("note://2", "note://1"):
            await tell(here, "update", uri=uri, text="new")
        await eventually(lambda: updated(anna))
        assert anna.told("notify:resources/updated") == [
            {
                "roomId": OFFICE, "computerId": NAME, "serverId": "one", "agent": "anna",
                "payload": {
                    "jsonrpc": "2.0", "method": "notifications/resources/updated",
                    "params": {"uri": "note://1", "title": "One"},
                },
            }
        ]  # fmt: skip
        await asked(anna, "unsubscribe", "note://1", serverId="one")
        await asked(anna, "unsubscribe", "note://1")
        await downstream(here, "note://end")
        await tell(here, "update", uri="note://1")
        await tell(here, "update", uri="note://end")
        await eventually(lambda: updated(anna)[1:] == ["note://end"])
        await anna.call("server:leave_office", {"office_id": OFFICE})
        await downstream(here)
        assert car.told("notify:resources/updated") == []
        assert here.resources.subscriptions.agents == frozenset()


@pytest.mark.rule("answers.resources.subscribers.native")
async def test_a_subscription_survives_the_agents_move_to_another_gateway(nats_url: str) -> None:
    async with (
        two_gateways(nats_url) as (staying, leaving, leave),
        computer(nats_url, {"one": configs.context("2026", content=NOTES)}) as here,
        connected(leaving.url) as anna,
    ):
        await anna.join("agent", "anna", OFFICE)
        await asked(anna, "subscribe", "note://1")
        left = leave()
        await gone(anna)
        await in_time(left)
        async with connected(staying.url) as again:
            assert await again.join("agent", "anna", OFFICE) == [True, None]
            await tell(here, "update", uri="note://1")
            await eventually(lambda: updated(again) == ["note://1"])


@pytest.mark.rule("answers.resources.subscribers.dropped")
@ERAS
async def test_subscriptions_at_a_server_that_restarts_are_dropped_and_the_agent_is_told(
    nats_url: str, era: Era
) -> None:
    servers = {name: configs.context(era, content=NOTES) for name in ("one", "two")}
    async with world(nats_url, **servers) as here:
        alice = ResourceAgent(here)
        await alice.result("resources/subscribe", server="one", uri="note://1")
        await alice.result("resources/subscribe", server="two", uri="note://2")
        with pytest.raises(Exception, match="went away"):
            await here.tell("one", "die")
        await eventually(lambda: missed(here) == ["one"], timeout=30)

        async def is_back() -> bool:
            return (await alice.ask("resources/subscribe", server="one", uri="note://1")).get("code") is None

        await downstream_of(here, "two", "note://2")
        await eventually(is_back, timeout=30)
        await here.tell("one", "update", uri="note://1")
        await eventually(lambda: told(here) == {"note://1"})


def missed(here: World) -> list[str]:
    """The servers whose subscriptions ended, according to notifications to Agents."""
    return [each["serverId"] for each in here.told("resources_list_changed") if each.get("a2c_missed")]


async def downstream_of(here: World, server: str, *uris: str) -> None:
    async def agreed() -> bool:
        return bool(await here.tell(server, "subscribed") == list(uris))

    await eventually(agreed, timeout=30)


@pytest.mark.rule(
    "answers.resources.subscribers.limit",
    "computer.resources.{flow.subscribe.downstream,errors.subscription,errors.rate}",
    "computer.resources.flow.subscribe.acknowledged",
)
async def test_a_subscription_that_cannot_be_granted_is_refused(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MAX_SUBSCRIPTIONS", 2)
    silent = configs.context(
        "2026", host="silent", content=[{"uri": "x://1"}, {"uri": "note://1"}], without=["subscribe"]
    )
    old = configs.context("2025", host="old", content=[*NOTES, {"uri": "y://1"}], without=["subscribe"])
    servers = {"a": silent, "b": old, "one": configs.context("2025", content=NOTES)}
    async with world(nats_url, **servers) as here:
        alice = ResourceAgent(here)
        for uri in ("x://1", "y://1"):
            refused = await alice.flat("resources/subscribe", uri=uri)
            assert refused == (400, "SMCP_SUBSCRIPTION_NOT_SUPPORTED"), uri
        assert await alice.flat("resources/subscribe", uri="z://1") == (404, "SMCP_RESOURCE_NOT_FOUND")
        answer = await alice.ask("resources/subscribe", uri="note://1")
        assert answer["serverId"] == "one", "the first of those that list it and tell of it"
        await here.tell("one", "misbehave", uri="note://2", how="refuse")
        error = await alice.error("resources/subscribe", server="one", uri="note://2")
        assert (error["code"], error["data"]["smcp_code"]) == (-32602, "SMCP_RESOURCE_NOT_FOUND")
        await here.tell("one", "misbehave", uri="note://2", how="never")
        refused = await alice.flat("resources/subscribe", server="one", uri="note://2", timeout=2)
        assert refused == (408, None)
        await alice.result("resources/subscribe", uri="note://end")
        await here.tell("one", "misbehave", uri="note://2", how="")
        assert await alice.flat("resources/subscribe", uri="note://2") == (429, "SMCP_RATE_LIMITED")
        await downstream(here.computer, "note://1", "note://end")


async def test_an_update_below_a_resource_reaches_the_agent_that_subscribed_to_the_resource(nats_url: str) -> None:
    async with world(nats_url, one=configs.context("2026", content=[{"uri": "note://a/b"}])) as here:
        alice = ResourceAgent(here)
        await alice.result("resources/subscribe", uri="note://a/b")
        for uri in ("note://a", "note://a/bc", "other://a/b", "note://a/b/c", "note://a/b?x=1"):
            here.computer.fleet.events.tell(ResourceUpdated("one", uri))
        await eventually(lambda: len(here.told("resources_updated")) == 2)
        told = [each["payload"]["params"]["uri"] for each in here.told("resources_updated")]
        assert told == ["note://a/b/c", "note://a/b?x=1"]


def told(here: World) -> set[str]:
    """The resources that the office was notified of."""
    return {each["payload"]["params"]["uri"] for each in here.told("resources_updated")}


@pytest.mark.rule("answers.resources.subscribers.query")
@ERAS
async def test_the_query_of_a_document_does_not_matter_for_its_subscription(nats_url: str, era: Era) -> None:
    document, page = "dpe://h/doc-0", "dpe://h/doc-0/pages/1"
    async with world(nats_url, one=configs.context(era, host="h", documents=1)) as here:
        alice = ResourceAgent(here)
        for uri in (f"{document}?depth=pages", f"{page}?format=markdown", f"{page}?categories=table"):
            assert (await alice.ask("resources/subscribe", uri=uri))["serverId"] == "one"
        await downstream(here.computer, document, page)
        for uri in (document, page):
            await here.tell("one", "update", uri=uri)
        await eventually(lambda: told(here) == {document, page})
        await alice.result("resources/unsubscribe", uri=f"{page}?format=text")
        await downstream(here.computer, document)
        await alice.result("resources/unsubscribe", uri=f"{document}?depth=pages")
        assert here.computer.resources.subscriptions.agents == frozenset()


@pytest.mark.rule("answers.resources.subscribers.query")
async def test_a_listed_query_or_one_of_another_scheme_is_kept_in_a_subscription(nats_url: str) -> None:
    listed, row = "dpe://h/d?version=2", "table://t?row=1"
    async with world(nats_url, one=configs.context("2026", content=[{"uri": listed}, {"uri": row}])) as here:
        alice = ResourceAgent(here)
        for uri in (listed, row):
            await alice.result("resources/subscribe", uri=uri)
        await downstream(here.computer, listed, row)
        for uri in (listed, row):
            await alice.result("resources/unsubscribe", uri=uri)
        assert here.computer.resources.subscriptions.agents == frozenset()


@pytest.mark.rule("computer.resources.computer.list_changed", "computer.resources.payload.list_changed")
async def test_each_changed_list_is_announced_with_its_server(nats_url: str) -> None:
    a, b = configs.context("2025", host="a", windows=1), configs.context("2026", host="b", windows=1)
    async with world(nats_url, a=a, b=b) as here:
        await ResourceAgent(here).uris()
        await eventually(lambda: here.computer.outbox.held() == {"pending": 0})
        here.heard.clear()
        for number in range(3):
            await here.tell("a", "put", uri=f"note://{number}")
        await eventually(lambda: here.told("resources_list_changed"))
        assert here.told("resources_list_changed")[0] == {
            "roomId": OFFICE, "computerId": NAME, "serverId": "a",
            "payload": {"jsonrpc": "2.0", "method": "notifications/resources/list_changed"},
        }  # fmt: skip
        await here.tell("b", "tell_list")  # its templates may be others
        await eventually(lambda: any(each["serverId"] == "b" for each in here.told("resources_list_changed")))


async def test_a_request_without_an_agent_name_counts_for_the_offices_agent(nats_url: str) -> None:
    async with world(nats_url, one=configs.context("2025", content=NOTES)) as here:
        nameless = ResourceAgent(here, None)
        await nameless.result("resources/subscribe", uri="note://1")
        await here.tell("one", "update", uri="note://1")
        await eventually(lambda: here.told("resources_updated"))
        assert "agent" not in here.told("resources_updated")[0]
        await leave(here, "another", epoch=3)
        await downstream(here.computer)


async def leave(here: World, agent: str, *, epoch: int) -> None:
    """Notify the office that an Agent left."""
    body = json.dumps({"office_id": OFFICE, "agent": agent}).encode()
    await here.agent.publish(subjects.notify(OFFICE, "leave_office"), body, headers={EPOCH: str(epoch)})


@pytest.mark.rule("answers.resources.subscribers.native")
async def test_only_its_own_leave_ends_an_agents_subscriptions(nats_url: str) -> None:
    async with world(nats_url, one=configs.context("2025", content=NOTES)) as here:
        alice, bob = ResourceAgent(here), ResourceAgent(here, "bob")
        for agent in (alice, bob):
            await agent.result("resources/subscribe", uri="note://1")
        await bob.result("resources/subscribe", uri="note://2")
        computer_left = json.dumps({"office_id": OFFICE, "computer": "bob"}).encode()
        await here.agent.publish(subjects.notify(OFFICE, "leave_office"), computer_left, headers={EPOCH: "100"})
        await here.agent.publish(subjects.notify(OFFICE, "leave_office"), b"no json", headers={EPOCH: "101"})
        await leave(here, "bob", epoch=200)
        await downstream(here.computer, "note://1")


@pytest.mark.rule("answers.resources.subscribers.dropped")
async def test_a_late_leave_notification_makes_the_returned_agent_subscribe_again(nats_url: str) -> None:
    async with world(nats_url, one=configs.context("2026", content=NOTES)) as here:
        await ResourceAgent(here).result("resources/subscribe", uri="note://1")
        await leave(here, "alice", epoch=30)
        await eventually(lambda: any(each.get(MISSED) for each in here.told("resources_list_changed")))
        await downstream(here.computer)


async def cut_off(line: Line, here: Computer) -> None:
    """The Computer hears nothing of NATS any more, until the line leads somewhere."""
    line.port = 1  # nobody is there
    line.cut()
    await eventually(lambda: here.membership.problem is not None, timeout=30)


@pytest.mark.rule("answers.resources.subscribers.dropped", "answers.resources.subscribers.membership")
async def test_a_new_agent_gets_no_updates_for_its_predecessors_subscriptions(
    nats_url: str,
) -> None:
    port = int(nats_url.rpartition(":")[2])
    async with (
        gateway_world(nats_url) as both,
        open_line(port) as line,
        computer(line.to(nats_url), {"one": configs.context("2026", content=NOTES)}) as here,
        connected(both.url) as first,
        connected(both.url) as second,
    ):
        assert await first.join("agent", "anna", OFFICE) == [True, None]
        for uri in ("note://1", "note://2"):
            await asked(first, "subscribe", uri)
        await cut_off(line, here)
        await tell(here, "update", uri="note://1")
        assert await first.call("server:leave_office", {"office_id": OFFICE}) == [True, None]
        assert await second.join("agent", "anna", OFFICE) == [True, None]
        line.port = port
        await eventually(
            lambda: any(each.get(MISSED) is True for each in second.told("notify:resources/list_changed")), timeout=30
        )
        await asked(second, "subscribe", "note://end")
        await downstream(here, "note://end")
        for uri in ("note://1", "note://end"):
            await tell(here, "update", uri=uri)
        await eventually(lambda: updated(second), timeout=30)
        assert updated(second) == ["note://end"]


@pytest.mark.rule("answers.resources.subscribers.native")
async def test_subscriptions_end_with_the_computers_own_membership(nats_url: str) -> None:
    servers = {"one": configs.context("2025", content=NOTES)}
    async with world(nats_url, **servers) as here, open_bus(BusConfig(url=nats_url)) as bus:
        alice = ResourceAgent(here)
        await alice.result("resources/subscribe", uri="note://1")
        store = await open_store(bus, bus.jetstream(), lease_s=10.0, replicas=1)
        member = await read_member(store.members, record_key(OFFICE, "computer", NAME))
        assert member is not None
        assert member.record is not None
        gone = tombstone(member.record)
        await write_member(store.members, record_key(OFFICE, "computer", NAME), gone, last=member.revision)
        await downstream(here.computer)
        await eventually(lambda: here.computer.membership.problem is None)
        await alice.result("resources/subscribe", uri="note://1")
        await downstream(here.computer, "note://1")


NOTES: list[dict[str, Any]] = [
    {"uri": "note://1", "resource": {"title": "One"}},
    {"uri": "note://2"},
    {"uri": "note://end"},
]


async def tell(here: Computer, tool: str, **arguments: Any) -> Any:
    """What a tool of the context server `one` gives."""
    result = await here.fleet.supervisors["one"].call(tool, arguments, timeout=30)
    assert not result.get("isError"), result
    return json.loads(result["content"][0]["text"])


async def asked(client: Client, verb: str, uri: str, **more: Any) -> Any:
    payload = {"jsonrpc": "2.0", "id": 1, "method": f"resources/{verb}", "params": {"uri": uri}}
    envelope = {"roomId": OFFICE, "computerId": NAME, "agent": "anna", "payload": payload, **more}
    answer = await client.call(f"client:resources/{verb}", envelope, timeout=30)
    assert answer.get("payload", {}).get("result") == {}, answer
    return answer


def updated(client: Client) -> list[str]:
    return [told["payload"]["params"]["uri"] for told in client.told("notify:resources/updated")]


async def downstream(here: Computer, *uris: str) -> None:
    """Wait until the server has exactly these subscriptions."""

    async def subscribed() -> bool:
        return bool(await tell(here, "subscribed") == list(uris))

    await eventually(subscribed, timeout=30)
