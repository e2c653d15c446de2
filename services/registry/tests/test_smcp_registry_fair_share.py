"""The fair share of a gateway: all sockets by all gateways that take new ones, the same at every registry."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import orjson
import pytest

from smcp_bus import subjects
from smcp_bus.nats.bus import Bus, BusConfig, open_bus
from smcp_bus.registry_client import RegistryClient
from smcp_bus.registry_contract import LeaseRenewal, LeaseState
from smcp_proto.errors import RateLimited
from smcp_registry import leases
from smcp_registry.app import Registry, open_registry
from smcp_registry.bucket_watch import Change
from smcp_registry.leases import Leases
from smcp_registry.member_records import lease_key
from smcp_registry.settings import RegistrySettings
from smcp_registry.store import open_store
from smcp_testing.waiting import eventually

COMPUTER = LeaseRenewal()


def gateway(sockets: int, *, accepting: bool = True) -> LeaseRenewal:
    return LeaseRenewal(sockets=sockets, accepting=accepting)


@asynccontextmanager
async def registries(url: str, *, lease_s: float = 10) -> AsyncIterator[tuple[Bus, list[Registry]]]:
    """Two of them, and a bus to ask them on."""
    settings = RegistrySettings(nats_url=url, lease_s=lease_s)
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(2):
            bus = await stack.enter_async_context(open_bus(BusConfig(url=url)))
            opened.append(await stack.enter_async_context(open_registry(settings, bus)))
        yield await stack.enter_async_context(open_bus(BusConfig(url=url))), opened


async def renewed(bus: Bus, process: str, said: LeaseRenewal) -> LeaseState:
    return await RegistryClient(bus, credential="gateway", process=process).renew_lease(said)


def known(registry: Registry, process: str) -> bool:
    return registry.leases.revision("gateway", process) is not None


async def test_the_fair_share_counts_all_gateways_at_every_registry(nats_url: str) -> None:
    async with registries(nats_url) as (bus, opened):
        await renewed(bus, "full", gateway(100))
        await renewed(bus, "new", gateway(0))
        await renewed(bus, "host", COMPUTER)
        await eventually(lambda: all(known(each, name) for each in opened for name in ("full", "new", "host")))
        shares = {(await renewed(bus, "full", gateway(101))).fair_share for _ in range(20)}
        assert shares == {51}, "rounded up, of what the asker says now; a Computer has no part in it"
        assert (await renewed(bus, "host", COMPUTER)).fair_share is None


async def test_a_stopping_gateway_gets_no_share_and_its_sockets_count_for_the_others(nats_url: str) -> None:
    async with registries(nats_url) as (bus, opened):
        await renewed(bus, "stays", gateway(10))
        await renewed(bus, "stops", gateway(90))
        await eventually(lambda: all(known(each, name) for each in opened for name in ("stays", "stops")))
        assert (await renewed(bus, "stops", gateway(90, accepting=False))).fair_share is None

        async def all_of_it() -> bool:
            return (await renewed(bus, "stays", gateway(10))).fair_share == 100

        await eventually(all_of_it)


async def test_a_gateway_without_a_lease_does_not_count_for_the_fair_share(nats_url: str) -> None:
    async with registries(nats_url, lease_s=1) as (bus, _):

        async def shared() -> bool:  # a second may be over between any two of these
            await renewed(bus, "dead", gateway(50))
            return [(await renewed(bus, "lives", gateway(own))).fair_share for own in (50, 100)] == [50, 75]

        await eventually(shared)

        async def alone() -> bool:
            return (await renewed(bus, "lives", gateway(100))).fair_share == 100

        await eventually(alone)


@pytest.mark.rule("answers.who.nats.gateways")
async def test_a_computer_that_says_that_it_is_many_gateways_changes_no_share(nats_url: str) -> None:
    async with registries(nats_url) as (bus, opened):
        for number in range(8):
            for sockets in (0, 10**15):
                body = orjson.dumps({"sockets": sockets, "accepting": True})
                reply = await bus.request(subjects.hosts("host", f"p{number}", "lease"), body, timeout=30)
                assert LeaseState.model_validate_json(reply.body).fair_share is None
        await eventually(
            lambda: all(each.leases.revision("host", f"p{number}") for each in opened for number in range(8))
        )
        assert {(await renewed(bus, "own", gateway(30))).fair_share for _ in range(20)} == {30}


async def test_sockets_below_zero_are_refused(nats_url: str) -> None:
    async with registries(nats_url) as (bus, _):
        body = orjson.dumps({"sockets": -1, "accepting": True})
        reply = await bus.request(subjects.hosts("gateway", "lies", "gateway_lease"), body, timeout=30)
        refused = orjson.loads(reply.body)
        assert (refused["code"], refused["details"]["field"]) == (400, "sockets")


def change(process: str, value: bytes | None, revision: int = 1) -> Change:
    return Change(lease_key("gateway", process), value, revision)


async def share(leases: Leases) -> int | None:
    """The fair share in the answer to a gateway with 10 sockets."""
    return (await leases.renew("gateway", "own", gateway(10))).fair_share


async def test_a_registry_without_a_whole_view_gives_no_share(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus:
        leases = Leases((await open_store(bus, bus.jetstream(), lease_s=10, replicas=1)).leases, lease_s=10)
        assert await share(leases) is None
        leases.reset([change("other", gateway(30).model_dump_json().encode())])
        assert await share(leases) == 20
        leases.synced.clear()
        assert await share(leases) is None
        leases.reset([])
        assert await share(leases) == 10, "the other's lease is not there any more"


@pytest.mark.parametrize("value", [b"not json", b'{"sockets": "many"}', None])
async def test_an_unreadable_or_expired_lease_does_not_count_for_the_fair_share(
    nats_url: str, value: bytes | None
) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus:
        leases = Leases((await open_store(bus, bus.jetstream(), lease_s=10, replicas=1)).leases, lease_s=10)
        leases.reset([change("other", gateway(30).model_dump_json().encode())])
        leases.apply(change("other", value, 2))
        assert await share(leases) == 10


async def test_a_credential_with_too_many_processes_gets_no_further_lease_and_keeps_those_it_has(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "MOST", 2)
    async with registries(nats_url) as (bus, opened):
        await renewed(bus, "one", COMPUTER)
        await renewed(bus, "two", COMPUTER)
        await eventually(lambda: all(known(each, name) for each in opened for name in ("one", "two")))
        with pytest.raises(RateLimited, match="too many processes"):
            await renewed(bus, "three", COMPUTER)
        assert (await renewed(bus, "one", COMPUTER)).renewed
        other = RegistryClient(bus, credential="gateway-2", process="three")
        assert not (await other.renew_lease(COMPUTER)).renewed
