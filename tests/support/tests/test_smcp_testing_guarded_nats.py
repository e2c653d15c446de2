"""The gateways, registries and Computers of the tests have the permissions that they have where they are deployed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from smcp_bus import subjects
from smcp_bus.bus import Incoming, Reply
from smcp_bus.errors import BusError
from smcp_bus.nats.bus import NatsBus, open_bus
from smcp_bus.nats.config import BusConfig, Credentials
from smcp_testing.gateway_world import connected, gateway_world, reply
from smcp_testing.guarded_nats import GuardedUrl

OFFICE = "办公室 1.*.>"


@asynccontextmanager
async def holding(nats_url: str, credentials: Credentials | None) -> AsyncIterator[NatsBus]:
    async with open_bus(BusConfig(url=nats_url, credentials=credentials, drain_timeout=0)) as bus:
        yield bus


async def may_listen(bus: NatsBus, subject: str) -> bool:
    async def hear(_: Incoming) -> None:
        """Nothing is said."""

    try:
        await bus.listen(subject, hear)
    except BusError:
        return False
    return True


async def test_nobody_listens_to_more_than_its_credential_is_for_but_the_test_itself(nats_url: str) -> None:
    assert isinstance(nats_url, GuardedUrl)
    nats = nats_url.nats
    secret = ("$KV.>", subjects.client_all(OFFICE, "box"))
    holders = [await nats.service("gateway"), await nats.service("registry"), await nats.computer(OFFICE, "x")]
    for credentials in holders:
        async with holding(nats_url, credentials) as bus:
            assert [await may_listen(bus, subject) for subject in secret] == [False, False]
            own = credentials.kind != "registry"
            assert await may_listen(bus, subjects.notify_all(OFFICE)) is own
    async with holding(nats_url, None) as bus:
        assert [await may_listen(bus, subject) for subject in secret] == [True, True]


async def test_who_was_there_stays_when_there_are_more(nats_url: str) -> None:
    assert isinstance(nats_url, GuardedUrl)
    async with holding(nats_url, await nats_url.nats.service("gateway")) as first:
        later = [await nats_url.nats.service("gateway") for _ in range(5)]
        assert [each.name for each in later] == [f"gateway-{number}" for number in range(2, 7)]
        async with holding(nats_url, later[-1]) as bus:
            assert await may_listen(bus, subjects.notify_all(OFFICE))
        assert first.connected


async def test_everybody_in_a_world_has_a_credential(nats_url: str) -> None:
    async def serve(verb: str, _: Incoming) -> Reply:
        return reply({"tools": [], "req_id": "1"})

    async with (
        gateway_world(nats_url, gateways=2) as world,
        world.computer(OFFICE, "box", serve) as box,
        connected(world.url) as anna,
    ):
        assert [bus.credential for bus in world.buses] == ["gateway-1", "gateway-2"]
        assert box.bus.credential == "host-1"
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        answer = await anna.call("client:get_tools", {"agent": "anna", "req_id": "1", "computer": "box"})
        assert answer == {"tools": [], "req_id": "1"}
        with pytest.raises(BusError):
            await box.bus.request(subjects.server(OFFICE, "computer", "other", "list_room"), b"{}", timeout=5)
