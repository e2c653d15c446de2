"""A gateway with more than its fair share of the clients disconnects some, and no call or notification is lost."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partialmethod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_bus.registry_client import RegistryClient
from smcp_bus.registry_contract import Assertion, AssertionResult, LeaseRenewal
from smcp_gateway.app import Gateway
from smcp_gateway.rooms.memberships import Repair
from smcp_gateway.rooms.moves import PER_S, due
from smcp_registry.bucket_watch import Change
from smcp_testing.gateway_world import SHORT_LEASE_S, Client, World, connected, gateway_world
from smcp_testing.leaving_gateway import OFFICE, RESULT, agent_and_box, call, in_time, two_gateways
from smcp_testing.waiting import eventually

SPREAD_S = 0.5
"""So that clients are old after less than two seconds."""
LONG_LEASE_S = 9.0
"""It is renewed every three seconds: a gateway looks at its share at least twice in between."""
MANY = 12


@asynccontextmanager
async def full_and_empty(nats_url: str, *, rebalance_s: float = SPREAD_S) -> AsyncIterator[World]:
    """Two gateways; what stands before them is the test. They soon hear of a change of their share."""
    settings = {"rebalance_s": rebalance_s, "lease_s": SHORT_LEASE_S}
    async with gateway_world(nats_url, gateways=2, settings=settings) as world:
        yield world


def keep_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the registry a minute to keep a seat: the test holds its answer back while a call begins."""
    monkeypatch.setattr(Repair, "keep_seat", partialmethod(Repair.keep_seat, within=60.0))


class Roaming:
    """Clients that reconnect to the other gateway whenever they are disconnected, and join again."""

    def __init__(self, first: str, then: str) -> None:
        self.moves: list[str] = []
        """The names of the disconnected clients, in that order."""
        self.refused: list[Any] = []
        self._first = first
        self._then = then
        self._over = asyncio.Event()

    @asynccontextmanager
    async def here(self, names: Sequence[str], *, members: bool = True) -> AsyncIterator[None]:
        """In the office as Computers, or only connected."""
        async with asyncio.TaskGroup() as group:
            tasks = []
            for name in names:  # one after the other: the first ones have been here longest
                came = asyncio.Event()
                tasks.append(group.create_task(self._roam(name, came, members=members)))
                await came.wait()
            try:
                yield
            finally:
                self._over.set()  # a cancellation in the middle of a disconnect is lost
                for task in tasks:
                    task.cancel()

    async def _roam(self, name: str, came: asyncio.Event, *, members: bool) -> None:
        url, other = self._first, self._then
        while not self._over.is_set():
            async with connected(url) as client:
                if members and (answer := await client.join("computer", name, OFFICE)) != [True, None]:
                    self.refused.append(answer)
                came.set()
                if self._over.is_set():
                    return  # its cancellation was lost while it connected or joined
                await client.gone.wait()
                self.moves.append(name)
            url, other = other, url


def names(prefix: str, count: int = MANY) -> list[str]:
    return [f"{prefix} {number}" for number in range(count)]


async def renewals(world: World, gateway: Gateway, count: int) -> None:
    """Wait until its lease was renewed so often."""
    leases, bus = world.registries[0].leases, world.buses[world.gateways.index(gateway)]

    def revision() -> int | None:
        return leases.revision(bus.credential, gateway.process)

    seen = [revision()]

    def another() -> bool:
        if revision() != seen[-1]:
            seen.append(revision())
        return len(seen) > count

    await eventually(another)


def is_even(world: World, count: int) -> bool:
    """None of that many clients is on its way, and neither gateway has so many above its share that it tells one to go.

    A share that is not known for a moment, or is too large by a client that two gateways count, ends the telling early.
    """
    share = -(-count // 2)
    here = [len(gateway.sessions) for gateway in world.gateways]
    return sum(here) == count and not due(max(here), share, SPREAD_S)


def comings_and_goings(client: Client) -> tuple[int, int]:
    return len(client.told("notify:enter_office")), len(client.told("notify:leave_office"))


async def test_clients_above_the_fair_share_move_without_a_leave_or_enter(nats_url: str) -> None:
    async with full_and_empty(nats_url) as world, connected(world.gateways[1].url) as anna:
        full, empty = world.gateways
        await anna.join("agent", "anna", OFFICE)
        roaming = Roaming(full.url, empty.url)
        async with roaming.here(names("pc")):
            await eventually(lambda: comings_and_goings(anna) == (MANY, 0))
            await eventually(lambda: is_even(world, MANY + 1))
            await renewals(world, full, 3)
            assert len(full.sessions) >= 7, "no more than the surplus"
            await eventually(lambda: len(roaming.moves) == len(empty.sessions) - 1)
            assert set(roaming.moves) == set(names("pc", len(roaming.moves))), "the oldest"
            room = await anna.call("server:list_room", {"agent": "anna", "req_id": "1", "office_id": OFFICE})
            assert len(room["sessions"]) == MANY + 1
            async with connected(empty.url) as last:  # what was announced before it is heard before it
                await last.join("computer", "last", OFFICE)
                await eventually(lambda: anna.told("notify:enter_office")[-1]["computer"] == "last")
            assert comings_and_goings(anna)[0] == MANY + 1
            assert {told["computer"] for told in anna.told("notify:leave_office")} <= {"last"}
            assert roaming.refused == []


async def test_clients_without_an_office_move_too(nats_url: str) -> None:
    async with full_and_empty(nats_url) as world:
        full, empty = world.gateways
        async with Roaming(full.url, empty.url).here(names("nobody"), members=False):
            await eventually(lambda: is_even(world, MANY))


async def test_a_client_with_a_call_in_flight_stays(nats_url: str) -> None:
    async with (
        full_and_empty(nats_url) as world,
        connected(world.gateways[0].url) as anna,
        connected(world.gateways[0].url) as client,
    ):
        full, empty = world.gateways
        box = await agent_and_box(anna, client)
        running = asyncio.create_task(anna.call("client:tool_call", call(), timeout=30))
        await eventually(lambda: box.asked == ["r0"])
        async with Roaming(full.url, empty.url).here(names("pc")):
            await eventually(lambda: is_even(world, MANY + 2))
            assert not anna.gone.is_set(), "it has been here longest"
            assert not client.gone.is_set()
            box.released.set()
            assert await in_time(running) == RESULT


async def test_a_new_client_stays(nats_url: str) -> None:
    async with full_and_empty(nats_url, rebalance_s=600.0) as world:
        full, empty = world.gateways
        roaming = Roaming(full.url, empty.url)
        async with roaming.here(names("pc")):
            await renewals(world, full, 3)
            assert roaming.moves == []


async def test_clients_that_came_since_the_last_renewal_send_nobody_away(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "smcp_gateway.rooms.moves")
    settings = {"rebalance_s": 0.1, "lease_s": LONG_LEASE_S}
    async with gateway_world(nats_url, settings=settings) as world:
        (gateway,) = world.gateways
        roaming = Roaming(gateway.url, gateway.url)
        async with roaming.here(names("old")):
            await renewals(world, gateway, 1)
            async with Roaming(gateway.url, gateway.url).here(names("new")):
                await renewals(world, gateway, 1)
                assert roaming.moves == []
                assert "clients above the fair share are sent away" not in caplog.messages


async def test_nobody_is_moved_when_the_setting_is_0(nats_url: str) -> None:
    async with full_and_empty(nats_url, rebalance_s=0) as world:
        full, empty = world.gateways
        roaming = Roaming(full.url, empty.url)
        async with roaming.here(names("pc")):
            await renewals(world, full, 6)
            assert roaming.moves == []


@pytest.mark.parametrize("view_lags", [False, True])
async def test_a_client_that_starts_a_call_while_its_seat_is_being_kept_stays(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, *, view_lags: bool
) -> None:
    asked, go, answered = asyncio.Event(), asyncio.Event(), list[bool]()
    assert_members = RegistryClient.assert_members
    keep_for_a_minute(monkeypatch)

    async def slowly(registry: RegistryClient, assertion: Assertion, **how: Any) -> AssertionResult:
        moving = [member.moving for member in assertion.members if member.name == "anna"]
        if True in moving:
            asked.set()
            await go.wait()
        result = await assert_members(registry, assertion, **how)
        answered.extend(moving)
        return result

    monkeypatch.setattr(RegistryClient, "assert_members", slowly)
    async with full_and_empty(nats_url) as world, connected(world.gateways[0].url) as anna, AsyncExitStack() as stack:
        full, empty = world.gateways
        client = await stack.enter_async_context(connected(empty.url))
        box = await agent_and_box(anna, client)
        async with Roaming(full.url, empty.url).here(names("pc")):
            await in_time(asyncio.ensure_future(asked.wait()))
            running = asyncio.create_task(anna.call("client:tool_call", call(), timeout=30))
            await eventually(lambda: box.asked == ["r0"])
            view, unseen = world.registries[0].view, list[Change]()
            apply = view.apply
            if view_lags:
                monkeypatch.setattr(view, "apply", unseen.append)
            go.set()
            await eventually(lambda: answered[:2] == [True, False])
            session = next(each for each in full.sessions if each.name == "anna")
            assert not session.moving
            assert not anna.gone.is_set()
            if view_lags:
                monkeypatch.setattr(view, "apply", apply)
                for change in unseen:
                    apply(change)
            await eventually(lambda: (kept := view.member(OFFICE, "agent", "anna")) and not kept.record.moving)
            box.released.set()
            assert await in_time(running) == RESULT


async def test_a_client_that_stays_is_asserted_alone(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, go, asserted = asyncio.Event(), asyncio.Event(), list[list[tuple[str, bool]]]()
    assert_members = RegistryClient.assert_members
    keep_for_a_minute(monkeypatch)

    async def slowly(registry: RegistryClient, assertion: Assertion, **how: Any) -> AssertionResult:
        asserted.append([(member.name, member.moving) for member in assertion.members])
        if asserted[-1] == [("anna", True)]:
            asked.set()
            await go.wait()
        return await assert_members(registry, assertion, **how)

    monkeypatch.setattr(RegistryClient, "assert_members", slowly)
    async with (
        # no lease runs out, and no other cause has the whole gateway asserted
        full_and_empty(nats_url) as world,
        connected(world.gateways[0].url) as anna,
        # at the other one: here it might be told to go before it is asked
        connected(world.gateways[1].url) as client,
    ):
        full, empty = world.gateways
        box = await agent_and_box(anna, client)
        async with Roaming(full.url, empty.url).here(names("pc")):
            await in_time(asyncio.ensure_future(asked.wait()), 30)
            running = asyncio.create_task(anna.call("client:tool_call", call(), timeout=30))
            await eventually(lambda: box.asked == ["r0"])
            go.set()
            await eventually(lambda: [("anna", False)] in asserted)
            assert [members for members in asserted if len(members) != 1] == []
            box.released.set()
            assert await in_time(running) == RESULT


async def test_a_stopping_gateway_leaves_the_fair_share_at_once(nats_url: str) -> None:
    async with two_gateways(nats_url) as (staying, leaving, leave), AsyncExitStack() as stack:
        anna = await stack.enter_async_context(connected(leaving.url))
        box = await agent_and_box(anna, await stack.enter_async_context(connected(leaving.url)))
        running = asyncio.create_task(anna.call("client:tool_call", call(), timeout=30))
        await eventually(lambda: box.asked == ["r0"])
        view, bus, gateway = staying.registries[0].leases, staying.buses[0], staying.gateways[0]
        of = LeaseRenewal(sockets=0, accepting=True)
        left = leave()
        await eventually(lambda: view.fair_share(bus.credential, gateway.process, of) == 2)
        assert not left.done()
        box.released.set()
        assert await in_time(running) == RESULT
        await in_time(left)


@pytest.mark.parametrize(
    ("sockets", "share", "count"),
    [
        (100, None, 0),  # the share is not known
        (100, 100, 0),
        (112, 100, 0),  # about even
        (113, 100, 1),
        (500, 250, 9),  # a part of all in each second,
        (60_000, 100, PER_S),  # which other gateways can take in
        (12, 0, 1),
    ],
)
def test_how_many_clients_are_moved_in_a_second(sockets: int, share: int | None, count: int) -> None:
    assert due(sockets, share, 60.0) == count


@given(st.integers(0, 3000), st.integers(0, 3000))
def test_a_surplus_is_moved_in_time_and_no_more(sockets: int, share: int) -> None:
    before, seconds = sockets, 0
    while due(sockets, share, 60.0):
        sockets -= due(sockets, share, 60.0)
        seconds += 1
    assert sockets >= min(before, share)
    assert seconds <= 360
