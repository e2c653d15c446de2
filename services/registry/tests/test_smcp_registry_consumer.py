"""The announcer's consumer is brought to what it has to be, or refused."""

from typing import Any

import pytest
from nats.js import api

from smcp_bus.nats.bus import BusConfig, open_bus
from smcp_registry.announcer import CONSUMER, Announcer
from smcp_registry.app import open_registry
from smcp_registry.settings import RegistrySettings
from smcp_registry.store import StoreUnusable, open_store

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
