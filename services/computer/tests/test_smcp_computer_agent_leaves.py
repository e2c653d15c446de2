"""Subscriptions at a native Computer end with the Agent's membership, and with the Computer's own."""

import json

import pytest

from smcp_bus import subjects
from smcp_bus.headers import EPOCH
from smcp_bus.nats.bus import BusConfig, open_bus
from smcp_computer.computer import Computer
from smcp_proto.schemas.resources import MISSED
from smcp_registry.admission import record_key, tombstone
from smcp_registry.store import open_store, read_member, write_member
from smcp_testing.computer_office import NAME, OFFICE, World, computer, world
from smcp_testing.gateway_world import connected, gateway_world
from smcp_testing.mcp_servers import configs
from smcp_testing.note_subscriptions import NOTES, asked, downstream, tell, updated
from smcp_testing.resource_agent import ResourceAgent
from smcp_testing.tcp_proxy import Line, open_line
from smcp_testing.waiting import eventually


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
