"""Answers to a nats-server that takes nothing: they wait, bounded, and hold up nothing for ever."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from smcp_bus.bus import Incoming, Reply
from smcp_bus.nats.bus import Bus, BusConfig, open_bus
from smcp_testing.nats_process import NatsServer
from smcp_testing.waiting import eventually

MIB = 1024 * 1024


@asynccontextmanager
async def answers_for_a_server_that_takes_nothing(
    server: NatsServer, *, timeout: float
) -> AsyncIterator[tuple[Bus, list["asyncio.Task[Reply]"]]]:
    """A bus with 30 MB of answers, and who asked for them; the server is suspended."""
    async with (
        open_bus(BusConfig(url=server.url, drain_timeout=0)) as bus,
        open_bus(BusConfig(url=server.url)) as asker,
    ):
        go = asyncio.Event()

        async def handler(_: Incoming) -> Reply:
            await go.wait()
            return Reply(bytes(500_000))

        await bus.serve("a", handler)
        asked = [asyncio.create_task(asker.request("a", b"", timeout=timeout)) for _ in range(60)]
        await eventually(lambda: bus.stats()["running"] == len(asked))
        server.pause()
        go.set()
        await eventually(lambda: bus.congested)
        yield bus, asked
        for each in asked:
            each.cancel()
        await asyncio.wait(asked)


async def test_answers_wait_for_a_server_that_stops_reading_and_arrive_when_it_reads_again(
    nats_server: NatsServer,
) -> None:
    async with answers_for_a_server_that_takes_nothing(nats_server, timeout=60) as (bus, asked):
        assert bus._socket.unwritten < 5 * MIB
        assert bus.stats()["running"] > 30
        nats_server.resume()
        assert {len((await each).body) for each in asked} == {500_000}
        assert bus.stats()["running"] == 0


async def test_answers_waiting_for_the_server_are_dropped_when_their_time_is_over(nats_server: NatsServer) -> None:
    async with answers_for_a_server_that_takes_nothing(nats_server, timeout=3) as (bus, _):
        assert bus.stats()["running"] > 30
        await eventually(lambda: bus.stats()["running"] == 0)
        assert bus.connected
        assert bus._socket.unwritten < 5 * MIB
        nats_server.resume()
        await bus.flush()


async def test_answers_waiting_for_the_server_are_dropped_when_the_connection_breaks(
    nats_server: NatsServer,
) -> None:
    async with answers_for_a_server_that_takes_nothing(nats_server, timeout=60) as (bus, _):
        assert bus.stats()["running"] > 30
        await nats_server.kill()
        await eventually(lambda: bus.stats()["running"] == 0)
