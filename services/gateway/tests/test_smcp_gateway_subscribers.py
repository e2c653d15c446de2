"""Subscriptions to resources of a Computer on Socket.IO: its gateway tells those who subscribed, and nobody else."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson
import pytest

from smcp_bus import subjects
from smcp_bus.bus import Incoming, Reply
from smcp_gateway import subscriptions
from smcp_testing.gateway_world import NAMESPACE, Client, World, connected, gateway_world, reply
from smcp_testing.leaving_gateway import gone, in_time, two_gateways
from smcp_testing.nats_process import NatsServer
from smcp_testing.waiting import eventually

OFFICE, BOX, URI = "办公室 1", "盒子.*", "file:///深"
SUBSCRIBE, UNSUBSCRIBE = "client:resources/subscribe", "client:resources/unsubscribe"
UPDATED = "notify:resources/updated"


@dataclass
class Granting:
    """A Computer's client that grants every subscription but those to `refused`; `asked` is what it was asked."""

    client: Client
    asked: list[dict[str, Any]] = field(default_factory=list)
    refused: str = "file:///refused"

    def __post_init__(self) -> None:
        for event in (SUBSCRIBE, UNSUBSCRIBE):
            self.client.sio.on(event, self._answer, namespace=NAMESPACE)

    async def updated(self, uri: str = URI, **envelope: Any) -> Any:
        return await self.client.call(UPDATED, updated(uri) | envelope)

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(request)
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": request["payload"]["id"]}
        if request["payload"]["params"]["uri"] == self.refused:
            answer["error"] = {
                "code": -32601,
                "message": "no",
                "data": {"smcp_code": "SMCP_SUBSCRIPTION_NOT_SUPPORTED"},
            }
        else:
            answer["result"] = {}
        return request | {"payload": answer}


def updated(uri: str = URI) -> dict[str, Any]:
    payload = {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri, "title": "t"}}
    return {"roomId": OFFICE, "computerId": BOX, "payload": payload}


def asking(event: str, uri: str = URI, **envelope: Any) -> dict[str, Any]:
    payload = {"jsonrpc": "2.0", "id": 7, "method": event.partition(":")[2], "params": {"uri": uri}}
    return {"roomId": OFFICE, "computerId": BOX, "payload": payload, **envelope}


async def ask(agent: Client, /, event: str = SUBSCRIBE, uri: str = URI, **envelope: Any) -> Any:
    return await agent.call(event, asking(event, uri, **envelope))


async def heard(agent: Client, box: Granting) -> list[str]:
    """URIs of the updates that the Agent was told of since it was last asked; another notice comes behind them."""
    before = len(agent.told("notify:update_config"))
    assert await box.client.call("server:update_config", {"computer": BOX}) is None
    await eventually(lambda: len(agent.told("notify:update_config")) > before)
    told = agent.told(UPDATED)
    assert all(payload.get("agent", "anna") == "anna" for payload in told)
    agent.events[:] = [event for event in agent.events if event[0] != UPDATED]
    return [payload["payload"]["params"]["uri"] for payload in told]


@asynccontextmanager
async def scene(nats_url: str, **options: Any) -> AsyncIterator[tuple[World, Client, Granting]]:
    """The Agent is on the first gateway, its Computer on the second."""
    async with (
        gateway_world(nats_url, gateways=2, **options) as world,
        connected(world.gateways[0].url) as anna,
        connected(world.gateways[1].url) as client,
    ):
        assert await client.join("computer", BOX, OFFICE) == [True, None]
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        await eventually(lambda: client.told("notify:enter_office"))
        yield world, anna, Granting(client)


async def test_an_update_is_told_to_who_subscribed_by_its_name_and_what_nobody_wanted_is_dropped(nats_url: str) -> None:
    async with scene(nats_url) as (_, anna, box):
        assert await box.updated() is None
        assert await heard(anna, box) == []
        answer = await ask(anna, req_id="r1", unknown=[1])
        assert answer["payload"] == {"jsonrpc": "2.0", "id": 7, "result": {}}
        assert box.asked == [asking(SUBSCRIBE, req_id="r1", unknown=[1], agent="anna")]
        assert await box.updated(more={"x": 1}) is None
        assert await box.updated("file:///other") is None
        await eventually(lambda: anna.told(UPDATED))
        assert anna.told(UPDATED) == [updated() | {"agent": "anna", "more": {"x": 1}}]
        assert await heard(anna, box) == [URI]
        assert await box.updated(agent="bert") is None
        assert await heard(anna, box) == []
        assert await box.updated(agent="anna") is None
        assert await heard(anna, box) == [URI]


async def test_where_a_gateway_does_not_say_who_subscribes_nothing_is_lost(nats_url: str) -> None:
    async with scene(nats_url) as (world, anna, box):
        request = orjson.dumps(asking(SUBSCRIBE))
        answer = await world.buses[0].request(subjects.client(OFFICE, BOX, "resources_subscribe"), request, timeout=10)
        assert orjson.loads(answer.body)["payload"]["result"] == {}
        await box.updated()
        await eventually(lambda: anna.told(UPDATED))
        assert anna.told(UPDATED) == [updated()]


async def test_unsubscribing_ends_it(nats_url: str) -> None:
    async with scene(nats_url) as (_, anna, box):
        await ask(anna)
        await ask(anna, uri="file:///2")
        assert (await ask(anna, UNSUBSCRIBE))["payload"]["result"] == {}
        for uri in (URI, "file:///2"):
            await box.updated(uri)
        assert await heard(anna, box) == ["file:///2"]


async def test_what_the_computer_refused_is_not_subscribed_and_its_error_comes_whole(nats_url: str) -> None:
    async with scene(nats_url) as (_, anna, box):
        answer = await ask(anna, uri=box.refused)
        assert answer["payload"]["error"]["data"] == {"smcp_code": "SMCP_SUBSCRIPTION_NOT_SUPPORTED"}
        await box.updated(box.refused)
        assert await heard(anna, box) == []
        await ask(anna)
        box.refused = URI
        assert "error" in (await ask(anna, UNSUBSCRIBE))["payload"]
        await box.updated()
        assert await heard(anna, box) == [URI]


async def test_a_subscription_ends_with_the_agents_membership(nats_url: str) -> None:
    async with scene(nats_url) as (world, anna, box):
        await ask(anna)
        assert await anna.call("server:leave_office", {"office_id": OFFICE}) == [True, None]
        await eventually(lambda: box.client.told("notify:leave_office"))
        async with connected(world.gateways[1].url) as again:
            assert await again.join("agent", "anna", OFFICE) == [True, None]
            await box.updated()
            assert await heard(again, box) == []
            await ask(again)
            await box.updated()
            assert await heard(again, box) == [URI]
        await eventually(lambda: len(box.client.told("notify:leave_office")) == 2)
        async with connected(world.gateways[0].url) as bert:
            assert await bert.join("agent", "bert", OFFICE) == [True, None]
            await box.updated()
            assert await heard(bert, box) == []


async def test_nothing_is_kept_of_who_vanished_whichever_of_both(nats_url: str) -> None:
    async with scene(nats_url) as (world, anna, box):
        owner = world.gateways[1].computers
        for number in range(20):
            await ask(anna, uri=f"file:///{number}")
        await ask(anna, uri=box.refused)
        assert owner.subscribed == 20
        await anna.sio.eio.ws.close()
        await eventually(lambda: owner.subscribed == 0)
        async with connected(world.gateways[0].url) as again:
            assert await again.join("agent", "anna", OFFICE) == [True, None]
            await ask(again)
            assert owner.subscribed == 1
            await box.client.sio.disconnect()
            await eventually(lambda: len(owner) == 0)
            assert owner.subscribed == 0


async def test_a_leave_that_is_heard_late_does_not_end_what_was_subscribed_after_it(nats_url: str) -> None:
    async with scene(nats_url) as (world, anna, box):
        office = world.gateways[1].offices.get(OFFICE)
        assert office is not None
        late: list[Incoming] = []

        async def keep(incoming: Incoming) -> None:
            late.append(incoming)

        async with world.bus("listener") as bus:
            await bus.listen("smcp.v1.*.notify.leave_office", keep)
            assert await anna.call("server:leave_office", {"office_id": OFFICE}) == [True, None]
            assert await anna.join("agent", "anna", OFFICE) == [True, None]
            await ask(anna)
            await eventually(lambda: late)
        await eventually(lambda: len(box.client.told("notify:enter_office")) == 2)
        await office.hear(late[0])
        await box.updated()
        assert await heard(anna, box) == [URI]


async def test_the_agents_move_to_another_gateway_ends_nothing(nats_url: str) -> None:
    async with (
        two_gateways(nats_url) as (staying, leaving, leave),
        connected(leaving.url) as anna,
        connected(staying.url) as client,
    ):
        box = Granting(client)
        assert await client.join("computer", BOX, OFFICE) == [True, None]
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        await ask(anna)
        left = leave()
        await gone(anna)
        await in_time(left)
        async with connected(staying.url) as again:
            assert await again.join("agent", "anna", OFFICE) == [True, None]
            await box.updated("file:///other")
            await box.updated()
            assert await heard(again, box) == [URI]
        assert client.told("notify:leave_office") in ([], [{"office_id": OFFICE, "agent": "anna"}])


async def test_after_the_computers_move_nothing_is_lost_until_its_agent_leaves(nats_url: str) -> None:
    async with (
        two_gateways(nats_url) as (staying, leaving, leave),
        connected(staying.url) as anna,
        connected(leaving.url) as client,
    ):
        Granting(client)
        assert await client.join("computer", BOX, OFFICE) == [True, None]
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        await ask(anna)
        left = leave()
        await gone(client)
        await in_time(left)
        async with connected(staying.url) as moved:
            box = Granting(moved)
            assert await moved.join("computer", BOX, OFFICE) == [True, None]
            await box.updated()
            await eventually(lambda: anna.told(UPDATED))
            assert anna.told(UPDATED) == [updated()]  # it is not known who subscribed, so nobody is named
            await ask(anna, uri="file:///2")
            await box.updated()
            await box.updated("file:///2")
            assert await heard(anna, box) == [URI, URI, "file:///2"]
            assert anna.told("notify:leave_office") == []
            assert await anna.call("server:leave_office", {"office_id": OFFICE}) == [True, None]
            await eventually(lambda: moved.told("notify:leave_office"))
            assert await anna.join("agent", "anna", OFFICE) == [True, None]
            await box.updated()
            assert await heard(anna, box) == []


async def test_a_computer_that_left_and_came_back_is_subscribed_to_anew(nats_url: str) -> None:
    async with scene(nats_url) as (_, anna, box):
        await ask(anna)
        assert await box.client.call("server:leave_office", {"office_id": OFFICE}) == [True, None]
        assert await box.client.join("computer", BOX, OFFICE) == [True, None]
        await box.updated()
        assert await heard(anna, box) == []


async def test_an_outage_of_nats_ends_what_was_subscribed_by_an_agent_that_left_meanwhile_alone(
    nats_server: NatsServer,
) -> None:
    async with scene(nats_server.url) as (world, anna, box):
        await ask(anna)

        async def outage() -> None:
            await nats_server.stop()
            await eventually(lambda: not any(bus.connected for bus in world.buses))

        async def said() -> bool:
            """What nobody subscribed to is dropped at once: the other notice shows that the registry is there."""
            back = await box.client.call("server:update_config", {"computer": BOX}) is None
            return back and await box.updated() is None

        await outage()
        await nats_server.start()
        await eventually(said, timeout=20)
        await eventually(lambda: anna.told(UPDATED), timeout=20)
        assert anna.told(UPDATED)[0] == updated() | {"agent": "anna"}
        await outage()
        await anna.sio.disconnect()
        await nats_server.start()
        await eventually(lambda: box.client.told("notify:leave_office"), timeout=20)
        async with connected(world.gateways[0].url) as again:

            async def joined() -> bool:
                return (await again.join("agent", "anna", OFFICE))[0] is True

            await eventually(joined, timeout=20)
            await eventually(said, timeout=20)
            assert await heard(again, box) == []


async def test_an_update_of_a_native_computer_that_names_an_agent_is_told_to_that_agent_only(nats_url: str) -> None:
    async def silent(verb: str, _: Incoming) -> Reply:
        return reply({"verb": verb})

    async with scene(nats_url) as (world, anna, box), world.computer(OFFICE, "tiny", silent) as tiny:
        for named in ({"agent": "bert"}, {"agent": "anna"}, {}):
            said = orjson.dumps(updated() | {"computerId": "tiny"} | named)
            await tiny.registry.tell(OFFICE, "computer", "tiny", "resources_updated", said)
        await eventually(lambda: len(anna.told(UPDATED)) == 2)
        assert [told.get("agent") for told in anna.told(UPDATED)] == ["anna", None]
        assert await heard(anna, box) == [URI, URI]


async def test_an_agent_that_subscribes_to_too_much_is_told_so_and_its_computer_is_not_asked(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = partial(subscriptions.Subscriptions, most=5)
    monkeypatch.setattr("smcp_gateway.owned_computer.Subscriptions", table)
    async with scene(nats_url) as (_, anna, box):
        for number in range(5):
            assert "result" in (await ask(anna, uri=f"file:///{number}"))["payload"]
        refused = await ask(anna, uri="file:///5")
        assert refused["code"] == 429
        assert refused["details"] == {"smcp_code": "SMCP_RATE_LIMITED", "limit": 5}
        assert len(box.asked) == 5
        await ask(anna, UNSUBSCRIBE, uri="file:///0")
        assert "result" in (await ask(anna, uri="file:///5"))["payload"]


async def test_who_speaks_for_another_agent_or_names_another_office_subscribes_to_nothing(nats_url: str) -> None:
    async with scene(nats_url) as (_, anna, box):
        for event in (SUBSCRIBE, UNSUBSCRIBE):
            for field_, forged in (("agent", "bert"), ("roomId", "other")):
                refused = await ask(anna, event, **{field_: forged})
                assert (refused["code"], refused["details"]) == (403, {"field": field_})
            unknown = await ask(anna, event, computerId="nobody")
            assert (unknown["code"], unknown["details"]) == (404, {"computer": "nobody"})
        assert box.asked == []
