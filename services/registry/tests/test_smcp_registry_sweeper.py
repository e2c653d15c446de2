"""Members leave when their process is dead, and only then."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from unittest import mock

import pytest

from smcp_bus.audit import Trail
from smcp_bus.bus import Incoming, Reply
from smcp_bus.nats.bus import Bus, BusConfig, open_bus
from smcp_bus.registry_contract import Assertion, LeaseRenewal, Member
from smcp_registry.admission import OwnerState
from smcp_registry.announcer import Announcer
from smcp_registry.app import EVENTS
from smcp_registry.audit import Audit
from smcp_registry.bucket_watch import Change, ConnectionWatch
from smcp_registry.leases import Leases, Owners
from smcp_registry.member_records import Announce, MemberRecord, record_key, tombstone
from smcp_registry.members_view import MembersView
from smcp_registry.store import AT_ONCE, Store, open_store, read_member, write_member
from smcp_registry.sweeper import Sweeper
from smcp_testing import registry_world
from smcp_testing.member_process import MemberProcess, dying_process, member_process, observe
from smcp_testing.nats_process import NatsServer
from smcp_testing.registry_world import recorded
from smcp_testing.waiting import BOUND_S, Stopwatch, eventually

LEASE_S = 1.0


registries = partial(registry_world.registries, lease_s=LEASE_S)


@asynccontextmanager
async def kept(member: MemberProcess) -> AsyncIterator[None]:
    """Renews the member's lease while the body runs."""

    async def keep() -> None:
        while True:
            with contextlib.suppress(Exception):
                await member.renew()
            await asyncio.sleep(LEASE_S / 3)

    keeping = asyncio.create_task(keep())
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


async def passed(seconds: float) -> None:
    until = time.monotonic() + seconds
    await eventually(lambda: time.monotonic() >= until, timeout=seconds + 1)


@pytest.mark.rule("answers.rooms.lease.dead")
async def test_members_of_a_dead_process_leave_once_each_after_about_a_lease(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=EVENTS)
    async with registries(nats_url), member_process(nats_url) as living, dying_process(nats_url) as dying, kept(living):
        observer = await observe(living.bus, "lab")
        await living.join("lab", "agent", "alice")
        await dying.member.renew()
        await passed(LEASE_S)
        await dying.member.renew()
        for number in range(20):
            await dying.member.join("lab", "computer", f"pc{number}", dying.member.claim(f"s{number}"))
        await dying.die()
        watch = Stopwatch()
        await eventually(lambda: len([told for told in observer.told if told.verb == "leave_office"]) == 20)
        assert watch.undisturbed < 2.5 * LEASE_S
        await passed(LEASE_S)
        assert all(observer.of(f"pc{number}") == ["enter_office", "leave_office"] for number in range(20))
        each_left = [("join", "ok"), ("leave", "expired")]
        assert all(recorded(caplog, f"pc{number}") == each_left for number in range(20))
        assert observer.doubled == 0
        assert await living.room("lab", "agent", "alice") == {("agent", "alice")}


@pytest.mark.rule("answers.rooms.lease.living")
async def test_a_process_without_a_lease_that_answers_keeps_its_members(nats_url: str) -> None:
    async with registries(nats_url), member_process(nats_url) as member:
        observer = await observe(member.bus, "lab")
        await member.join("lab", "computer", "pc")
        await eventually(lambda: member.asked >= 4)
        assert observer.of("pc") == ["enter_office"]


@pytest.mark.rule("answers.rooms.lease.paused")
async def test_a_process_suspended_past_its_lease_loses_its_members_until_it_answers(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=EVENTS)
    async with registries(nats_url), member_process(nats_url) as paused:
        observer = await observe(paused.bus, "lab")
        await paused.renew()
        await paused.join("lab", "computer", "pc")
        paused.answering.clear()
        await eventually(lambda: observer.of("pc") == ["enter_office", "leave_office"])
        assert not await paused.holds("lab", "computer", "pc")
        paused.answering.set()
        await paused.renew()
        member = Member(office="lab", role="computer", name="pc", claim=paused.claim())
        await paused.registry.assert_members(Assertion(members=[member]))
        assert await paused.holds("lab", "computer", "pc")
        assert recorded(caplog, "pc")[-2:] == [("leave", "expired"), ("join", "back")]


@pytest.mark.rule("answers.rooms.lease.outage")
async def test_nobody_leaves_when_nats_was_away_for_longer_than_a_lease(nats_server: NatsServer) -> None:
    url = nats_server.url
    async with (
        registries(url) as opened,
        member_process(url) as living,
        dying_process(url) as dying,
        open_bus(BusConfig(url=url)) as bus,
        kept(living),
    ):
        observer = await observe(bus, "lab")
        await living.join("lab", "computer", "living")
        await dying.member.join("lab", "computer", "dead")
        await eventually(lambda: len(observer.told) == 2)
        await nats_server.kill()
        await dying.die()
        await passed(2 * LEASE_S)
        back = time.monotonic()
        await nats_server.start()
        await eventually(lambda: bus.connected and not any(registry.readiness.problems() for registry in opened))
        await eventually(lambda: observer.of("dead") == ["enter_office", "leave_office"])
        assert time.monotonic() - back >= LEASE_S
        await passed(LEASE_S)
        assert observer.of("living") == ["enter_office"]
        assert (await living.registry.confirm(("lab", "computer", "living"), living.claim())).mine


async def test_an_owner_not_yet_reconnected_after_an_outage_of_nats_keeps_its_seat(nats_server: NatsServer) -> None:
    url = nats_server.url
    async with registries(url), member_process(url) as member, open_bus(BusConfig(url=url)) as bus, kept(member):
        observer = await observe(bus, "lab")
        await member.join("lab", "computer", "pc")
        for _ in range(3):
            await nats_server.restart()
            await eventually(lambda: member.bus.connected)
            await member.room("lab", "computer", "pc")
        await passed(1.5 * LEASE_S)
        assert observer.of("pc") == ["enter_office"]


def member(name: str, **changes: object) -> MemberRecord:
    fields = {
        "office": "lab", "role": "computer", "name": name, "session": name, "credential": "open", "process": "dead",
        "incarnation": "i", "identity": name, "announce": Announce.ENTER,
    }  # fmt: skip
    return MemberRecord.model_validate(fields | changes)


@asynccontextmanager
async def sweeping(
    bus: Bus, *, keep_tombstones_s: float = 600, patience_s: float = 0.5
) -> AsyncIterator[tuple[Sweeper, Store, MembersView]]:
    """A sweeper whose view is fed by the test. It sweeps once: no second sweep makes up for a store that is slow."""
    store = await open_store(bus, bus.jetstream(), lease_s=10, replicas=1)
    connection, view = ConnectionWatch(bus), MembersView()
    leases = Leases(store.leases, lease_s=10)
    owners = Owners(bus, connection, leases, patience_s=patience_s, settle_s=0)
    announcer = Announcer(bus, bus.jetstream(), store.members)
    await announcer.prepare()
    try:
        with mock.patch("smcp_registry.store.ANSWER_S", BOUND_S):
            yield (
                Sweeper(
                    store, view, owners, announcer,
                    Audit(Trail(logging.getLogger("test")), view, leases),
                    lease_s=10, keep_tombstones_s=keep_tombstones_s,
                ),
                store,
                view,
            )  # fmt: skip
    finally:
        connection.close()


async def put(store: Store, view: MembersView, record: MemberRecord, last: int = 0) -> int:
    key = record_key(record.office, record.role, record.name)
    revision = await write_member(store.members, key, record, last=last)
    view.apply(Change(key, record.model_dump_json().encode(), revision))
    return revision


@pytest.mark.rule("answers.rooms.moving.until")
async def test_the_sweeper_waits_for_moving_members(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus, sweeping(bus) as (sweeper, store, view):
        await put(store, view, member("moving", moving=True))
        await put(store, view, member("late", moving=True))
        await store.moving.mark(record_key("lab", "computer", "moving"), b"s", ttl_s=30)
        await sweeper.sweep()
        moving = await read_member(store.members, record_key("lab", "computer", "moving"))
        late = await read_member(store.members, record_key("lab", "computer", "late"))
        assert moving.record is not None
        assert moving.record.is_member
        assert late.record is not None
        assert not late.record.is_member
        assert late.record.announce is Announce.LEAVE


async def test_the_sweeper_leaves_a_member_that_another_process_took_over(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus, sweeping(bus) as (sweeper, store, view):
        revision = await put(store, view, member("pc"))
        key = record_key("lab", "computer", "pc")
        await write_member(store.members, key, member("pc", process="living"), last=revision)
        await sweeper.sweep()
        stored = await read_member(store.members, key)
        assert stored.record is not None
        assert stored.record.is_member
        assert stored.record.process == "living"


async def test_concurrent_sweeps_write_one_tombstone(nats_url: str) -> None:
    async with (
        open_bus(BusConfig(url=nats_url)) as bus,
        sweeping(bus) as (one, store, view),
        sweeping(bus) as (other, _, other_view),
    ):
        revision = await put(store, view, member("pc"))
        key = record_key("lab", "computer", "pc")
        other_view.apply(Change(key, member("pc").model_dump_json().encode(), revision))
        await asyncio.gather(one.sweep(), other.sweep())
        assert (await read_member(store.members, key)).revision == revision + 1


async def test_old_tombstones_are_purged_only_after_their_announcement(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus, sweeping(bus, keep_tombstones_s=0) as (sweeper, store, view):
        revision = await put(store, view, member("gone"))
        await put(store, view, tombstone(member("gone")), last=revision)
        key = record_key("lab", "computer", "gone")
        await sweeper.purge()
        assert (await read_member(store.members, key)).record is not None
        async with open_bus(BusConfig(url=nats_url)) as telling:
            announcer = Announcer(telling, telling.jetstream(), store.members)
            announcing = asyncio.create_task(announcer.run())
            upto = revision + 1

            async def announced() -> bool:
                return await announcer.announced_upto() >= upto

            await eventually(announced)
            announcing.cancel()
            await asyncio.gather(announcing, return_exceptions=True)
        await sweeper.purge()
        assert (await read_member(store.members, key)).record is not None, "the newest record dates the bucket"
        await put(store, view, member("newer"))
        await sweeper.purge()
        assert (await read_member(store.members, key)).revision == 0
        assert view.tombstones == {}


async def test_a_seat_claimed_again_survives_the_purge_of_its_tombstone(nats_url: str) -> None:
    async with (
        registries(nats_url, count=1),
        open_bus(BusConfig(url=nats_url)) as bus,
        member_process(nats_url) as back,
    ):
        store = await open_store(bus, bus.jetstream(), lease_s=LEASE_S, replicas=1)
        await back.join("lab", "computer", "pc")
        left = await back.leave("lab", "computer", "pc")
        joined = await back.join("lab", "computer", "pc")
        await store.members.purge(record_key("lab", "computer", "pc"), upto=left.revision)
        assert await back.room("lab", "computer", "pc", after=joined.revision) == {("computer", "pc")}
        assert (await back.join("lab", "computer", "pc")).unchanged


async def is_member(store: Store, name: str) -> bool:
    record = (await read_member(store.members, record_key("lab", "computer", name))).record
    return record is not None and record.is_member


async def test_a_process_that_renews_its_lease_during_a_sweep_keeps_its_members(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Owners.ask

    async def returns(owners: Owners, credential: str, process: str, *given: Any, **named: Any) -> OwnerState:
        """When it is found gone, it takes its lease before the sweeper goes on."""
        owner = await ask(owners, credential, process, *given, **named)
        if owner is OwnerState.GONE:
            await owners.leases.renew(credential, process, LeaseRenewal())
        return owner

    monkeypatch.setattr(Owners, "ask", returns)
    async with open_bus(BusConfig(url=nats_url)) as bus, sweeping(bus) as (sweeper, store, view):
        for name in ("a", "b", "c"):
            await put(store, view, member(name))
        await sweeper.sweep()
        assert all([await is_member(store, name) for name in ("a", "b", "c")])


async def test_the_sweeper_waits_for_a_seat_that_begins_to_move_during_the_sweep(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus, sweeping(bus) as (sweeper, store, view):
        revision = await put(store, view, member("pc"))
        await write_member(store.members, record_key("lab", "computer", "pc"), member("pc", moving=True), last=revision)
        await sweeper.sweep()
        assert await is_member(store, "pc")


async def test_removing_a_dead_processs_members_does_not_wait_for_unresponsive_processes(nats_url: str) -> None:
    async with (
        open_bus(BusConfig(url=nats_url)) as bus,
        sweeping(bus, patience_s=20) as (sweeper, store, view),
        open_bus(BusConfig(url=nats_url)) as silent,
    ):
        asked, answering = asyncio.Semaphore(0), asyncio.Event()

        async def alive(_: Incoming) -> Reply:
            asked.release()
            await answering.wait()
            return Reply()

        await silent.serve("smcp.hosts.v1.silent.*.alive", alive)
        await put(store, view, member("dead"))
        living = [f"pc{number}" for number in range(2 * AT_ONCE)]
        for name in living:
            await put(store, view, member(name, credential="silent", process=name))
        sweeps = asyncio.create_task(sweeper.sweep())
        for _ in range(AT_ONCE):
            await asked.acquire()

        async def left() -> bool:
            return not await is_member(store, "dead")

        await eventually(left)
        assert not sweeps.done()
        answering.set()
        await sweeps
        assert all([await is_member(store, name) for name in living])
