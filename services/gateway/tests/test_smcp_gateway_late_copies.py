"""Copies of a join or a leave that a registry carries out when nobody waits for them any more: they change nothing."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import orjson
import pytest

from smcp_bus import subjects
from smcp_bus.bus import Incoming, Reply, RequestHandler
from smcp_bus.headers import ERROR
from smcp_testing.gateway_world import Client, World, connected, gateway_world
from smcp_testing.interposed_buses import InterposedBuses
from smcp_testing.waiting import eventually

OFFICE = "office"
NOT_NOW = Reply(b'{"code":503,"message":"the store does not answer now","details":{}}', {ERROR: "503"})


class LateLeaves:
    """The first leave is not answered for now, and its copies are carried out when the test says so."""

    def __init__(self, buses: InterposedBuses) -> None:
        buses.between = self._between
        self.kept: list[tuple[Incoming, RequestHandler]] = []
        self.keeping = True
        self.asserted = asyncio.Event()

    async def _between(self, incoming: Incoming, handler: RequestHandler) -> Reply:
        verb = subjects.verb_of(incoming.subject)
        if verb == "leave_office" and self.keeping:
            self.kept.append((incoming, handler))
            return NOT_NOW
        reply = await handler(incoming)
        if verb == "assert":
            self.asserted.set()
        return reply

    async def carry_out(self) -> list[Reply]:
        return [await handler(incoming) for incoming, handler in self.kept]


async def room(client: Client, agent: str = "anna") -> set[str]:
    listed = await client.call("server:list_room", {"agent": agent, "req_id": "1", "office_id": OFFICE})
    return {session["name"] for session in listed["sessions"]}


def changes(client: Client) -> list[tuple[str, Any]]:
    return [(event, payload) for event, payload in client.events if event.endswith("_office")]


async def told_of_all(world: World, anna: Client, count: int) -> list[tuple[str, Any]]:
    """The enters and leaves that an Agent received, from number `count` on up to now: another enters last."""
    async with connected(world.url) as last:
        assert await last.join("computer", "last", OFFICE) == [True, None]
        await eventually(
            lambda: changes(anna)[-1:] == [("notify:enter_office", {"office_id": OFFICE, "computer": "last"})]
        )
        return changes(anna)[count:-1]


@pytest.mark.rule("answers.rooms.late-leave")
async def test_a_late_copy_of_a_failed_leave_does_not_remove_the_member(nats_url: str) -> None:
    buses = InterposedBuses()
    late = LateLeaves(buses)
    async with (
        gateway_world(nats_url, registries=2, bad=buses) as world,
        connected(world.url) as anna,
        connected(world.url) as box,
    ):
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        assert await box.join("computer", "box", OFFICE) == [True, None]
        await eventually(lambda: len(changes(anna)) == 1)
        done, why, *_ = await box.call("server:leave_office", {"office_id": OFFICE})
        assert (done, why.split()[0]) == (False, "503")
        assert late.kept
        await asyncio.wait_for(late.asserted.wait(), 30)
        assert await box.join("computer", "box", OFFICE) == [True, None]  # it stayed, and goes on
        for reply in await late.carry_out():
            assert reply.headers[ERROR] == "4103"
        assert await told_of_all(world, anna, 1) == []
        assert await room(anna) >= {"anna", "box"}
        assert await box.call("server:update_config", {"computer": "box"}) is None
        late.keeping = False
        assert await box.call("server:leave_office", {"office_id": OFFICE}) == [True, None]
        await eventually(lambda: ("notify:leave_office", {"office_id": OFFICE, "computer": "box"}) in changes(anna))
        assert await box.join("computer", "box", OFFICE) == [True, None]
        assert "box" in await room(anna)


@pytest.mark.rule("answers.rooms.late-leave")
async def test_a_late_copy_of_the_leave_of_a_failed_switch_changes_nothing(nats_url: str) -> None:
    buses = InterposedBuses()
    late = LateLeaves(buses)
    async with (
        gateway_world(nats_url, registries=2, bad=buses) as world,
        connected(world.url) as anna,
        connected(world.url) as box,
    ):
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        assert await box.join("computer", "box", OFFICE) == [True, None]
        await eventually(lambda: len(changes(anna)) == 1)
        done, *_ = await box.join("computer", "box", "elsewhere")
        assert done is False
        await asyncio.wait_for(late.asserted.wait(), 30)
        late.keeping = False
        await late.carry_out()
        assert await told_of_all(world, anna, 1) == []
        assert await room(anna) >= {"anna", "box"}
        assert await box.join("computer", "box", "elsewhere") == [True, None]
        await eventually(lambda: changes(anna)[-2:] == [
            ("notify:leave_office", {"office_id": OFFICE, "computer": "last"}),
            ("notify:leave_office", {"office_id": OFFICE, "computer": "box"}),
        ])  # fmt: skip


async def test_a_member_that_disconnects_before_its_new_claim_is_asserted_leaves(nats_url: str) -> None:
    buses = InterposedBuses()
    asserts, free = asyncio.Event(), asyncio.Event()
    failed: list[str] = []

    async def between(incoming: Incoming, handler: RequestHandler) -> Reply:
        verb = subjects.verb_of(incoming.subject)
        if verb == "leave_office" and not failed:
            failed.append(verb)
            return NOT_NOW
        if verb == "assert":
            asserts.set()
            await free.wait()
        return await handler(incoming)

    buses.between = between
    async with gateway_world(nats_url, bad=buses) as world, connected(world.url) as anna, AsyncExitStack() as stack:
        stack.callback(free.set)
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        async with connected(world.url) as box:
            assert await box.join("computer", "box", OFFICE) == [True, None]
            await eventually(lambda: len(changes(anna)) == 1)
            assert (await box.call("server:leave_office", {"office_id": OFFICE}))[0] is False
            await asyncio.wait_for(asserts.wait(), 30)
        await eventually(lambda: len(changes(anna)) == 2)
        free.set()
        assert [event for event, _ in await told_of_all(world, anna, 1)] == ["notify:leave_office"]
        assert "box" not in await room(anna)


async def test_a_late_copy_of_a_refused_join_leaves_no_member(nats_url: str) -> None:
    buses = InterposedBuses()
    refused, claimed, owner_left, answer, over = (asyncio.Event() for _ in range(5))
    copies = 0

    async def between(incoming: Incoming, handler: RequestHandler) -> Reply:
        nonlocal copies
        if subjects.verb_of(incoming.subject) != "join_office" or orjson.loads(incoming.body).get("more") != "heir":
            return await handler(incoming)
        copies += 1
        if copies == 1:
            reply = await handler(incoming)
            assert reply.headers[ERROR] == "403"
            refused.set()
            await answer.wait()
            return reply
        await owner_left.wait()
        reply = await handler(incoming)
        claimed.set()
        await over.wait()
        return reply

    buses.between = between
    async with (
        gateway_world(nats_url, registries=2, gateways=2, bad=buses) as world,
        connected(world.url) as anna,
        connected(world.url) as owner,
        connected(world.gateways[1].url) as guest,
        connected(world.gateways[1].url) as heir,
        AsyncExitStack() as stack,
    ):
        stack.callback(over.set)
        assert await guest.join("computer", "guest", OFFICE) == [True, None]  # so joins there are announced at once
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        assert await owner.join("computer", "box", OFFICE) == [True, None]
        place = {"role": "computer", "name": "box", "office_id": OFFICE, "more": "heir"}
        joining = asyncio.create_task(heir.call("server:join_office", place))
        await asyncio.wait_for(refused.wait(), 30)
        assert await owner.call("server:leave_office", {"office_id": OFFICE}) == [True, None]
        owner_left.set()
        await asyncio.wait_for(claimed.wait(), 30)
        answer.set()
        done, why, *_ = await joining
        assert (done, why.split()[0]) == (False, "403")
        await eventually(lambda: changes(anna)[-1][0] == "notify:leave_office" and len(changes(anna)) == 4)
        assert await room(anna) == {"anna", "guest"}
