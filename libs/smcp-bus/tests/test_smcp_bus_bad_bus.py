"""The bad bus does what it says, and the same for the same seed."""

import asyncio
from collections import Counter

import pytest

from smcp_bus.bad_bus import BadBus, Rates
from smcp_bus.bus import Incoming, Reply
from smcp_bus.errors import ConnectionLost, RequestTimedOut
from smcp_bus.nats.bus import BusConfig, open_bus
from smcp_testing.nats_process import NatsServer
from smcp_testing.waiting import eventually


async def echo(incoming: Incoming) -> Reply:
    return Reply(incoming.body)


async def _ask(bus: BadBus, number: int) -> bool:
    try:
        await bus.request("a", b"%d" % number, timeout=0.1)
    except RequestTimedOut:
        return False
    return True


async def test_one_seed_is_one_fate(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as inner:
        await inner.serve("a", echo)
        fates = []
        for seed in (7, 7, 8):
            async with BadBus(inner, seed, requests=Rates(lost=0.3), replies=Rates(lost=0.2)) as bad:
                fates.append([await _ask(bad, number) for number in range(20)])
                assert bad.met["request lost"] + bad.met["reply lost"] >= fates[-1].count(False)
                assert not {what for what in bad.met if what.split()[1] != "lost"}
        assert fates[0] == fates[1] != fates[2]
        assert 3 < fates[0].count(False) < 17


async def test_a_lost_request_is_not_run_and_a_lost_reply_is(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as inner:
        ran: list[bytes] = []

        async def handler(incoming: Incoming) -> Reply:
            ran.append(incoming.body)
            return Reply()

        await inner.serve("a", handler)
        async with BadBus(inner, 1, requests=Rates(lost=1)) as bad:
            assert not await _ask(bad, 1)
        assert ran == []
        async with BadBus(inner, 1, replies=Rates(lost=1)) as bad:
            assert not await _ask(bad, 2)
        assert ran == [b"2"]


async def test_a_doubled_request_runs_twice_at_once_and_is_answered_once(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as inner, BadBus(inner, 1, requests=Rates(doubled=1)) as bad:
        running = 0
        both = asyncio.Event()

        async def handler(incoming: Incoming) -> Reply:
            nonlocal running
            running += 1
            if running == 2:
                both.set()
            await both.wait()
            return Reply(incoming.body)

        subscription = await bad.serve("a", handler)
        assert (await bad.request("a", b"x", timeout=5)).body == b"x"
        await subscription.drain()
        assert running == 2


async def test_notices_are_lost_doubled_and_re_ordered_but_never_run_beside_each_other(nats_url: str) -> None:
    rates = Rates(lost=0.2, doubled=0.2, late=0.4)
    async with open_bus(BusConfig(url=nats_url)) as inner, BadBus(inner, 5, notices=rates) as bad:
        seen: list[int] = []
        running = 0

        async def hear(incoming: Incoming) -> None:
            nonlocal running
            running += 1
            assert running == 1
            await asyncio.sleep(0)
            seen.append(int(incoming.body))
            running -= 1

        subscription = await bad.listen("n", hear)
        for number in range(100):
            await bad.publish("n", b"%d" % number)
        await inner.flush()
        await subscription.drain()
        counts = Counter(seen)
        assert 60 < len(counts) < 95
        assert 5 < sum(count == 2 for count in counts.values()) < 40
        assert bad.met["notice lost"] == 100 - len(counts)
        assert bad.met["notice doubled"] == sum(count == 2 for count in counts.values())
        assert bad.met["notice overtaken"] == sum(late < max(seen[: i + 1]) for i, late in enumerate(seen))
        assert seen != sorted(seen)


async def test_silence_ends_when_the_connection_breaks(nats_server: NatsServer) -> None:
    async with open_bus(BusConfig(url=nats_server.url)) as inner, BadBus(inner, 1, requests=Rates(lost=1)) as bad:
        asking = asyncio.create_task(bad.request("a", b"", timeout=60))
        await eventually(lambda: len(inner._link._watchers) == 1)
        await nats_server.kill()
        with pytest.raises(ConnectionLost):
            async with asyncio.timeout(2):
                await asking


async def test_leaving_it_ends_what_it_holds_back(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url)) as inner:
        async with BadBus(inner, 1, notices=Rates(late=1), max_delay=60) as bad:

            async def hear(incoming: Incoming) -> None:
                raise AssertionError("it came")

            await bad.listen("n", hear)
            await bad.publish("n", b"")
            await eventually(lambda: len(bad._tasks) == 1)
