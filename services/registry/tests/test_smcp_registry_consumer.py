"""The announcer's consumer is made as it has to be, and refused where it is otherwise."""

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


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_ack_pending": 1000}, "its max_ack_pending is 1000, 1 is needed"),
        ({"ack_wait": 30.0}, "its ack_wait is 30, 2 is needed"),
        ({"filter_subject": "$KV.members.lab.>"}, r"its filter_subject is \$KV.members.lab.>"),
        ({"deliver_policy": api.DeliverPolicy.NEW}, "its deliver_policy is new, all is needed"),
        ({"max_deliver": 3}, "its max_deliver is 3, -1 is needed"),
        ({"ack_wait": 30.0, "max_ack_pending": 5}, "max_ack_pending is 5.*ack_wait is 30.*delete it"),
    ],
)
async def test_a_consumer_that_would_tell_otherwise_is_refused_and_says_what_is_wrong(
    nats_url: str, change: dict[str, Any], said: str
) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus:
        store = await open_store(bus, bus.jetstream(), lease_s=10, replicas=1)
        await bus.jetstream().add_consumer(
            "KV_members", api.ConsumerConfig(name=CONSUMER, durable_name=CONSUMER, **(RIGHT | change))
        )
        with pytest.raises(StoreUnusable, match=said):
            await Announcer(bus, bus.jetstream(), store.members).prepare()
        with pytest.raises(StoreUnusable, match=said):
            async with open_registry(RegistrySettings(nats_url=nats_url), bus):
                raise AssertionError("it serves")


async def test_a_consumer_that_is_as_it_has_to_be_is_taken_whoever_made_it(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus:
        store = await open_store(bus, bus.jetstream(), lease_s=10, replicas=1)
        await bus.jetstream().add_consumer(
            "KV_members", api.ConsumerConfig(name=CONSUMER, durable_name=CONSUMER, description="by hand", **RIGHT)
        )
        for _ in range(2):
            await Announcer(bus, bus.jetstream(), store.members).prepare()
