"""Copies of a join or a leave that a registry carries out when nobody waits for them any more."""

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
    """The first leave is answered with 503; it is carried out just before that, or when the test says so."""

    def __init__(self, buses: InterposedBuses, *, carry_out: bool) -> None:
        buses.between = self._between
        self._at_once = carry_out
        self.kept: list[tuple[Incoming, RequestHandler]] = []

    async def _between(self, incoming: Incoming, handler: RequestHandler) -> Reply:
        if subjects.verb_of(incoming.subject) == "leave_office" and not self.kept:
            self.kept.append((incoming, handler))
            if self._at_once:
                await self.carry_out()
            return NOT_NOW
        return await handler(incoming)

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
@pytest.mark.parametrize("at_once", [True, False])
async def test_a_client_whose_leave_failed_stays_a_member_although_it_was_carried_out_or_is_later(
    nats_url: str, at_once: bool
) -> None:
    buses = InterposedBuses()
    late = LateLeaves(buses, carry_out=at_once)
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
        if not at_once:
            assert await box.join("computer", "box", OFFICE) == [True, None]  # it stayed
            await late.carry_out()
        left = ("notify:leave_office", {"office_id": OFFICE, "computer": "box"})
        entered = ("notify:enter_office", {"office_id": OFFICE, "computer": "box"})
        await eventually(lambda: changes(anna) == [entered, left, entered])
        assert await room(anna) >= {"anna", "box"}
        assert await box.call("server:update_config", {"computer": "box"}) is None
        assert await box.call("server:leave_office", {"office_id": OFFICE}) == [True, None]
        await eventually(lambda: changes(anna)[3:] == [left])
        assert await box.join("computer", "box", OFFICE) == [True, None]
        assert await told_of_all(world, anna, 4) == [entered]


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
