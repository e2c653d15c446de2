"""The client of the registries over a real bus; a test plays the registry."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import orjson
import pytest

from smcp_bus import subjects
from smcp_bus.bus import Incoming, Reply
from smcp_bus.headers import CLAIM, ERROR
from smcp_bus.nats.bus import Bus, BusConfig, open_bus
from smcp_bus.registry_client import LeaseKeeper, RegistryClient
from smcp_bus.registry_contract import Claim, Joined, LeaseRenewal, LeaseState
from smcp_proto.errors import Internal, NotAllowed, Unavailable
from smcp_testing.nats_process import NatsServer

CLAIM_OF_PC = Claim(session="s", credential="open", process="ab" * 16, incarnation="i", identity="lab/computer/pc")
ENTER = orjson.dumps({"role": "computer", "name": "pc", "office_id": "lab"})


def client_of(bus: Bus) -> RegistryClient:
    return RegistryClient(bus, credential="open", process="ab" * 16)


async def join(bus: Bus) -> Joined:
    return await client_of(bus).join(("lab", "computer", "pc"), CLAIM_OF_PC, ENTER)


async def answering(bus: Bus, answer: Callable[[Incoming], Awaitable[Reply]]) -> None:
    await bus.serve(subjects.SERVER_ALL, answer, queue=subjects.REGISTRY_QUEUE)


def not_lapsed() -> None:
    raise AssertionError("the lease had not run out")


@asynccontextmanager
async def lease_kept(
    nats_server: NatsServer,
    registry: Callable[[Incoming], Awaitable[Reply]],
    *,
    lease_s: float,
    on_lapsed: Callable[[], None] = not_lapsed,
) -> AsyncIterator[LeaseKeeper]:
    """The lease of a process is renewed meanwhile, for at most 30 s."""
    async with open_bus(BusConfig(url=nats_server.url, name="test")) as bus:
        await bus.serve(subjects.HOSTS_LEASE_ALL, registry, queue=subjects.REGISTRY_QUEUE)
        keeper = LeaseKeeper(client_of(bus), lease_s=lease_s, describe=LeaseRenewal, on_lapsed=on_lapsed)
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(keeper.run())
            yield keeper
            running.cancel()


async def test_a_request_carries_the_claim_and_returns_a_typed_answer(nats_server: NatsServer) -> None:
    async def registry(incoming: Incoming) -> Reply:
        assert incoming.subject == "smcp.v1.lab.server.computer.pc.join_office"
        assert incoming.body == ENTER
        assert Claim.model_validate_json(incoming.headers[CLAIM]) == CLAIM_OF_PC
        return Reply(Joined(revision=7).model_dump_json().encode())

    async with open_bus(BusConfig(url=nats_server.url, name="test")) as bus:
        await answering(bus, registry)
        assert await join(bus) == Joined(revision=7)


async def test_a_refusal_is_raised_as_the_typed_error(nats_server: NatsServer) -> None:
    async def registry(incoming: Incoming) -> Reply:
        return Reply(b'{"code":403,"message":"taken","details":{"x":1}}', {ERROR: "403"})

    async with open_bus(BusConfig(url=nats_server.url, name="test")) as bus:
        await answering(bus, registry)
        with pytest.raises(NotAllowed, match="taken") as refused:
            await join(bus)
        assert refused.value.details == {"x": 1}


@pytest.mark.parametrize("reply", [Reply(b"{"), Reply(b'{"revision":"x"}'), Reply(b"nonsense", {ERROR: "500"})])
async def test_an_answer_that_cannot_be_read_is_an_internal_error(nats_server: NatsServer, reply: Reply) -> None:
    async def registry(incoming: Incoming) -> Reply:
        return reply

    async with open_bus(BusConfig(url=nats_server.url, name="test")) as bus:
        await answering(bus, registry)
        with pytest.raises(Internal):
            await join(bus)


async def test_a_registry_that_starts_late_is_found_in_time(nats_server: NatsServer) -> None:
    async def registry(incoming: Incoming) -> Reply:
        return Reply(Joined(revision=1).model_dump_json().encode())

    async with open_bus(BusConfig(url=nats_server.url, name="test")) as bus:
        asked = asyncio.create_task(join(bus))
        await asyncio.sleep(0)
        await answering(bus, registry)
        assert (await asked).revision == 1


async def test_without_a_registry_a_request_fails_in_time(nats_server: NatsServer) -> None:
    async with open_bus(BusConfig(url=nats_server.url, name="test")) as bus:
        with pytest.raises(Unavailable, match="no registry"):
            await client_of(bus).find(("lab", "agent", "alice"), "pc", timeout=0.2)


async def test_members_are_asserted_again_after_an_expired_lease(nats_server: NatsServer) -> None:
    answers = iter([True, False, True])
    lapsed = asyncio.Event()

    async def registry(incoming: Incoming) -> Reply:
        renewed = next(answers, True)
        return Reply(LeaseState(renewed=renewed, lease_s=0.3).model_dump_json().encode())

    async with lease_kept(nats_server, registry, lease_s=0.3, on_lapsed=lapsed.set) as keeper:
        await lapsed.wait()
        assert keeper.held


async def test_a_shorter_lease_of_the_registries_is_used(nats_server: NatsServer) -> None:
    renewals = 0
    third = asyncio.Event()

    async def registry(incoming: Incoming) -> Reply:
        nonlocal renewals
        renewals += 1
        if renewals == 3:
            third.set()
        return Reply(LeaseState(renewed=True, lease_s=0.3).model_dump_json().encode())

    async with lease_kept(nats_server, registry, lease_s=60):
        await third.wait()


async def test_what_changes_while_a_lease_is_renewed_is_told_by_one_more_renewal(nats_server: NatsServer) -> None:
    renewals = 0
    told = asyncio.Event()

    async def registry(incoming: Incoming) -> Reply:
        nonlocal renewals
        renewals += 1
        if renewals == 3:
            told.set()
        else:
            keeper.renew_soon()
        return Reply(LeaseState(renewed=True, lease_s=600).model_dump_json().encode())

    async with lease_kept(nats_server, registry, lease_s=600) as keeper:
        await told.wait()


async def test_a_lease_survives_registries_that_are_away(nats_server: NatsServer) -> None:
    calls = 0
    again = asyncio.Event()

    async def registry(incoming: Incoming) -> Reply:
        nonlocal calls
        calls += 1
        if calls == 2:
            return Reply(b'{"code":503,"message":"no quorum","details":{}}', {ERROR: "503"})
        if calls > 2:
            again.set()
        return Reply(LeaseState(renewed=True, lease_s=0.3).model_dump_json().encode())

    async with lease_kept(nats_server, registry, lease_s=0.3):
        await again.wait()


async def test_a_cancelled_request_to_the_registries_leaves_nothing(nats_server: NatsServer) -> None:
    arrived, never = asyncio.Event(), asyncio.Event()

    async def registry(incoming: Incoming) -> Reply:
        arrived.set()
        await never.wait()
        return Reply()

    async with open_bus(BusConfig(url=nats_server.url, name="test")) as bus:
        await answering(bus, registry)
        question = asyncio.create_task(join(bus))
        await arrived.wait()
        question.cancel()
        await asyncio.wait({question})
        assert question.cancelled()
        assert bus.stats()["pending"] == 0
        never.set()
