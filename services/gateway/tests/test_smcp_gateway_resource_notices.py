"""`notify:resources/*` from a Computer goes to its office's Agent, and to no other client.

Subscriptions and their updates are in `test_smcp_gateway_subscribers.py`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
import pytest

from smcp_agent import Event, ResourcesChanged, SmcpAgent
from smcp_bus.bus import Incoming, Reply
from smcp_proto.errors import Malformed, NotAllowed
from smcp_testing.computer_world import native_computer
from smcp_testing.gateway_world import NAMESPACE, Client, World, connected, gateway_world, reply
from smcp_testing.waiting import eventually

HERE, THERE = "办公室 1", "other"
BOX = "盒子.*"
LIST, UPDATED = "notify:resources/list_changed", "notify:resources/updated"
METHODS = {LIST: "notifications/resources/list_changed", UPDATED: "notifications/resources/updated"}


def said(event: str, *, params: Any = None, **changes: Any) -> dict[str, Any]:
    """What the Computer says; `changes` are of the envelope."""
    if params is None and event == UPDATED:
        params = {"uri": "file:///深", "title": "t"}
    payload = {"jsonrpc": "2.0", "method": METHODS[event]} | ({} if params is None else {"params": params})
    return {"roomId": HERE, "computerId": BOX, "serverId": "files", "payload": payload} | changes


def heard(event: str, payload: dict[str, Any]) -> dict[str, Any]:
    """The notification for the Agent: an update names the subscriber."""
    return payload | {"agent": "anna"} if event == UPDATED else payload


async def subscribe(anna: Client, *uris: str) -> None:
    """The Computer grants whatever it is asked for."""
    for uri in uris:
        payload = {"jsonrpc": "2.0", "id": uri, "method": "resources/subscribe", "params": {"uri": uri}}
        request = {"roomId": HERE, "computerId": BOX, "payload": payload, "unknown": 2**70 + 1}
        assert (await anna.call("client:resources/subscribe", request))["payload"]["result"] == {}


async def grant(request: dict[str, Any]) -> dict[str, Any]:
    return request | {"payload": {"jsonrpc": "2.0", "id": request["payload"]["id"], "result": {}}}


def text(event: tuple[str, Any]) -> bytes:
    return orjson.dumps(event, option=orjson.OPT_SORT_KEYS)


def _contains(events: list[Event], event: Event) -> bool:
    return event in events


@dataclass
class Scene:
    """Two gateways: the Agent and a room mate on the first, the Computer on the second; an Agent elsewhere on both."""

    world: World
    anna: Client
    box: Client
    mate: Client
    foreign: Client

    async def told(self) -> list[tuple[str, Any]]:
        """Of resources, to the office's Agent; no other client received any. Another notification comes last."""
        assert await self.box.call("server:update_config", {"computer": BOX}) is None
        for client in (self.anna, self.mate):
            await eventually(partial(client.told, "notify:update_config"))
        assert self.mate.events == [("notify:update_config", {"computer": BOX})]
        assert self.box.events == self.foreign.events == []
        told = self.anna.events[:-1]
        self.anna.events.clear()
        self.mate.events.clear()
        return told


@asynccontextmanager
async def opened(nats_url: str) -> AsyncIterator[Scene]:
    async with (
        gateway_world(nats_url, gateways=2, lease_s=10.0) as world,
        connected(world.gateways[0].url) as anna,
        connected(world.gateways[0].url) as mate,
        connected(world.gateways[1].url) as box,
        connected(world.gateways[1].url) as foreign,
    ):
        assert await foreign.join("agent", "otto", THERE) == [True, None]
        assert await anna.join("agent", "anna", HERE) == [True, None]
        assert await mate.join("computer", "mate", HERE) == [True, None]
        box.sio.on("client:resources/subscribe", grant, namespace=NAMESPACE)
        assert await box.join("computer", BOX, HERE) == [True, None]
        await eventually(lambda: anna.told("notify:enter_office")[1:] and mate.told("notify:enter_office"))
        await subscribe(anna, "file:///深")
        anna.events.clear()
        mate.events.clear()
        yield Scene(world, anna, box, mate, foreign)


@pytest.mark.rule(
    "answers.who.{resources-notifications,resources-notifications.hearers}",
    "computer.resources.{server.list_changed,events.list_changed}",
)
async def test_resource_notifications_reach_only_the_offices_agent_unchanged(nats_url: str) -> None:
    async with opened(nats_url) as scene:
        for event in (LIST, UPDATED):
            for payload in (
                said(event),
                said(event, unknown={"深": [None, 1.5, 2**70 + 1]}),
                said(event, serverId=None),
            ):
                assert await scene.box.call(event, payload) is None
                assert await scene.told() == [(event, heard(event, payload))]
            await scene.box.sio.emit(
                event, said(event), namespace=NAMESPACE
            )  # and where no acknowledgement is asked for
            assert await scene.told() == [(event, heard(event, said(event)))]


@pytest.mark.rule("answers.who.resources-notifications")
async def test_notifications_of_a_computer_keep_their_order(nats_url: str) -> None:
    async with opened(nats_url) as scene:
        await subscribe(scene.anna, *(f"file:///{number}" for number in range(20)))
        told = []
        for number in range(20):
            for event, payload in (
                (UPDATED, said(UPDATED, params={"uri": f"file:///{number}"})),
                ("server:update_desktop", {"computer": BOX, "number": number}),
            ):
                await scene.box.sio.emit(event, payload, namespace=NAMESPACE)
                told.append(text((event.replace("server:", "notify:"), heard(event, payload))))

        await eventually(lambda: len(scene.anna.events) >= len(told))
        assert list(map(text, scene.anna.events)) == told


@pytest.mark.rule("answers.who.resources-notifications.hearers")
async def test_native_computers_get_no_resource_notifications_and_send_their_own(nats_url: str) -> None:
    async def silent(verb: str, _: Incoming) -> Reply:
        return reply({"verb": verb})

    async with (
        opened(nats_url) as scene,
        native_computer(scene.world, HERE, "native", {}),
        scene.world.computer(HERE, "tiny", silent) as tiny,
    ):
        await eventually(lambda: len(scene.anna.told("notify:enter_office")) == 2)
        await eventually(lambda: len(scene.mate.told("notify:enter_office")) == 2)
        await eventually(lambda: len(scene.box.told("notify:enter_office")) == 2)
        for client in (scene.anna, scene.mate, scene.box):
            client.events.clear()
        assert await scene.box.call(LIST, said(LIST)) is None
        assert await scene.told() == [(LIST, said(LIST))]
        asked = {"agent": "anna", "req_id": "1", "computer": "native"}
        assert await scene.anna.call("client:get_tools", asked) == {"tools": [], "req_id": "1"}
        for event in (LIST, UPDATED):
            verb, payload = event.partition(":")[2].replace("/", "_"), said(event, computerId="tiny")
            await tiny.registry.tell((HERE, "computer", "tiny"), verb, orjson.dumps(payload))
            assert await scene.told() == [(event, payload)]
            for forged, kind in (
                (payload | {"computerId": BOX}, NotAllowed),
                (payload | {"roomId": THERE}, NotAllowed),
                ({key: value for key, value in payload.items() if key != "computerId"}, Malformed),
                (payload | {"payload": {}}, Malformed),
            ):
                with pytest.raises(kind):
                    await tiny.registry.tell((HERE, "computer", "tiny"), verb, orjson.dumps(forged))
            assert await scene.told() == []


@pytest.mark.rule("answers.who.resources-notifications")
async def test_the_agent_sdk_passes_resource_notifications_to_its_application(nats_url: str) -> None:
    async with (
        gateway_world(nats_url, gateways=2, lease_s=10.0) as world,
        SmcpAgent(world.gateways[0].url, office=HERE, name="anna") as agent,
        connected(world.gateways[1].url) as box,
    ):
        events: list[Event] = []
        agent.on_event(events.append)
        assert await box.join("computer", BOX, HERE) == [True, None]
        assert await box.call(LIST, said(LIST)) is None
        await eventually(partial(_contains, events, ResourcesChanged(BOX, "files")))


@pytest.mark.rule("answers.who.resources-notifications.own")
@pytest.mark.parametrize("event", [LIST, UPDATED])
async def test_resource_notifications_of_agents_or_for_another_computer_are_refused(nats_url: str, event: str) -> None:
    async with opened(nats_url) as scene:

        async def refused(client: Client, payload: Any, code: int, field: str | None = None, say: str = event) -> None:
            answer = await client.call(say, payload)
            assert set(answer) == {"code", "message", "details"}, answer
            assert answer["code"] == code, answer
            assert field is None or answer["details"]["field"] == field, answer

        for client in (scene.anna, scene.foreign):
            await refused(client, said(event), 403)
            await refused(client, said(event, roomId=THERE), 403)
        await refused(scene.mate, said(event), 403, "computerId")
        await refused(scene.box, said(event, computerId="mate"), 403, "computerId")
        await refused(scene.box, said(event, computerId=f"{BOX}\u200b"), 403, "computerId")
        await refused(scene.box, said(event, roomId=THERE), 403, "roomId")
        whole = said(event)
        for field in ("computerId", "roomId", "payload"):
            await refused(scene.box, {key: value for key, value in whole.items() if key != field}, 400, field)
        for field, value in (
            ("computerId", 1), ("computerId", ""), ("roomId", None), ("roomId", "x" * 129), ("serverId", 1),
        ):  # fmt: skip
            await refused(scene.box, whole | {field: value}, 400, field)
        payloads: tuple[Any, ...] = (None, [], {}, {"jsonrpc": "1.0"}, {"method": METHODS[event], "jsonrpc": 2})
        for payload in payloads:
            await refused(scene.box, said(event, payload=payload), 400)
        other = LIST if event == UPDATED else UPDATED
        await refused(scene.box, said(event, payload=said(other)["payload"]), 400, "payload.method")
        if event == UPDATED:
            several: tuple[Any, ...] = ({}, {"uri": 1}, {"uri": ""}, {"uri": "x" * 9000}, [], "x")
            for params in several:
                await refused(scene.box, said(event, params=params), 400)
        await refused(scene.box, said(event, more="x" * 70_000), 413)
        await refused(scene.box, "text", 400)
        await refused(scene.box, said(event), 400, say=event.replace("notify:", "server:"))  # native Computers' own
        assert await scene.told() == []


@pytest.mark.rule("answers.who.resources-notifications.own")
async def test_resource_notifications_without_an_office_are_refused(nats_url: str) -> None:
    async with opened(nats_url) as scene, connected(scene.world.url) as nobody:
        for event in (LIST, UPDATED):
            assert (await nobody.call(event, said(event)))["code"] == 4103
        assert await scene.mate.call("server:leave_office", {"office_id": HERE}) == [True, None]
        for event in (LIST, UPDATED):
            assert (await scene.mate.call(event, said(event, computerId="mate")))["code"] == 4103
        await eventually(lambda: scene.box.told("notify:leave_office") and scene.anna.told("notify:leave_office"))
        assert [event for event, _ in scene.anna.events] == ["notify:leave_office"]
