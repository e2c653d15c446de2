"""The watched view: all entries, every change, nothing lost over breaks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from smcp_bus.nats.bus import Bus, BusConfig, open_bus
from smcp_registry.bucket_watch import ConnectionWatch, follow
from smcp_registry.leases import Leases
from smcp_registry.member_records import MemberRecord, State, record_key, tombstone
from smcp_registry.members_view import MembersView
from smcp_registry.store import Bucket, Conflict, Store, open_store, read_member, write_member
from smcp_service.lifecycle import background
from smcp_testing.nats_process import NatsServer
from smcp_testing.waiting import BOUND_S, eventually


def record(name: str, office: str = "lab", process: str = "p") -> MemberRecord:
    return MemberRecord(
        office=office, role="computer", name=name, session=name, credential="c", process=process,
        incarnation="i", identity=name,
    )  # fmt: skip


@asynccontextmanager
async def watched(bus: Bus, lease_s: float = 10) -> AsyncIterator[tuple[Store, MembersView, Leases]]:
    store = await open_store(bus, bus.jetstream(), lease_s=lease_s, replicas=1)
    view, leases, connection = MembersView(), Leases(store.leases, lease_s=lease_s), ConnectionWatch(bus)
    try:
        async with background() as tasks:
            js = bus.jetstream()
            tasks.start(connection.keep("members", partial(follow, js, "members", view)), name="members")
            tasks.start(connection.keep("leases", partial(follow, js, "leases", leases)), name="leases")
            async with asyncio.timeout(30):
                await view.synced.wait()
                await leases.synced.wait()
            yield store, view, leases
    finally:
        connection.close()


async def put(members: Bucket, written: MemberRecord) -> int:
    key = record_key(written.office, written.role, written.name)
    return await write_member(members, key, written, last=(await read_member(members, key)).revision)


def names(view: MembersView, office: str = "lab") -> set[str]:
    return {entry.record.name for entry in view.members(office)}


async def test_a_view_that_starts_late_has_earlier_and_later_entries(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus:
        async with watched(bus) as (store, view, _):
            assert view.revision == 0
            for number in range(100):
                await put(store.members, record(f"pc{number}"))
            last = await put(store.members, tombstone(record("pc0")))
        async with watched(bus) as (store, view, _):
            assert names(view) == {f"pc{number}" for number in range(1, 100)}
            assert view.revision == last
            assert view.owners() == {("c", "p"): {record_key("lab", "computer", name) for name in names(view)}}
            last = await put(store.members, record("late", office="other", process="q"))
            assert await view.reached(last, BOUND_S)
            assert names(view, "other") == {"late"}
            last = await put(store.members, tombstone(record("late", office="other", process="q")))
            assert await view.reached(last, BOUND_S)
            assert names(view, "other") == set()
            assert ("c", "q") not in view.owners()
            assert set(view.tombstones) == {
                record_key("lab", "computer", "pc0"),
                record_key("other", "computer", "late"),
            }


async def test_waiting_for_a_revision_of_a_view_is_bounded(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus, watched(bus) as (_, view, _leases):
        assert not await view.reached(1_000, 0.05)


async def test_a_view_misses_no_change_made_while_its_connection_was_down(nats_server: NatsServer) -> None:
    async with (
        open_bus(BusConfig(url=nats_server.url)) as bus,
        open_bus(BusConfig(url=nats_server.url)) as other,
        watched(bus) as (_, view, _leases),
    ):
        members = (await open_store(other, other.jetstream(), lease_s=10, replicas=1)).members
        await put(members, record("before"))
        await eventually(lambda: names(view) == {"before"})
        await nats_server.restart()
        await eventually(lambda: other.connected)
        # the other may be back before the view is
        await put(members, tombstone(record("before")))
        last = await put(members, record("after"))
        assert await view.reached(last, BOUND_S)
        assert names(view) == {"after"}


async def test_a_vanished_consumer_is_replaced(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus, watched(bus) as (store, view, _):
        js = bus.jetstream()
        for consumer in await js.consumers_info("KV_members"):
            assert await js.delete_consumer("KV_members", consumer.name)
        last = await put(store.members, record("meanwhile"))
        assert await view.reached(last, BOUND_S)
        assert names(view) == {"meanwhile"}


async def test_a_view_equals_the_store_after_a_load(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus, watched(bus) as (store, view, _):

        async def churn(number: int) -> int:
            last = 0
            for turn in range(20):
                name = f"pc{(number + turn) % 10}"
                written = record(name, process=f"p{turn % 3}")
                try:
                    last = await put(store.members, written if turn % 3 else tombstone(written))
                except Conflict:
                    continue
            return last

        last = max(await asyncio.gather(*map(churn, range(10))))
        assert await view.reached(last, BOUND_S)
        stored = {}
        for number in range(10):
            present = (await read_member(store.members, record_key("lab", "computer", f"pc{number}"))).record
            assert present is not None
            if present.state is State.MEMBER:
                stored[present.name] = present
        assert {entry.record.name: entry.record for entry in view.members("lab")} == stored
        owned = {key for keys in view.owners().values() for key in keys}
        assert owned == {record_key("lab", "computer", name) for name in stored}


async def test_an_unreadable_record_is_no_member_and_its_seat_can_be_claimed(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus, watched(bus) as (store, view, _):
        key = record_key("lab", "computer", "pc")
        last = await store.members.write(key, b"not a record", last=0)
        assert await view.reached(last, BOUND_S)
        assert names(view) == set()
        assert (await read_member(store.members, key)).record is None
        await put(store.members, record("pc"))
        await eventually(lambda: names(view) == {"pc"})


async def test_an_expired_lease_leaves_the_view(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus, watched(bus, lease_s=1) as (store, _, leases):
        await store.leases.write("c.p", b"{}", last=0)
        await eventually(leases.ran_out.is_set)  # of a lease that the view had
        assert leases.revision("c", "p") is None
