"""Memberships that end otherwise than asked for: broken connections, answers that were lost, members swept away."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from smcp_bus import owner, subjects
from smcp_bus.bus import Incoming, Reply, RequestHandler
from smcp_bus.callers import SeatKey
from smcp_bus.headers import ERROR
from smcp_bus.nats.bus import open_bus
from smcp_bus.nats.config import BusConfig
from smcp_bus.registry_client import RegistryClient
from smcp_bus.registry_contract import Claim
from smcp_gateway.rooms import memberships
from smcp_proto.errors import NotAllowed, Unavailable
from smcp_registry.member_records import Announce, record_key, tombstone
from smcp_registry.store import Bucket, open_store, read_member, write_member
from smcp_testing.gateway_world import LEASE_S, Client, World, connected, gateway_world, reply
from smcp_testing.interposed_buses import InterposedBuses
from smcp_testing.waiting import eventually

OFFICE = "office"
SHORT_S = 0.8
LONG_S = 600.0
"""What does not wait for it is done at once."""


def call(number: int) -> dict[str, Any]:
    return {
        "agent": "anna", "req_id": f"r{number}", "computer": "box", "tool_name": "t", "params": {}, "timeout": 60,
    }  # fmt: skip


async def hang(verb: str, _: Incoming) -> Reply:
    if verb == "tool_call":
        await asyncio.Event().wait()
    return reply({"unknown": []})


@asynccontextmanager
async def office(nats_url: str, gateways: int = 1) -> AsyncIterator[tuple[World, list[str]]]:
    """A world with the Computer `box` whose calls never end, and the ids of the calls that are cancelled there."""
    async with gateway_world(nats_url, gateways=gateways) as world, world.computer(OFFICE, "box", hang) as box:
        cancelled: list[str] = []

        async def heard(incoming: Incoming) -> None:
            cancelled.append(orjson.loads(incoming.body)["req_id"])

        await box.bus.listen("smcp.v1.office.notify.tool_call_cancel", heard)
        yield world, cancelled


async def calling(world: World, client: Client, name: str = "anna") -> None:
    """It joins, and one call of it runs."""
    await eventually(lambda: joins(client, "agent", name, OFFICE))
    await client.sio.emit("client:tool_call", call(0), namespace="/smcp")
    await eventually(lambda: len(world.gateways[0].calls) == 1)


async def joins(client: Client, role: str, name: str, where: str) -> bool:
    return (await client.join(role, name, where))[0] is True


@pytest.mark.rule("answers.rooms.admission.late")
async def test_a_late_copy_of_a_join_does_not_bring_a_member_back(nats_url: str) -> None:
    async with (
        gateway_world(nats_url) as world,
        connected(world.url) as client,
        open_bus(BusConfig(url=nats_url)) as bus,
    ):
        store = await open_store(bus, bus.jetstream(), lease_s=LEASE_S, replicas=1)
        assert await joins(client, "computer", "pc", OFFICE)
        record = (await read_member(store.members, record_key(OFFICE, "computer", "pc"))).record
        assert record is not None
        claim = Claim.model_validate(record.model_dump(include=set(Claim.model_fields) - {"announce"}))
        body = orjson.dumps({"role": "computer", "name": "pc", "office_id": OFFICE})
        registry = RegistryClient(bus, credential=claim.credential, process=claim.process)
        assert (await registry.join((OFFICE, "computer", "pc"), claim, body)).unchanged
        for elsewhere in (False, True):
            if elsewhere:
                assert await joins(client, "computer", "pc", "another office")
            else:
                assert await client.call("server:leave_office", {"office_id": OFFICE}) == [True, None]
            with pytest.raises(NotAllowed, match="given up"):
                await registry.join((OFFICE, "computer", "pc"), claim, body)


def break_off(client: Client) -> None:
    """Its TCP connection is cut."""
    client.sio.eio.ws._response.connection.transport.abort()


async def room(client: Client) -> set[str]:
    listed = await client.call("server:list_room", {"agent": "anna", "req_id": "1", "office_id": OFFICE})
    return {session["name"] for session in listed["sessions"]}


@pytest.mark.rule("answers.calls.disconnect")
async def test_the_calls_of_an_agent_that_disconnects_itself_are_cancelled_at_once(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memberships, "ABSENT_S", LONG_S)
    async with office(nats_url) as (world, cancelled):
        async with connected(world.url) as anna:
            await calling(world, anna)
        await eventually(lambda: cancelled == ["r0"])


async def test_the_calls_of_an_agent_that_leaves_are_cancelled_and_answered(nats_url: str) -> None:
    async with office(nats_url) as (world, cancelled), connected(world.url) as anna:
        await anna.join("agent", "anna", OFFICE)
        waiting = asyncio.create_task(anna.call("client:tool_call", call(0)))
        await eventually(lambda: len(world.gateways[0].calls) == 1)
        assert await anna.call("server:leave_office", {"office_id": OFFICE}) == [True, None]
        await eventually(lambda: cancelled == ["r0"])
        assert (await waiting)["meta"] == {"a2c_cancelled": True}


async def test_the_calls_of_an_agent_whose_connection_broke_are_cancelled_if_it_does_not_return(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memberships, "ABSENT_S", SHORT_S)
    loop = asyncio.get_running_loop()
    async with office(nats_url) as (world, cancelled):
        async with connected(world.url) as anna:
            await calling(world, anna)
            broke = loop.time()
            break_off(anna)
            await eventually(lambda: cancelled == ["r0"])
            assert loop.time() - broke >= SHORT_S
        await eventually(lambda: len(world.gateways[0].offices) == 0)


@pytest.mark.parametrize("gateway", [0, 1])
async def test_nothing_is_cancelled_when_the_agent_returns_through_any_gateway(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, gateway: int
) -> None:
    monkeypatch.setattr(memberships, "ABSENT_S", SHORT_S)
    confirm, returned = RegistryClient.confirm, asyncio.Event()

    async def after_the_return(registry: RegistryClient, seat: SeatKey, claim: Claim) -> Any:
        if seat[1] == "agent":  # the time to return is over, on a busy machine too early
            await returned.wait()
        return await confirm(registry, seat, claim)

    monkeypatch.setattr(RegistryClient, "confirm", after_the_return)
    async with office(nats_url, gateways=2) as (world, cancelled):
        async with connected(world.url) as anna:
            await calling(world, anna)
            held = world.gateways[0].offices.get(OFFICE)
            assert held is not None
            break_off(anna)
            await eventually(lambda: len(world.gateways[0].sessions) == 0)
        async with connected(world.gateways[gateway].url) as again:
            await eventually(lambda: joins(again, "agent", "anna", OFFICE))
            returned.set()
            await eventually(lambda: held.holders == (gateway == 0))  # it has decided on what the first one left
            await again.call("server:tool_call_cancel", {"agent": "anna", "req_id": "last"})
            await eventually(lambda: cancelled[-1:] == ["last"])
            assert cancelled == ["last"]


async def test_an_agent_without_calls_leaves_at_once_when_its_connection_breaks(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memberships, "ABSENT_S", LONG_S)
    async with office(nats_url) as (world, _), connected(world.url) as car:
        await car.join("computer", "car", OFFICE)
        async with connected(world.url) as anna:
            await anna.join("agent", "anna", OFFICE)
            break_off(anna)
            await eventually(lambda: len(car.told("notify:leave_office")) == 1)


async def test_a_stopping_gateway_does_not_wait_for_agents_and_cancels_no_calls(nats_url: str) -> None:
    async with office(nats_url) as (staying, cancelled), connected(staying.url) as car:
        await car.join("computer", "car", OFFICE)
        async with connected_to_another(nats_url) as (stopping, anna):
            await calling(stopping, anna)
        async with connected(staying.url) as again:
            assert await again.join("agent", "anna", OFFICE) == [True, None]  # its place was kept
        await eventually(lambda: len(car.told("notify:leave_office")) == 1)
        assert [payload["agent"] for payload in car.told("notify:enter_office")] == ["anna"]
        assert cancelled == []


@asynccontextmanager
async def connected_to_another(nats_url: str) -> AsyncIterator[tuple[World, Client]]:
    """A client of a gateway that is stopped while the client stays."""
    async with gateway_world(nats_url, registry=False, drain_s=2.0) as world:
        client = connected(world.url)
        anna = await client.__aenter__()
        try:
            yield world, anna
        except BaseException:
            await anna.sio.disconnect()
            raise
    await client.__aexit__(None, None, None)


@asynccontextmanager
async def answers_lost(monkeypatch: pytest.MonkeyPatch, part: str) -> AsyncIterator[list[str]]:
    """The first write of a member whose key has `part` is done, and said to be unknown. Yields what was lost."""
    write = Bucket.write
    lost: list[str] = []

    async def losing(self: Bucket, key: str, value: bytes, *, last: int) -> int:
        revision = await write(self, key, value, last=last)
        if self.name == "members" and part in key and not lost:
            lost.append(key)
            raise Unavailable("the registry's store does not answer now")
        return revision

    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "write", losing)
        yield lost


async def test_a_join_without_an_answer_leaves_no_member(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway_world(nats_url) as world, connected(world.url) as anna, connected(world.url) as ghost:
        await anna.join("agent", "anna", OFFICE)
        async with answers_lost(monkeypatch, "ghost") as lost:
            done, *_ = await ghost.join("computer", "ghost", OFFICE)
            assert done is False
            assert lost
        await eventually(lambda: len(anna.told("notify:leave_office")) == 1)
        assert await room(anna) == {"anna"}
        assert await ghost.join("computer", "ghost", OFFICE) == [True, None]
        assert await room(anna) == {"anna", "ghost"}


async def test_a_switch_whose_leave_gets_no_answer_keeps_the_old_membership(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway_world(nats_url) as world, connected(world.url) as anna, connected(world.url) as car:
        await anna.join("agent", "anna", OFFICE)
        await car.join("computer", "car", OFFICE)
        async with answers_lost(monkeypatch, record_key(OFFICE, "computer", "car")) as lost:
            done, *_ = await car.join("computer", "car", "elsewhere")
            assert done is False
            assert lost
        await eventually(lambda: len(anna.told("notify:enter_office")) == 2)
        assert await room(anna) == {"anna", "car"}
        assert await car.call("server:update_tool_list", {"computer": "car"}) is None


async def test_a_connected_member_that_the_registry_removed_is_asserted_again(nats_url: str) -> None:
    async with (
        gateway_world(nats_url) as world,
        connected(world.url) as anna,
        connected(world.url) as car,
        open_bus(BusConfig(url=nats_url)) as bus,
    ):
        await anna.join("agent", "anna", OFFICE)
        await car.join("computer", "car", OFFICE)
        store = await open_store(bus, bus.jetstream(), lease_s=LEASE_S, replicas=1)

        async def entered(times: int) -> None:
            await eventually(lambda: len(anna.told("notify:enter_office")) == times)

        await entered(1)
        for times in range(2, 5):
            stored = await read_member(store.members, record_key(OFFICE, "computer", "car"))
            assert stored.record is not None
            key = record_key(OFFICE, "computer", "car")
            await write_member(store.members, key, tombstone(stored.record), last=stored.revision)
            await entered(times)
            assert await room(anna) == {"anna", "car"}
        assert car.told("notify:leave_office") == []
        assert await car.call("server:update_tool_list", {"computer": "car"}) is None


async def test_pings_let_clients_notice_a_hanging_gateway_within_a_lease(nats_url: str) -> None:
    lease_s = 6.0  # a machine may stand still for most of it
    async with (
        gateway_world(nats_url, registry=False, pings=True, lease_s=lease_s) as world,
        connected(world.url) as client,
    ):
        eio = client.sio.eio
        assert eio.ping_interval + eio.ping_timeout <= 0.71 * lease_s
        gone = asyncio.create_task(client.gone.wait())
        await asyncio.wait({gone}, timeout=lease_s)
        assert not client.gone.is_set()
        gone.cancel()


async def test_a_repeat_is_refused_after_the_seat_and_the_answer_to_the_new_claim_were_lost(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "HELD_BEFORE_S", 0.0)
    monkeypatch.setattr(owner, "RECENT_S", 600.0)
    buses, asserted = InterposedBuses(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def between(incoming: Incoming, handler: RequestHandler) -> Reply:
        reply = await handler(incoming)
        if subjects.verb_of(incoming.subject) != "assert" or asserted.is_set():
            return reply
        asserted.set()
        return Reply(b'{"code":503,"message":"not now","details":{}}', {ERROR: "503"})

    async def runs(_: Any) -> Any:
        return {"content": [], "isError": False}

    numbers = itertools.count(1)
    async with (
        gateway_world(nats_url, bad=buses) as world,
        connected(world.url) as anna,
        connected(world.url) as client,
        connected(world.url) as other,
        open_bus(BusConfig(url=nats_url)) as bus,
    ):
        client.sio.on("client:tool_call", runs, namespace="/smcp")
        assert await joins(client, "computer", "box", OFFICE)
        assert await joins(other, "computer", "other", OFFICE)
        assert await joins(anna, "agent", "anna", OFFICE)
        sent = loop.time()  # by another owner, which had the seat for a moment, and ran it

        async def repeat(number: int) -> Any:
            age = round((loop.time() - sent) * 1000)
            return await anna.call("client:tool_call", call(number) | {"a2c_repeat": age})

        assert (await repeat(0))["isError"] is False
        store = await open_store(bus, bus.jetstream(), lease_s=LEASE_S, replicas=1)
        box, told = (record_key(OFFICE, "computer", name) for name in ("box", "other"))
        buses.between = between
        for key in (box, told):
            stored = await read_member(store.members, key)
            assert stored.record is not None
            stone = tombstone(stored.record)
            if key == box:  # its leave is one of those that an outage hides
                stone = stone.model_copy(update={"announce": Announce.NOTHING})
            await write_member(store.members, key, stone, last=stored.revision)

        async def refused() -> bool:  # as soon as the gateway has asserted its members again
            answer = await repeat(next(numbers))
            return "repeated call" in answer.get("message", "")

        await asyncio.wait_for(asserted.wait(), 30)
        await eventually(refused)
