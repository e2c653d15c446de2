"""Large answers are kept for those who are there to take them, within a budget."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats
import orjson
import pytest
from nats.aio.client import Client

from smcp_bus.bus import Incoming, NoResponder, Reply, RequestTimedOut, TransferFailed
from smcp_bus.headers import ERROR
from smcp_bus.nats import transfers
from smcp_bus.nats.bus import Bus, BusConfig, open_bus
from smcp_bus.nats.wire import CHUNK, SIZE
from smcp_testing.bad_bus import BadBus, Rates
from smcp_testing.waiting import eventually, within

MIB = 1024 * 1024
HOUR = 3600.0


class Large:
    """Answers with `size` bytes once it may."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.arrived = asyncio.Semaphore(0)
        self.may = asyncio.Event()

    async def __call__(self, _: Incoming) -> Reply:
        self.arrived.release()
        await self.may.wait()
        return Reply(bytes(self.size))


@asynccontextmanager
async def keeper(url: str, size: int = MIB, budget: int | None = None) -> AsyncIterator[tuple[Bus, Large]]:
    async with open_bus(BusConfig(url=url, budget_bytes=budget, drain_timeout=0)) as bus:
        large = Large(size)
        await bus.serve("large", large)
        yield bus, large


@asynccontextmanager
async def taker(url: str) -> AsyncIterator[Client]:
    """Takes the first chunk of whatever it asks for, and nothing more."""
    client = await nats.connect(url)
    try:
        yield client
    finally:
        await client.close()


async def test_an_answer_to_a_cancelled_request_is_freed_at_once(nats_url: str) -> None:
    async with keeper(nats_url) as (bus, large), open_bus(BusConfig(url=nats_url)) as asker:
        asked = [asyncio.create_task(asker.request("large", b"", timeout=HOUR)) for _ in range(8)]
        for each in asked:
            await large.arrived.acquire()
            each.cancel()
        await asyncio.wait(asked)
        large.may.set()
        await eventually(lambda: bus.stats()["running"] == 0)
        await eventually(lambda: bus.stats()["outgoing_bytes"] == bus.stats()["pending"] == 0)


async def test_an_answer_to_a_dead_process_is_freed_at_once(nats_url: str) -> None:
    async with keeper(nats_url) as (bus, large):
        async with open_bus(BusConfig(url=nats_url, drain_timeout=0)) as asker:
            asked = asyncio.create_task(asker.request("large", b"", timeout=HOUR))
            await large.arrived.acquire()
        await asyncio.wait({asked})

        async def nats_knows() -> bool:
            try:
                await bus.request(f"{asker.inbox_prefix}.{asker.process}.1", b"", timeout=0.1)
            except NoResponder:
                return True
            except RequestTimedOut:
                pass
            return False

        await eventually(nats_knows)
        large.may.set()
        await eventually(lambda: bus.stats()["running"] == 0)
        await eventually(lambda: bus.stats()["outgoing_bytes"] == bus.stats()["pending"] == 0)


async def test_an_answer_abandoned_during_its_transfer_is_freed_at_once(nats_url: str) -> None:
    async with keeper(nats_url, 8 * MIB) as (bus, large), open_bus(BusConfig(url=nats_url)) as asker:
        large.may.set()
        async with BadBus(bus, 1, chunks=Rates(lost=1)):
            asked = asyncio.create_task(asker.request("large", b"", timeout=HOUR))
            await eventually(lambda: asker.stats()["budget_used"] > 0)
            asked.cancel()
            await asyncio.wait({asked})
            await eventually(lambda: bus.stats()["outgoing_bytes"] == bus.stats()["pending"] == 0)


async def test_an_answer_that_is_never_pulled_is_kept_for_a_bounded_time(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "IDLE_S", 1.5)
    async with keeper(nats_url) as (bus, large), taker(nats_url) as client:
        large.may.set()
        first = await client.request("large", b"", timeout=30, headers={"Smcp-Budget": "3600000"})
        assert bus.stats()["outgoing_bytes"] == MIB
        loop = asyncio.get_running_loop()
        until = loop.time() + 3.5
        while loop.time() < until:  # each question, also one that wants no answer, extends it
            await client.publish(first.reply, b"", headers={CHUNK: "here"})
            chunk = await client.request(first.reply, b"", timeout=30, headers={CHUNK: "1"})
            assert chunk.headers == {CHUNK: "1"}
        assert bus.stats()["outgoing_bytes"] == MIB
        await eventually(lambda: bus.stats()["outgoing_bytes"] == bus.stats()["pending"] == 0)


async def test_an_answer_is_kept_while_its_receiver_waits_for_budget(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "IDLE_S", 1.5)
    monkeypatch.setattr(transfers, "_SIGN_S", 0.3)
    async with keeper(nats_url) as (bus, large), open_bus(BusConfig(url=nats_url)) as asker:
        large.may.set()
        all_of_it = asker.transfers.budget.ask(asker.transfers.budget.limit, lambda: None)
        asked = asyncio.create_task(asker.request("large", b"", timeout=HOUR))
        await eventually(lambda: asker.stats()["budget_waiting"] == 1)
        loop = asyncio.get_running_loop()
        over = loop.time() + 3.5
        await eventually(lambda: loop.time() > over)
        assert bus.stats()["outgoing_bytes"] == MIB
        all_of_it.release()
        assert len((await asked).body) == MIB


async def test_a_receiver_waiting_for_budget_notices_that_the_answer_is_gone(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "_SIGN_S", 0.5)
    async with open_bus(BusConfig(url=nats_url)) as asker:
        all_of_it = asker.transfers.budget.ask(asker.transfers.budget.limit, lambda: None)
        async with keeper(nats_url) as (_, large):
            large.may.set()
            asked = asyncio.create_task(asker.request("large", b"", timeout=HOUR))
            await eventually(lambda: asker.stats()["budget_waiting"] == 1)
        with pytest.raises(TransferFailed):
            async with within(3):
                await asked
        all_of_it.release()
        assert asker.stats()["budget_used"] == asker.stats()["budget_waiting"] == 0


async def test_an_answer_above_the_budget_is_refused_while_others_are_being_pulled(nats_url: str) -> None:
    async with keeper(nats_url, 2 * MIB, budget=4 * MIB) as (bus, large), taker(nats_url) as client:
        large.may.set()
        taken = [await client.request("large", b"", timeout=30) for _ in range(2)]
        refused = await client.request("large", b"", timeout=30)
        assert refused.headers is not None
        assert refused.headers[ERROR] == "503"
        assert orjson.loads(refused.data)["details"] == {"may_have_run": True}
        assert bus.stats()["outgoing_bytes"] == 4 * MIB
        await client.publish(taken[0].reply, b"", headers={CHUNK: "done"})
        await eventually(lambda: bus.stats()["outgoing_bytes"] == 2 * MIB)
        assert SIZE in ((await client.request("large", b"", timeout=30)).headers or {})


async def test_a_single_answer_above_the_budget_is_sent(nats_url: str) -> None:
    async with keeper(nats_url, 3 * MIB, budget=MIB) as (_, large), open_bus(BusConfig(url=nats_url)) as asker:
        large.may.set()
        assert len((await asker.request("large", b"", timeout=30)).body) == 3 * MIB
