"""What Agents subscribed to on a native Computer ends with their membership, and with the Computer's own."""

import asyncio
import json

import pytest

from smcp_bus import subjects
from smcp_bus.bus import Incoming, Reply, RequestHandler
from smcp_bus.headers import EPOCH
from smcp_bus.nats.bus import BusConfig, open_bus
from smcp_computer.core import Computer
from smcp_proto.errors import NotInOffice
from smcp_registry.records import record_key, tombstone
from smcp_registry.store import open_store, read_member, write_member
from smcp_testing.computer_office import NAME, OFFICE, World, computer, world
from smcp_testing.gateway_world import connected, gateway_world
from smcp_testing.interposed_buses import InterposedBuses
from smcp_testing.leaving_gateway import gone, in_time, two_gateways
from smcp_testing.line import Line, open_line
from smcp_testing.mcp_servers import configs
from smcp_testing.note_subscriptions import NOTES, asked, downstream, tell, updated
from smcp_testing.resource_agent import ResourceAgent
from smcp_testing.waiting import eventually


async def test_an_agent_that_said_no_name_is_the_offices_agent(nats_url: str) -> None:
    async with world(nats_url, one=configs.context("2025", content=NOTES)) as here:
        nameless = ResourceAgent(here, None)
        await nameless.result("resources/subscribe", uri="note://1")
        await here.tell("one", "update", uri="note://1")
        await eventually(lambda: here.told("resources_updated"))
        assert "agent" not in here.told("resources_updated")[0]
        await leave(here, "whoever it was", epoch=3)
        await downstream(here.computer)


async def leave(here: World, agent: str, *, epoch: int) -> None:
    """The office is told that an Agent left."""
    body = json.dumps({"office_id": OFFICE, "agent": agent}).encode()
    await here.agent.publish(subjects.notify(OFFICE, "leave_office"), body, headers={EPOCH: str(epoch)})


@pytest.mark.rule("answers.resources.subscribers.native")
async def test_only_the_agents_own_leave_ends_what_it_subscribed_to_and_a_leave_counts_once(nats_url: str) -> None:
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
        await bob.result("resources/subscribe", uri="note://2")
        await leave(here, "bob", epoch=200)
        await leave(here, "alice", epoch=202)
        await downstream(here.computer, "note://2")


@pytest.mark.rule("answers.resources.subscribers.native")
async def test_a_leave_that_is_heard_late_ends_nothing_of_a_later_membership(nats_url: str) -> None:
    async with world(nats_url, one=configs.context("2026", content=NOTES)) as here:
        agents = here.computer.resources.agents
        await agents.subscribe("anna", "one", "note://1", epoch=21)
        await agents.subscribe("anna", "one", "note://2", epoch=31)
        await leave(here, "anna", epoch=30)
        await downstream(here.computer, "note://2")
        with pytest.raises(NotInOffice):
            await agents.subscribe("anna", "one", "note://1", epoch=21)
        await leave(here, "anna", epoch=40)
        await downstream(here.computer)


@pytest.mark.rule("answers.resources.subscribers.native")
async def test_leaves_of_two_agents_count_in_whatever_order_they_are_heard(nats_url: str) -> None:
    async with world(nats_url, one=configs.context("2025", content=NOTES)) as here:
        agents = here.computer.resources.agents
        await agents.subscribe("anna", "one", "note://1", epoch=9)
        await agents.subscribe("bob", "one", "note://2", epoch=11)
        await leave(here, "bob", epoch=12)
        await downstream(here.computer, "note://1")
        await agents.subscribe(None, "one", "note://end")
        await leave(here, "anna", epoch=10)
        await downstream(here.computer, "note://end")


@pytest.mark.rule("answers.resources.subscribers.compared")
async def test_after_a_break_the_office_is_compared_and_who_is_gone_is_subscribed_to_nothing(nats_url: str) -> None:
    port = int(nats_url.rpartition(":")[2])
    async with (
        gateway_world(nats_url) as both,
        open_line(port) as line,
        computer(line.url.replace("http", "nats"), {"one": configs.context("2026", content=NOTES)}) as here,
        connected(both.url) as anna,
    ):
        await anna.join("agent", "anna", OFFICE)
        await asked(anna, "subscribe", "note://1")
        await here.resources.agents.subscribe("somebody who left meanwhile", "one", "note://2")
        await downstream(here, "note://1", "note://2")
        line.port = 1  # nobody is there
        line.cut()
        await eventually(lambda: here.membership.problem is not None, timeout=30)
        await tell(here, "update", uri="note://1")
        line.port = port
        await eventually(lambda: here.membership.problem is None, timeout=30)
        await eventually(lambda: updated(anna) == ["note://1"], timeout=30, message="kept until it could be told")
        await downstream(here, "note://1")


async def cut_off(line: Line, here: Computer) -> None:
    """The Computer hears nothing of NATS any more, until the line leads somewhere."""
    line.port = 1  # nobody is there
    line.cut()
    await eventually(lambda: here.membership.problem is not None, timeout=30)


@pytest.mark.rule("answers.resources.subscribers.membership")
async def test_an_agent_that_came_unheard_in_anothers_place_has_none_of_its_subscriptions(nats_url: str) -> None:
    port, buses, compared = int(nats_url.rpartition(":")[2]), InterposedBuses(), asyncio.Event()

    async def between(incoming: Incoming, handler: RequestHandler) -> Reply:
        if subjects.verb_of(incoming.subject) == "find":
            await compared.wait()
        return await handler(incoming)

    buses.between = between
    async with (
        gateway_world(nats_url, bad=buses) as both,
        open_line(port) as line,
        computer(line.url.replace("http", "nats"), {"one": configs.context("2026", content=NOTES)}) as here,
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
        await eventually(lambda: here.membership.problem is None, timeout=30)
        await asked(second, "subscribe", "note://end")
        compared.set()
        await downstream(here, "note://end")
        for uri in ("note://1", "note://end"):
            await tell(here, "update", uri=uri)
        await eventually(lambda: updated(second), timeout=30)
        assert updated(second) == ["note://end"], "what the other one waited for is told to nobody"


@pytest.mark.rule("answers.resources.subscribers.moves")
async def test_an_agent_that_moved_unheard_keeps_its_subscriptions(nats_url: str) -> None:
    port = int(nats_url.rpartition(":")[2])
    async with (
        two_gateways(nats_url) as (staying, leaving, leave_gateway),
        open_line(port) as line,
        computer(line.url.replace("http", "nats"), {"one": configs.context("2026", content=NOTES)}) as here,
        connected(leaving.url) as anna,
    ):
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        await asked(anna, "subscribe", "note://1")
        await here.resources.agents.subscribe("anna", "one", "note://2", epoch=1)  # in an earlier membership
        await here.resources.agents.subscribe("anna", "one", "note://end")  # by a gateway that says no membership
        await cut_off(line, here)
        left = leave_gateway()
        await gone(anna)
        await in_time(left)
        async with connected(staying.url) as again:
            assert await again.join("agent", "anna", OFFICE) == [True, None]
            line.port = port
            await downstream(here, "note://1", "note://end")
            await eventually(lambda: here.membership.problem is None, timeout=30)
            await tell(here, "update", uri="note://1")
            await eventually(lambda: updated(again) == ["note://1"], timeout=30)
            assert again.told("notify:leave_office") == []


@pytest.mark.rule("answers.resources.subscribers.native")
async def test_what_was_subscribed_to_ends_with_the_computers_own_membership(nats_url: str) -> None:
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
        await eventually(lambda: here.computer.membership.problem is None, timeout=20)
        await alice.result("resources/subscribe", uri="note://1")
        await downstream(here.computer, "note://1")
