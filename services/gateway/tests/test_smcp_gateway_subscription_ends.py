"""How long a subscription to a resource of a Computer on Socket.IO lasts: as long as both are members."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from smcp_bus import subjects
from smcp_bus.bus import Incoming, Reply, RequestHandler
from smcp_bus.dispatch import failed
from smcp_bus.headers import ERROR, NOT_RUN
from smcp_bus.subjects import to_reply
from smcp_proto.errors import Unavailable
from smcp_proto.schemas.resources import MISSED
from smcp_testing.gateway_world import Client, World, connected, gateway_world, reply
from smcp_testing.granting_computer import BOX, OFFICE, URI, Granting, ask, heard, scene
from smcp_testing.interposed_buses import InterposedBuses, as_it_is
from smcp_testing.leaving_gateway import gone, in_time, two_gateways
from smcp_testing.tcp_proxy import Line, open_line
from smcp_testing.waiting import eventually

PATIENCE_S = 40.0
"""For an answer of which NATS was not there: a gateway asks the registries for 10 s, and for the list of an office for
10 s more, before it says that it cannot."""


@pytest.mark.rule("answers.resources.subscribers.membership")
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


async def test_a_subscription_that_waits_for_its_owner_is_not_delivered_after_its_agent_has_left(nats_url: str) -> None:
    asked, ready = asyncio.Event(), False

    async def gated(verb: str, incoming: Incoming) -> Reply:
        asked.set()
        return reply({}) if ready else Reply(b'{"code":503,"message":"retry"}', {ERROR: "503", NOT_RUN: "1"})

    async with (
        gateway_world(nats_url) as world,
        world.computer(OFFICE, BOX, gated),
        connected(world.url) as anna,
        connected(world.url) as again,
    ):
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        subscribing = asyncio.create_task(ask(anna))
        await asyncio.wait_for(asked.wait(), 30)
        assert await anna.call("server:leave_office", {"office_id": OFFICE}) == [True, None]
        assert await again.join("agent", "anna", OFFICE) == [True, None]
        ready = True
        assert (await subscribing)["code"] == 4103


async def test_no_subscription_is_kept_when_agent_or_computer_disconnects(nats_url: str) -> None:
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


async def test_updates_that_waited_when_the_agent_left_do_not_reach_the_next_agent(nats_url: str) -> None:
    buses, tried, answering = InterposedBuses(), asyncio.Event(), asyncio.Event()

    async def between(incoming: Incoming, handler: RequestHandler) -> Reply:
        if subjects.verb_of(incoming.subject) == "resources_updated" and b"other" in incoming.body:
            tried.set()
            await answering.wait()
            return to_reply(failed(Unavailable("no store").body()))
        return await handler(incoming)

    buses.between = between
    async with scene(nats_url, bad=buses) as (world, anna, box):
        await ask(anna)
        await ask(anna, uri="file:///other")
        assert await box.updated() is None
        assert await box.updated("file:///other") is None  # it waits, since it comes closely
        await tried.wait()
        assert await anna.call("server:leave_office", {"office_id": OFFICE}) == [True, None]
        await eventually(lambda: box.client.told("notify:leave_office"))
        buses.between = as_it_is
        answering.set()
        async with connected(world.gateways[0].url) as again:
            assert await again.join("agent", "anna", OFFICE) == [True, None]
            assert await box.updated() is None
            assert await heard(again, box) == []
            await ask(again)
            assert await box.updated() is None
            assert await heard(again, box) == [URI]


@pytest.mark.rule("answers.resources.subscribers.dropped")
async def test_a_late_leave_notification_makes_the_returned_agent_subscribe_again(nats_url: str) -> None:
    async with scene(nats_url) as (world, anna, box):
        await ask(anna)
        world.gateways[1].computers.agent_left(OFFICE, "anna", lambda: True)
        await eventually(lambda: missed(anna))
        await box.updated()
        assert await heard(anna, box) == []
        await ask(anna)
        await box.updated()
        assert await heard(anna, box) == [URI]


def missed(agent: Client) -> list[Any]:
    """The notifications that asked the Agent to subscribe again."""
    return [each for each in agent.told("notify:resources/list_changed") if each.get(MISSED) is True]


@pytest.mark.rule("answers.resources.subscribers.moves")
async def test_the_agents_move_to_another_gateway_ends_no_subscription(nats_url: str) -> None:
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


@pytest.mark.rule("answers.resources.subscribers.dropped")
async def test_after_the_computers_move_the_agent_is_told_to_subscribe_again(nats_url: str) -> None:
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
            await eventually(lambda: missed(anna))
            await box.updated()
            assert await heard(anna, box) == []
            await ask(anna)
            await box.updated()
            assert await heard(anna, box) == [URI]
            assert anna.told("notify:leave_office") == []


@pytest.mark.rule("answers.resources.subscribers.computer")
async def test_subscriptions_do_not_survive_a_leave_of_the_computer(nats_url: str) -> None:
    async with scene(nats_url) as (_, anna, box):
        await ask(anna)
        assert await box.client.call("server:leave_office", {"office_id": OFFICE}) == [True, None]
        assert await box.client.join("computer", BOX, OFFICE) == [True, None]
        await box.updated()
        assert await heard(anna, box) == []


@pytest.mark.rule("answers.resources.subscribers.computer")
async def test_subscriptions_do_not_survive_an_office_switch_of_the_computer(nats_url: str) -> None:
    other = "another office"
    async with scene(nats_url) as (world, anna, box), connected(world.gateways[0].url) as bert:
        assert await bert.join("agent", "bert", other) == [True, None]
        await ask(anna)
        assert await box.client.join("computer", BOX, other) == [True, None]
        await box.updated(roomId=other)
        assert await heard(bert, box) == []
        assert await box.client.join("computer", BOX, OFFICE) == [True, None]
        await box.updated()
        assert await heard(anna, box) == []
        await ask(anna)
        await box.updated()
        assert await heard(anna, box) == [URI]


@asynccontextmanager
async def computer_on_a_line(nats_url: str) -> AsyncIterator[tuple[World, Line, Granting]]:
    """A Computer on a gateway of its own, which reaches NATS by that line."""
    async with (
        open_line(int(nats_url.rpartition(":")[2])) as line,
        gateway_world(line.to(nats_url), registry=False) as far,
        connected(far.url) as client,
    ):
        assert await client.join("computer", BOX, OFFICE) == [True, None]
        yield far, line, Granting(client)


async def cut_off(line: Line, far: World) -> int:
    """The Computer's gateway hears nothing of NATS any more; returns how the line led there."""
    port, line.port = line.port, 1  # nobody is there
    line.cut()
    await eventually(lambda: not far.buses[0].connected)
    return port


@pytest.mark.rule("answers.resources.subscribers.dropped", "answers.resources.subscribers.membership")
async def test_after_a_break_of_the_owners_connection_the_agent_is_told_to_subscribe_again(
    nats_url: str,
) -> None:
    async with (
        gateway_world(nats_url) as world,
        computer_on_a_line(nats_url) as (far, line, box),
        connected(world.url) as first,
        connected(world.url) as second,
    ):
        assert await first.join("agent", "anna", OFFICE) == [True, None]
        await ask(first)
        port = await cut_off(line, far)
        assert await first.call("server:leave_office", {"office_id": OFFICE}) == [True, None]
        assert await second.join("agent", "anna", OFFICE) == [True, None]
        line.port = port
        await eventually(lambda: missed(second), timeout=PATIENCE_S)
        assert far.gateways[0].computers.subscribed == 0
        await ask(second, uri="file:///2")
        await box.updated()
        await box.updated("file:///2")
        assert await heard(second, box) == ["file:///2"]
