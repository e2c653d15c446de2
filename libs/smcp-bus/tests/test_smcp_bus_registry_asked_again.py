"""Requests that are asked again: where a registry is suspended, and where one refuses."""

import asyncio

import orjson
import pytest

from smcp_bus import registry_client, subjects
from smcp_bus.bus import Incoming, Reply
from smcp_bus.headers import ERROR, REQ_ID
from smcp_bus.nats.bus import Bus, BusConfig, open_bus
from smcp_bus.registry_client import LeaseKeeper, RegistryClient
from smcp_bus.registry_contract import Claim, LeaseRenewal, LeaseState
from smcp_proto.errors import NotAllowed, SmcpError, Unavailable
from smcp_testing.waiting import BOUND_S, Stopwatch

CLAIM = Claim(session="s", credential="open", process="ab" * 16, incarnation="i", identity="lab/computer/pc")
ENTER = orjson.dumps({"role": "computer", "name": "pc", "office_id": "lab"})


class Registries:
    """Never answer the first questions, `still` of them, and the next one with `second`."""

    def __init__(self, second: Reply, still: int = 1) -> None:
        self.second = second
        self.still = still
        self.asked = 0
        self.ids: set[str] = set()
        self.never = asyncio.Event()

    async def __call__(self, incoming: Incoming) -> Reply:
        self.asked += 1
        self.ids.add(incoming.headers[REQ_ID])
        if self.asked <= self.still:
            await self.never.wait()
        return self.second


def error(code: int, **details: object) -> Reply:
    return Reply(orjson.dumps({"code": code, "message": "no", "details": details}), {ERROR: str(code)})


async def failed(bus: Bus, verb: str) -> SmcpError:
    client = RegistryClient(bus, credential="open", process="ab" * 16)
    with pytest.raises(SmcpError) as raised:
        if verb == "join":
            await client.join(("lab", "computer", "pc"), CLAIM, ENTER)
        else:
            await client.leave(("lab", "computer", "pc"), CLAIM)
    return raised.value


async def test_a_request_is_repeated_until_it_reaches_a_responsive_registry(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url, drain_timeout=0)) as bus:
        registries = Registries(Reply(b'{"revision": 7}'), still=7)
        await bus.serve(subjects.SERVER_ALL, registries, queue=subjects.REGISTRY_QUEUE)
        client = RegistryClient(bus, credential="open", process="ab" * 16)
        assert (await client.join(("lab", "computer", "pc"), CLAIM, ENTER)).revision == 7
        assert registries.asked >= 8, "once more where the answer took its time"


async def test_copies_of_a_request_have_its_id_although_it_is_no_clients(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url, drain_timeout=0)) as bus:
        registries = Registries(Reply(b"{}"), still=2)
        await bus.serve(subjects.SERVER_ALL, registries, queue=subjects.REGISTRY_QUEUE)
        client = RegistryClient(bus, credential="open", process="ab" * 16)
        await client.list_room(("lab", "computer", "pc"), b"{}", after=0)
        assert registries.asked >= 3, "once more where the answer took its time"
        assert len(registries.ids) == 1
        await client.list_room(("lab", "computer", "pc"), b"{}", after=0)
        assert len(registries.ids) == 2


async def test_a_request_fails_within_a_lease_when_no_registry_answers(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url, drain_timeout=0)) as bus:
        registries = Registries(Reply(b'{"revision": 7}'), still=1000)
        await bus.serve(subjects.SERVER_ALL, registries, queue=subjects.REGISTRY_QUEUE)
        client = RegistryClient(bus, credential="open", process="ab" * 16, lease_s=3.0)
        watch = Stopwatch()
        with pytest.raises(Unavailable) as unavailable:
            await client.join(("lab", "computer", "pc"), CLAIM, ENTER)
        assert watch.took > 2.7
        assert watch.undisturbed < 4
        assert unavailable.value.details == {"may_have_run": True}
        # each may have gone to another registry; each pause may be longer on a busy machine, none is shorter
        assert 2 < registries.asked <= 21


async def test_a_slow_registrys_answer_counts_and_it_gets_few_repeats(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url, drain_timeout=0)) as bus:
        registries = Registries(Reply(b'{"revision": 7}'), still=1000)
        await bus.serve(subjects.SERVER_ALL, registries, queue=subjects.REGISTRY_QUEUE)
        client = RegistryClient(bus, credential="open", process="ab" * 16)
        asyncio.get_running_loop().call_later(6, registries.never.set)
        assert (await client.join(("lab", "computer", "pc"), CLAIM, ENTER)).revision == 7
        assert 2 < registries.asked < 15  # each pause may be longer on a busy machine, none is shorter


async def test_a_lease_stays_valid_while_some_renewals_reach_a_suspended_registry(nats_url: str) -> None:
    lease_s, renewals, asked, since_renewal = 3.0, 0, 0, Stopwatch()
    thrice, never = asyncio.Event(), asyncio.Event()

    async def registry(_: Incoming) -> Reply:
        nonlocal renewals, asked, since_renewal
        asked += 1
        if renewals and asked <= 8:  # of each renewal after the first
            await never.wait()
        lives, since_renewal, asked = since_renewal.undisturbed < lease_s, Stopwatch(), 0
        renewals += 1
        if renewals == 4:
            thrice.set()
        return Reply(LeaseState(renewed=lives, lease_s=lease_s).model_dump_json().encode())

    def on_lapsed() -> None:
        raise AssertionError("the lease ran out")

    async with open_bus(BusConfig(url=nats_url, drain_timeout=0)) as bus:
        await bus.serve(subjects.HOSTS_LEASE_ALL, registry, queue=subjects.REGISTRY_QUEUE)
        client = RegistryClient(bus, credential="open", process="ab" * 16)
        keeper = LeaseKeeper(client, lease_s=lease_s, describe=LeaseRenewal, on_lapsed=on_lapsed)
        await keeper.acquire()
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(keeper.run())
            await thrice.wait()
            running.cancel()


@pytest.mark.parametrize("verb", ["join", "leave"])
async def test_a_503_while_another_copy_is_open_says_may_have_run(nats_url: str, verb: str) -> None:
    async with open_bus(BusConfig(url=nats_url, drain_timeout=0)) as bus:
        registries = Registries(error(503, why="quorum"))
        await bus.serve(subjects.SERVER_ALL, registries, queue=subjects.REGISTRY_QUEUE)
        unavailable = await failed(bus, verb)
        assert registries.asked >= 2, "once more where the answer took its time"
        assert isinstance(unavailable, Unavailable)
        assert (unavailable.message, unavailable.details) == ("no", {"why": "quorum", "may_have_run": True})


async def test_a_503_without_another_open_copy_is_passed_on_unchanged(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_client, "AGAIN_S", BOUND_S)  # no copy, however long the answer takes
    async with open_bus(BusConfig(url=nats_url, drain_timeout=0)) as bus:
        registries = Registries(error(503))
        registries.never.set()
        await bus.serve(subjects.SERVER_ALL, registries, queue=subjects.REGISTRY_QUEUE)
        unavailable = await failed(bus, "join")
        assert isinstance(unavailable, Unavailable)
        assert unavailable.details == {}


@pytest.mark.parametrize("alone", [True, False])
async def test_a_403_says_may_have_run_only_while_another_copy_is_open(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    if alone:
        monkeypatch.setattr(registry_client, "AGAIN_S", BOUND_S)  # no copy, however long the answer takes
    async with open_bus(BusConfig(url=nats_url, drain_timeout=0)) as bus:
        registries = Registries(error(403, field="name"), still=0 if alone else 1)
        await bus.serve(subjects.SERVER_ALL, registries, queue=subjects.REGISTRY_QUEUE)
        refused = await failed(bus, "join")
        assert isinstance(refused, NotAllowed)
        assert refused.details == {"field": "name"} | ({} if alone else {"may_have_run": True})
