"""How long a subscription to a resource of a Computer on Socket.IO lasts: as long as both are members."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from smcp_bus import subjects
from smcp_bus.bus import Incoming, Reply, RequestHandler
from smcp_bus.dispatch import failed, to_reply
from smcp_proto.errors import Unavailable
from smcp_testing.gateway_world import World, connected, gateway_world
from smcp_testing.granting_computer import BOX, OFFICE, UPDATED, URI, Granting, ask, heard, scene, updated
from smcp_testing.interposed_buses import InterposedBuses, as_it_is
from smcp_testing.leaving_gateway import gone, in_time, two_gateways
from smcp_testing.line import Line, open_line
from smcp_testing.nats_process import NatsServer
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


async def test_what_no_registry_could_tell_before_the_agent_left_is_not_told_to_who_comes_next(nats_url: str) -> None:
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


@pytest.mark.rule("answers.resources.subscribers.membership")
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


@pytest.mark.rule("answers.resources.subscribers.moves")
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


@pytest.mark.rule("answers.resources.subscribers.moves")
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


@pytest.mark.rule("answers.resources.subscribers.computer")
async def test_a_computer_that_left_and_came_back_is_subscribed_to_anew(nats_url: str) -> None:
    async with scene(nats_url) as (_, anna, box):
        await ask(anna)
        assert await box.client.call("server:leave_office", {"office_id": OFFICE}) == [True, None]
        assert await box.client.join("computer", BOX, OFFICE) == [True, None]
        await box.updated()
        assert await heard(anna, box) == []


@pytest.mark.rule("answers.resources.subscribers.computer")
async def test_a_computer_that_switches_offices_leaves_behind_what_was_subscribed(nats_url: str) -> None:
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
            back = await box.client.call("server:update_config", {"computer": BOX}, timeout=PATIENCE_S) is None
            return back and await box.client.call(UPDATED, updated(), timeout=PATIENCE_S) is None

        async def heard_of() -> bool:
            """What is published before the Agent's gateway is subscribed again, nobody hears: it is said again."""
            return await said() and bool(anna.told(UPDATED))

        await outage()
        await nats_server.start()
        await eventually(heard_of, timeout=PATIENCE_S)
        assert anna.told(UPDATED)[0] == updated() | {"agent": "anna"}
        await outage()
        await anna.sio.disconnect()
        await nats_server.start()
        await eventually(lambda: box.client.told("notify:leave_office"), timeout=PATIENCE_S)
        async with connected(world.gateways[0].url) as again:

            async def joined() -> bool:
                asked = {"role": "agent", "name": "anna", "office_id": OFFICE}
                return (await again.call("server:join_office", asked, timeout=PATIENCE_S))[0] is True

            await eventually(joined, timeout=PATIENCE_S)
            await eventually(said, timeout=PATIENCE_S)
            assert await heard(again, box) == []


@asynccontextmanager
async def computer_on_a_line(nats_url: str) -> AsyncIterator[tuple[World, Line, Granting]]:
    """A Computer on a gateway of its own, which reaches NATS by that line."""
    async with (
        open_line(int(nats_url.rpartition(":")[2])) as line,
        gateway_world(line.url.replace("http", "nats"), registry=False) as far,
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


async def compared(far: World) -> None:
    """The gateway is back, and knows who is in the office now."""
    office = far.gateways[0].offices.get(OFFICE)
    assert office is not None
    await eventually(lambda: office.compared > 0, timeout=PATIENCE_S)


@pytest.mark.rule("answers.resources.subscribers.membership")
async def test_an_agent_that_came_unheard_in_anothers_place_has_none_of_its_subscriptions(nats_url: str) -> None:
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
        await compared(far)
        assert far.gateways[0].computers.subscribed == 0
        await ask(second, uri="file:///2")
        await box.updated()
        await box.updated("file:///2")
        assert await heard(second, box) == ["file:///2"]


@pytest.mark.rule("answers.resources.subscribers.moves")
async def test_an_agent_that_moved_unheard_keeps_its_subscriptions(nats_url: str) -> None:
    async with (
        two_gateways(nats_url) as (staying, leaving, leave),
        computer_on_a_line(nats_url) as (far, line, box),
        connected(leaving.url) as anna,
    ):
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        await ask(anna)
        port = await cut_off(line, far)
        left = leave()
        await gone(anna)
        await in_time(left)
        async with connected(staying.url) as again:
            assert await again.join("agent", "anna", OFFICE) == [True, None]
            line.port = port
            await compared(far)
            await box.updated("file:///other")
            await box.updated()
            assert await heard(again, box) == [URI]
