"""Claims of a seat whose owner is dead, is suspended, or has no lease."""

import asyncio
import time
from pathlib import Path

import pytest

from smcp_bus.nats.bus import BusConfig, open_bus
from smcp_bus.registry_contract import Assertion, AssertOutcome, Member
from smcp_proto.errors import NotAllowed, NotInOffice
from smcp_registry.admission import OwnerState
from smcp_registry.bucket_watch import ConnectionWatch
from smcp_registry.leases import Leases, Owners
from smcp_registry.store import open_store
from smcp_testing.member_process import dying_process, member_process, observe
from smcp_testing.nats_cluster import NODES, lead, open_cluster
from smcp_testing.registry_world import registries
from smcp_testing.waiting import Stopwatch, eventually


@pytest.mark.rule("answers.rooms.leave-foreign")
async def test_only_the_member_itself_can_leave(nats_url: str) -> None:
    async with registries(nats_url), member_process(nats_url) as member, member_process(nats_url) as other:
        with pytest.raises(NotInOffice):
            await member.leave("lab", "computer", "pc")
        await member.join("lab", "computer", "pc")
        with pytest.raises(NotInOffice):
            await other.leave("lab", "computer", "pc")
        with pytest.raises(NotInOffice):
            await member.leave("lab", "computer", "pc", member.claim(incarnation="an older one"))
        assert await member.room("lab", "computer", "pc") == {("computer", "pc")}


@pytest.mark.rule("answers.rooms.gone-owner")
async def test_a_dead_owners_seat_is_given_away_with_leave_and_enter(nats_url: str) -> None:
    async with registries(nats_url), member_process(nats_url) as heir, dying_process(nats_url) as dying:
        observer = await observe(heir.bus, "lab")
        await dying.member.renew()
        await dying.member.join("lab", "agent", "alice")
        await dying.die()
        joined = await heir.join("lab", "agent", "bob")
        await eventually(lambda: len(observer.told) == 3)
        assert [(told.verb, told.name) for told in observer.told] == [
            ("enter_office", "alice"), ("leave_office", "alice"), ("enter_office", "bob"),
        ]  # fmt: skip
        assert [told.epoch for told in observer.told[1:]] == [2 * joined.revision, 2 * joined.revision + 1]


@pytest.mark.rule("answers.rooms.gone-owner")
async def test_the_seat_of_a_closed_session_is_given_away(nats_url: str) -> None:
    async with registries(nats_url), member_process(nats_url) as gateway:
        observer = await observe(gateway.bus, "lab")
        await gateway.join("lab", "computer", "pc", gateway.claim("first"))
        with pytest.raises(NotAllowed):
            await gateway.join("lab", "computer", "pc", gateway.claim("second"))
        gateway.sessions.remove("first")
        await gateway.join("lab", "computer", "pc", gateway.claim("second"))
        await eventually(lambda: observer.of("pc") == ["enter_office", "leave_office", "enter_office"])


@pytest.mark.rule("answers.rooms.admission.silent")
async def test_a_suspended_owner_keeps_its_seat_while_its_lease_lives(nats_url: str) -> None:
    async with registries(nats_url, lease_s=30), member_process(nats_url) as paused, member_process(nats_url) as heir:
        await paused.renew()
        await paused.join("lab", "computer", "pc")
        paused.answering.clear()
        with pytest.raises(NotAllowed):
            await heir.join("lab", "computer", "pc")


@pytest.mark.rule("answers.rooms.lease.living")
async def test_a_registry_that_stood_still_does_not_take_a_living_owner_for_dead(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus, member_process(nats_url) as living:
        leases = Leases((await open_store(bus, bus.jetstream(), lease_s=10, replicas=1)).leases, lease_s=10)
        watch = ConnectionWatch(bus)
        asking = asyncio.create_task(Owners(bus, watch, leases, patience_s=1.0).ask("open", living.process, None))
        await asyncio.sleep(0)
        time.sleep(1.5)  # noqa: ASYNC251 -- the whole process hangs, as a suspended one does
        assert await asking is OwnerState.ALIVE
        watch.close()


@pytest.mark.rule("answers.rooms.admission.silent")
async def test_an_agent_takes_its_seat_back_from_a_suspended_owner_with_a_lease(nats_url: str) -> None:
    async with (
        registries(nats_url, lease_s=30) as [first, _],
        member_process(nats_url) as paused,
        member_process(nats_url) as other,
    ):
        observer = await observe(other.bus, "lab")
        await paused.renew()
        await paused.join("lab", "agent", "anna", paused.claim(identity="anna"))
        paused.answering.clear()
        with pytest.raises(NotAllowed):
            await other.join("lab", "agent", "anna", other.claim(identity="another"))
        back = other.claim(identity="anna")
        await other.join("lab", "agent", "anna", back)
        assert first.leases.revision("open", paused.process) is not None
        await eventually(lambda: observer.of("anna") == ["enter_office", "leave_office", "enter_office"])
        assert await other.holds("lab", "agent", "anna", back)
        assert not await paused.holds("lab", "agent", "anna", paused.claim(identity="anna"))


@pytest.mark.rule("answers.rooms.admission.silent")
async def test_an_owner_that_was_suspended_does_not_take_its_seat_back_from_a_suspended_one(nats_url: str) -> None:
    async with registries(nats_url, lease_s=30), member_process(nats_url) as old, member_process(nats_url) as new:
        await new.renew()
        await new.join("lab", "agent", "anna", new.claim(identity="anna"))
        new.answering.clear()
        member = Member(office="lab", role="agent", name="anna", claim=old.claim(identity="anna"))
        result = await old.registry.assert_members(Assertion(members=[member]))
        assert [each.outcome for each in result.members] == [AssertOutcome.REFUSED]


async def test_a_name_is_claimed_ten_milliseconds_after_its_lease_expired(nats_url: str) -> None:
    async with (
        registries(nats_url, lease_s=1) as [first, _],
        member_process(nats_url) as paused,
        member_process(nats_url) as heir,
    ):
        observer = await observe(heir.bus, "lab")
        await paused.renew()
        await paused.join("lab", "computer", "pc")
        paused.answering.clear()

        async def expired() -> bool:
            return not await first.leases.lives("open", paused.process)

        await eventually(expired)
        watch = Stopwatch()
        await eventually(lambda: watch.took >= 0.01)
        joined = await heir.join("lab", "computer", "pc")
        assert not joined.unchanged
        assert watch.undisturbed < 2.5
        assert await heir.room("lab", "computer", "pc") == {("computer", "pc")}
        await eventually(lambda: observer.of("pc") == ["enter_office", "leave_office", "enter_office"])
        assert not await paused.renew()
        assert not await paused.holds("lab", "computer", "pc")


BACK_S = 1.0
"""After which the owner finds another node."""


async def test_an_owner_that_reconnects_to_another_node_keeps_its_seat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        open_cluster(tmp_path) as (sound, _, hurt),
        registries(sound.url, kv_replicas=NODES),
        member_process(hurt.url) as owner,
        member_process(sound.url) as heir,
    ):
        await lead(heir.bus, sound)
        await owner.renew()
        await owner.join("lab", "computer", "pc")
        monkeypatch.setattr("smcp_bus.nats.client._RECONNECT_S", (BACK_S, BACK_S))
        loop = asyncio.get_running_loop()
        began = loop.time()
        await hurt.kill()
        with pytest.raises(NotAllowed):
            await heir.join("lab", "computer", "pc")
        assert loop.time() - began > BACK_S, "it was asked when it was back"
        assert owner.bus.connected
