"""Office switches: the last step, the announcement, may have to wait; and a session has one place at a time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import orjson
import pytest

from smcp_bus import subjects
from smcp_bus.bus import Incoming, Reply, RequestHandler
from smcp_bus.nats.bus import open_bus
from smcp_bus.nats.config import BusConfig
from smcp_gateway.sockets.session import Session
from smcp_proto.errors import Unavailable
from smcp_registry.admission import claimed
from smcp_registry.member_records import Announce, record_key, tombstone
from smcp_registry.store import Bucket, open_store, read_member, write_member
from smcp_testing.gateway_world import LEASE_S, Client, World, connected, gateway_world
from smcp_testing.interposed_buses import InterposedBuses
from smcp_testing.waiting import eventually

OLD, NEW = "old office", "new office"


@asynccontextmanager
async def no_quorum_to_announce(monkeypatch: pytest.MonkeyPatch, name: str) -> AsyncIterator[None]:
    """While this lasts, the enter of a Computer into the new office cannot be written; all else can."""
    write = Bucket.write
    key = record_key(NEW, "computer", name)

    async def refusing(self: Bucket, written: str, value: bytes, *, last: int) -> int:
        if written == key and orjson.loads(value)["announce"] == "enter":
            raise Unavailable("the registry's store does not answer now")
        return await write(self, written, value, last=last)

    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "write", refusing)
        yield


async def also_in(nats_url: str, office: str, session: Session) -> None:
    """The registry has another record of a member, as an older one would have written it late."""
    assert session.membership is not None
    claim = session.membership.claim.model_copy(update={"incarnation": "late"})
    record = claimed(None, claim, Announce.ENTER, (office, "computer", "box"))
    async with open_bus(BusConfig(url=nats_url)) as bus:
        store = await open_store(bus, bus.jetstream(), lease_s=LEASE_S, replicas=1)
        await write_member(store.members, record_key(office, "computer", "box"), record, last=0)


async def room(anna: Client) -> set[str]:
    listed = await anna.call("server:list_room", {"agent": "anna", "req_id": "1", "office_id": NEW})
    return {session["name"] for session in listed["sessions"]}


async def alone(anna: Client) -> bool:
    return await room(anna) == {"anna"}


async def test_a_switch_is_announced_as_soon_as_that_is_possible(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway_world(nats_url) as world, connected(world.url) as anna, connected(world.url) as box:
        await anna.join("agent", "anna", NEW)
        await box.join("computer", "box", OLD)
        async with no_quorum_to_announce(monkeypatch, "box"):
            assert await box.join("computer", "box", NEW) == [True, None]
            assert await room(anna) == {"anna"}
        await eventually(lambda: len(anna.told("notify:enter_office")) == 1)
        assert await room(anna) == {"anna", "box"}


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_computer_that_left_before_its_switch_was_announced_is_no_member(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    async with gateway_world(nats_url) as world, connected(world.url) as anna:
        await anna.join("agent", "anna", NEW)
        async with no_quorum_to_announce(monkeypatch, "box"):
            async with connected(world.url) as box:
                await box.join("computer", "box", OLD)
                assert await box.join("computer", "box", NEW) == [True, None]
                if leaves:
                    assert await box.call("server:leave_office", {"office_id": NEW}) == [True, None]
            await eventually(lambda: len(world.gateways[0].sessions) == 1)
        # The registry hears of a disconnect after the session has ended here, and of its leave an Agent that never
        # heard of its enter hears nothing.
        await eventually(partial(alone, anna))
        # an announcement that was under way may have come before the leave, but not after it
        await eventually(lambda: len(anna.told("notify:leave_office")) == len(anna.told("notify:enter_office")))
        await eventually(partial(alone, anna))


@pytest.mark.rule("answers.rooms.gone-owner")
async def test_a_session_holds_only_the_seat_that_it_has(nats_url: str) -> None:
    async with gateway_world(nats_url) as world, connected(world.url) as box, connected(world.url) as other:
        assert await box.join("computer", "box", NEW) == [True, None]
        [session] = world.gateways[0].sessions.members()
        await also_in(nats_url, OLD, session)
        assert (await other.join("computer", "box", NEW))[0] is False
        assert await other.join("computer", "box", OLD) == [True, None]


def while_it_leaves(buses: InterposedBuses, meanwhile: Callable[[], Awaitable[None]]) -> None:
    """The first leave of the old office is carried out after that."""
    begun: list[asyncio.Task[None]] = []

    async def between(incoming: Incoming, handler: RequestHandler) -> Reply:
        if subjects.verb_of(incoming.subject) != "leave_office":
            return await handler(incoming)
        if not begun:
            begun.append(asyncio.ensure_future(meanwhile()))
        await asyncio.shield(begun[0])  # also the copies that the gateway sends when it waits for long
        return await handler(incoming)

    buses.between = between


async def swept(world: World, office: str, name: str) -> None:
    """A registry lets a member go that lives."""
    async with open_bus(BusConfig(url=world.nats_url)) as bus:
        store = await open_store(bus, bus.jetstream(), lease_s=LEASE_S, replicas=1)
        key = record_key(office, "computer", name)
        stored = await read_member(store.members, key)
        assert stored.record is not None
        await write_member(store.members, key, tombstone(stored.record), last=stored.revision)


@pytest.mark.rule("answers.rooms.switch.lost")
async def test_a_computer_that_loses_its_new_seat_during_a_switch_is_disconnected_and_can_join_again(
    nats_url: str,
) -> None:
    buses = InterposedBuses()
    async with (
        gateway_world(nats_url, bad=buses) as world,
        connected(world.url) as anna,
        connected(world.url) as box,
        connected(world.url) as other,
    ):
        await anna.join("agent", "anna", OLD)
        assert await box.join("computer", "box", OLD) == [True, None]

        async def taken() -> None:
            await swept(world, NEW, "box")
            assert await other.join("computer", "box", NEW) == [True, None]

        while_it_leaves(buses, taken)
        answers: list[object] = []
        switch = {"role": "computer", "name": "box", "office_id": NEW}
        await box.sio.emit("server:join_office", switch, namespace="/smcp", callback=lambda *said: answers.append(said))
        await asyncio.wait_for(box.gone.wait(), 30)
        assert answers == [], "a refusal would say that it is still in its old office"
        await eventually(lambda: anna.told("notify:leave_office") == [{"office_id": OLD, "computer": "box"}])
        assert len(world.gateways[0].computers) == 1
        async with connected(world.url) as again:
            assert await again.join("computer", "box", NEW) != [True, None], "the other Computer has that seat"
            assert await again.join("computer", "box", OLD) == [True, None]
            await eventually(lambda: len(anna.told("notify:enter_office")) == 2)


@pytest.mark.rule("answers.rooms.alternate")
async def test_a_joiner_receives_an_enter_that_is_announced_twice_once(nats_url: str) -> None:
    buses = InterposedBuses()
    announced: list[Incoming] = []

    async def note(incoming: Incoming) -> None:
        announced.append(incoming)

    async with (
        gateway_world(nats_url, bad=buses) as world,
        connected(world.url) as anna,
        connected(world.url) as box,
        connected(world.url) as car,
    ):
        await anna.join("agent", "anna", NEW)
        await box.join("computer", "box", OLD)
        bus = world.buses[0]
        await bus.listen(subjects.notify(NEW, "enter_office"), note)

        async def told_twice() -> None:
            assert await car.join("computer", "car", NEW) == [True, None]
            await eventually(lambda: announced)
            again = announced[0]
            await bus.publish(
                again.subject, again.body, headers=again.headers
            )  # as a registry does after another's death
            await bus.flush()
            assert await car.call("server:update_config", {"computer": "car"}) is None
            await eventually(lambda: anna.told("notify:update_config"))

        while_it_leaves(buses, told_twice)
        assert await box.join("computer", "box", NEW) == [True, None]
        await eventually(lambda: box.told("notify:update_config"))
        assert box.told("notify:enter_office") == [{"office_id": NEW, "computer": "car"}]
