"""Enters and leaves come from the log: in order, from any registry, none lost when one dies."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import orjson
import pytest
from nats.js import JetStreamContext, api

from smcp_bus.nats.bus import Bus, BusConfig, open_bus
from smcp_registry.announcer import CONSUMER, Announcer
from smcp_registry.app import Registry, open_registry
from smcp_registry.member_records import Announce, MemberRecord, record_key
from smcp_registry.settings import RegistrySettings
from smcp_registry.store import StoreUnusable, open_store, write_member
from smcp_testing.member_process import member_process, observe
from smcp_testing.nats_process import NatsServer
from smcp_testing.waiting import eventually

LEASE_S = 600.0
"""Longer than any test: members whose process nobody has started are not swept."""


@asynccontextmanager
async def registry(url: str) -> AsyncIterator[Registry]:
    settings = RegistrySettings(nats_url=url, lease_s=LEASE_S)
    async with open_bus(BusConfig(url=url)) as bus, open_registry(settings, bus) as opened:
        yield opened


def entered(name: str, office: str = "lab") -> MemberRecord:
    return MemberRecord(
        office=office, role="computer", name=name, session=name, credential="open", process="p", incarnation="i",
        identity=name, announce=Announce.ENTER,
    )  # fmt: skip


async def prepared(bus: Bus) -> tuple[JetStreamContext, Announcer]:
    store = await open_store(bus, bus.jetstream(), lease_s=LEASE_S, replicas=1)
    announcer = Announcer(bus, bus.jetstream(), store.members)
    await announcer.prepare()
    return bus.jetstream(), announcer


async def test_many_registries_make_the_shared_consumer_once(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus:
        store = await open_store(bus, bus.jetstream(), lease_s=LEASE_S, replicas=1)
        announcers = [Announcer(bus, bus.jetstream(), store.members) for _ in range(10)]
        await asyncio.gather(*(announcer.prepare() for announcer in announcers))
        [consumer] = await bus.jetstream().consumers_info("KV_members")
        assert consumer.name == CONSUMER
        assert consumer.config.max_ack_pending == 1
        assert consumer.config.ack_wait == 2


@pytest.mark.rule("answers.nats.log")
async def test_a_second_registry_announces_within_three_seconds_a_record_that_the_first_did_not_acknowledge(
    nats_url: str,
) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus, AsyncExitStack() as stack:
        js, _ = await prepared(bus)
        observer = await observe(bus, "lab")
        members = (await open_store(bus, js, lease_s=LEASE_S, replicas=1)).members
        await write_member(members, record_key("lab", "computer", "pc0"), entered("pc0"), last=0)
        # what a registry does that is killed between the claim and its announcement: it took the record, and is gone
        dead = await js.pull_subscribe_bind(consumer=CONSUMER, stream="KV_members")
        [taken] = await dead.fetch(1, timeout=30)
        assert MemberRecord.model_validate_json(taken.data).name == "pc0"
        await stack.enter_async_context(registry(nats_url))
        for name in ("pc1", "pc2"):
            await write_member(members, record_key("lab", "computer", name), entered(name), last=0)
        await eventually(lambda: len(observer.told) == 3)
        assert [told.name for told in observer.told] == ["pc0", "pc1", "pc2"]


async def test_a_restarted_registry_announces_earlier_changes(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus:
        async with registry(nats_url), member_process(nats_url) as member:
            await member.join("lab", "computer", "before")
        observer = await observe(bus, "lab")
        members = (await open_store(bus, bus.jetstream(), lease_s=LEASE_S, replicas=1)).members
        for number in range(50):
            name = f"pc{number}"
            await write_member(members, record_key("lab", "computer", name), entered(name), last=0)
        assert observer.told == []
        async with registry(nats_url), registry(nats_url):
            await eventually(lambda: len(observer.told) == 50)
        assert [told.name for told in observer.told] == [f"pc{number}" for number in range(50)]
        assert observer.of("before") == []


async def test_an_unreadable_record_does_not_block_the_next_announcements(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus, registry(nats_url):
        observer = await observe(bus, "lab")
        members = (await open_store(bus, bus.jetstream(), lease_s=LEASE_S, replicas=1)).members
        await members.write("lab.agent", b"not a record", last=0)
        await members.write("lab.computer.odd", orjson.dumps({"office": "lab"}), last=0)
        await write_member(members, record_key("lab", "computer", "pc"), entered("pc"), last=0)
        await eventually(lambda: observer.of("pc") == ["enter_office"])


async def test_a_deleted_consumer_is_made_again_and_repeats_carry_old_epochs(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus, registry(nats_url), member_process(nats_url) as member:
        observer = await observe(bus, "lab")
        await member.join("lab", "computer", "pc")
        await eventually(lambda: observer.of("pc") == ["enter_office"])
        await bus.jetstream().delete_consumer("KV_members", CONSUMER)
        await member.join("lab", "computer", "pc2")
        await eventually(lambda: observer.of("pc2") == ["enter_office"])
        assert observer.of("pc") == ["enter_office"]


async def test_announcing_goes_on_after_nats_was_away(nats_server: NatsServer) -> None:
    url = nats_server.url
    async with (
        open_bus(BusConfig(url=url)) as bus,
        registry(url) as one,
        registry(url) as other,
        member_process(url) as member,
    ):
        observer = await observe(bus, "lab")
        await member.join("lab", "computer", "before")
        await eventually(lambda: observer.of("before") == ["enter_office"])
        await nats_server.kill()
        await eventually(lambda: "announcer" in one.readiness.problems())
        await nats_server.start()
        await eventually(lambda: bus.connected and member.bus.connected)
        await eventually(lambda: not (one.readiness.problems() or other.readiness.problems()))
        for number in range(10):
            await member.join("lab", "computer", f"pc{number}")
        await eventually(lambda: len(observer.told) == 11)
        assert observer.of("before") == ["enter_office"]


@pytest.mark.rule("answers.nats.log")
async def test_five_hundred_changes_are_told_in_the_order_of_the_log(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus, registry(nats_url), registry(nats_url):
        observer = await observe(bus, "lab")
        members = (await open_store(bus, bus.jetstream(), lease_s=LEASE_S, replicas=1)).members
        written = asyncio.Semaphore(64)

        async def write(number: int) -> None:
            async with written:
                name = f"pc{number}"
                await write_member(members, record_key("lab", "computer", name), entered(name), last=0)

        await asyncio.gather(*map(write, range(500)))
        await eventually(lambda: len(observer.told) == 500)
        epochs = [told.epoch for told in observer.told]
        assert epochs == sorted(epochs)


RIGHT: dict[str, Any] = {
    "ack_policy": api.AckPolicy.EXPLICIT, "ack_wait": 2.0, "max_ack_pending": 1, "filter_subject": "$KV.members.>",
    "deliver_policy": api.DeliverPolicy.ALL,
}  # fmt: skip


async def test_a_consumer_that_would_announce_otherwise_is_changed(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus:
        js = bus.jetstream()
        store = await open_store(bus, js, lease_s=10, replicas=1)
        otherwise = RIGHT | {"max_ack_pending": 1000, "ack_wait": 30.0, "max_deliver": 3}
        await js.add_consumer("KV_members", api.ConsumerConfig(name=CONSUMER, durable_name=CONSUMER, **otherwise))
        for _ in range(2):
            await Announcer(bus, js, store.members).prepare()
        config = (await js.consumer_info("KV_members", CONSUMER)).config
        assert {field: getattr(config, field) for field in RIGHT} == RIGHT
        assert config.max_deliver == -1


async def test_a_consumer_that_skips_records_and_cannot_be_changed_is_refused(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus:
        js = bus.jetstream()
        await open_store(bus, js, lease_s=10, replicas=1)
        otherwise = RIGHT | {"deliver_policy": api.DeliverPolicy.NEW}
        await js.add_consumer("KV_members", api.ConsumerConfig(name=CONSUMER, durable_name=CONSUMER, **otherwise))
        with pytest.raises(StoreUnusable, match=r"consumer cannot be made: .*deliver policy"):
            async with open_registry(RegistrySettings(nats_url=nats_url), bus):
                raise AssertionError("it serves")
