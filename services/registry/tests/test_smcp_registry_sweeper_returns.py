"""A process that comes back while it is being swept keeps its members."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest import mock

from smcp_bus.audit import Trail
from smcp_bus.bus import Incoming, Reply
from smcp_bus.nats.bus import BusConfig, NatsBus, open_bus
from smcp_bus.registry_contract import LeaseRenewal
from smcp_registry.admission import Owner
from smcp_registry.announcer import Announcer
from smcp_registry.audit import Audit
from smcp_registry.bucket_watch import Change, ConnectionWatch
from smcp_registry.leases import Leases, Owners
from smcp_registry.member_records import Announce, MemberRecord, record_key
from smcp_registry.members_view import MembersView
from smcp_registry.store import AT_ONCE, Store, open_store, read_member, write_member
from smcp_registry.sweeper import Sweeper
from smcp_testing.waiting import BOUND_S, eventually


class ReturningOwners(Owners):
    """The real question; when it is answered GONE, the process takes its lease before the sweeper goes on."""

    returning: Leases | None = None

    async def ask(
        self,
        credential: str,
        process: str,
        session: str | None,
        *,
        incarnation: str | None = None,
        seat: MemberRecord | None = None,
    ) -> Owner:
        owner = await super().ask(credential, process, session, incarnation=incarnation, seat=seat)
        if owner is Owner.GONE and self.returning is not None:
            await self.returning.renew(credential, process, LeaseRenewal())
        return owner


class World:
    def __init__(self, bus: NatsBus, store: Store, connection: ConnectionWatch, *, patience_s: float) -> None:
        self.store = store
        self.view = MembersView()
        self.leases = Leases(store.leases, lease_s=10)
        self.owners = ReturningOwners(bus, connection, self.leases, patience_s=patience_s, settle_s=0)
        announcer = Announcer(bus, bus.jetstream(), store.members)
        self.sweeper = Sweeper(
            connection,
            store,
            self.view,
            self.leases,
            self.owners,
            announcer,
            Audit(Trail(logging.getLogger("test")), self.view, self.leases),
            lease_s=10,
        )

    async def put(self, name: str, *, credential: str = "open", process: str = "dead", last: int = 0) -> str:
        record = MemberRecord(
            office="lab", role="computer", name=name, session=name, credential=credential, process=process,
            incarnation="i", identity=name, announce=Announce.ENTER,
        )  # fmt: skip
        key = record_key("lab", "computer", name)
        revision = await write_member(self.store.members, key, record, last=last)
        self.view.apply(Change(key, record.model_dump_json().encode(), revision))
        return key

    async def is_member(self, key: str) -> bool:
        record = (await read_member(self.store.members, key)).record
        return record is not None and record.is_member


@asynccontextmanager
async def world(url: str, *, patience_s: float = 0.5) -> AsyncIterator[tuple[NatsBus, World]]:
    async with open_bus(BusConfig(url=url)) as bus:
        connection = ConnectionWatch(bus)
        try:
            store = await open_store(bus, bus.jetstream(), lease_s=10, replicas=1)
            with mock.patch("smcp_registry.store.ANSWER_S", BOUND_S):  # it sweeps once
                yield bus, World(bus, store, connection, patience_s=patience_s)
        finally:
            connection.close()


async def test_a_process_that_renews_its_lease_during_a_sweep_keeps_its_members(nats_url: str) -> None:
    async with world(nats_url) as (_, swept):
        keys = [await swept.put(f"pc{number}") for number in range(3)]
        swept.owners.returning = swept.leases
        await swept.sweeper.sweep()
        assert all([await swept.is_member(key) for key in keys])


async def test_the_sweeper_waits_for_a_seat_that_begins_to_move_during_the_sweep(nats_url: str) -> None:
    async with world(nats_url) as (_, swept):
        key = await swept.put("pc")
        stored = await read_member(swept.store.members, key)
        assert stored.record is not None
        moving = stored.record.model_copy(update={"moving": True})
        await write_member(swept.store.members, key, moving, last=stored.revision)
        await swept.sweeper.sweep()
        assert await swept.is_member(key)


async def test_removing_a_dead_processs_members_does_not_wait_for_unresponsive_processes(nats_url: str) -> None:
    async with world(nats_url, patience_s=20) as (bus, swept), open_bus(BusConfig(url=nats_url)) as silent:
        asked = asyncio.Semaphore(0)
        answering = asyncio.Event()

        async def alive(_: Incoming) -> Reply:
            asked.release()
            await answering.wait()
            return Reply()

        await silent.serve("smcp.hosts.v1.silent.*.alive", alive)
        dead = await swept.put("dead")
        living = [
            await swept.put(f"pc{number}", credential="silent", process=f"p{number}") for number in range(2 * AT_ONCE)
        ]
        sweeping = asyncio.create_task(swept.sweeper.sweep())
        for _ in range(AT_ONCE):
            await asked.acquire()

        async def left() -> bool:
            return not await swept.is_member(dead)

        await eventually(left)
        assert not sweeping.done()
        answering.set()
        await sweeping
        assert all([await swept.is_member(key) for key in living])
        assert bus.connected
