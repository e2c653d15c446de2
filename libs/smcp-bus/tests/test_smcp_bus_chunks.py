"""Bodies larger than a message, against a real nats-server."""

import asyncio
import gc
from pathlib import Path

import orjson
import pytest

from smcp_bus.bus import ConnectionLost, Incoming, Reply, RequestHandler, RequestTimedOut, TransferFailed
from smcp_bus.headers import ERROR
from smcp_bus.nats import transfers
from smcp_bus.nats.bus import BusConfig, open_bus
from smcp_bus.nats.transfers import Send, chunk_index
from smcp_testing.bad_bus import BadBus, Rates, interpose
from smcp_testing.echo_buses import MIB, body_of, echo, two
from smcp_testing.nats_process import NatsServer
from smcp_testing.waiting import eventually, within


def gives(body: bytes) -> RequestHandler:
    """A handler that answers with `body`."""

    async def handler(incoming: Incoming) -> Reply:
        return Reply(body)

    return handler


# -- whole bodies


@pytest.mark.parametrize("size", [512 * 1024 - 1, 512 * 1024, 512 * 1024 + 1, 20 * MIB, 32 * MIB])
async def test_a_large_body_arrives_whole_both_ways(nats_url: str, size: int) -> None:
    async with two(nats_url) as (asker, server):
        body = body_of(size)
        reply = await asker.request("echo", body, timeout=60)
        assert reply == Reply(body, {"Mine": "kept"})
        await eventually(lambda: server.stats()["outgoing_bytes"] == server.stats()["pending"] == 0)
        assert asker.stats()["pending"] == asker.stats()["budget_used"] == server.stats()["budget_used"] == 0
        parts = int(size > MIB // 2)
        for bus in (asker, server):
            assert bus.transfers.counts == {"in": parts, "out": parts, "in_failed": 0}
            assert bus.transfers.bytes == {"in": parts * size, "out": parts * size}


@pytest.mark.rule("answers.errors.413")
async def test_an_answer_above_the_askers_limit_is_413_with_that_limit(nats_url: str) -> None:
    async with two(nats_url) as (_, server), open_bus(BusConfig(url=nats_url, max_payload=MIB)) as asker:
        await server.serve("large", gives(bytes(5 * MIB)))
        reply = await asker.request("large", b"", timeout=30)
        assert reply.headers[ERROR] == "413"
        assert orjson.loads(reply.body)["details"] == {"limit": MIB, "size": 5 * MIB}
        await eventually(lambda: server.stats()["outgoing_bytes"] == 0)
        assert asker.stats()["pending"] == asker.stats()["budget_used"] == 0


async def test_the_handler_sees_no_header_of_the_chunks(nats_url: str) -> None:
    async with two(nats_url) as (asker, server):
        seen: list[Incoming] = []

        async def handler(incoming: Incoming) -> Reply:
            seen.append(incoming)
            return Reply()

        await server.serve("a", handler)
        await asker.request("a", bytes(MIB), timeout=10, headers={"Mine": "kept"})
        assert set(seen[0].headers) == {"Mine", "Smcp-Budget"}


async def test_a_server_with_small_messages_is_served_with_small_chunks(tmp_path: Path) -> None:
    config = tmp_path / "small.conf"
    config.write_text("max_payload: 16384\n")
    server = NatsServer(tmp_path / "nats", config=config)
    await server.start()
    try:
        async with two(server.url) as (asker, _):
            body = body_of(3 * MIB)
            assert (await asker.request("echo", body, timeout=30)).body == body
    finally:
        await server.stop()


async def test_small_calls_go_on_while_eight_large_ones_share_the_budget(nats_url: str) -> None:
    budget = 64 * MIB
    async with (
        open_bus(BusConfig(url=nats_url, budget_bytes=budget)) as asker,
        open_bus(BusConfig(url=nats_url, budget_bytes=8 * 32 * MIB)) as server,
    ):
        await server.serve("echo", echo)
        large = body_of(32 * MIB)
        await server.serve("large", gives(large))
        asked = [asyncio.create_task(asker.request("large", b"", timeout=90)) for _ in range(8)]
        used, waited, small = 0, 0, 0
        while not all(each.done() for each in asked):
            await asker.request("echo", bytes(1024), timeout=30)
            small += 1
            used = max(used, asker.stats()["budget_used"])
            waited = max(waited, asker.stats()["budget_waiting"])
        for each in asked:
            assert (await each).body == large
        assert used == budget
        assert waited == 6
        assert small > 20
        assert asker.connected
        assert asker.stats()["budget_used"] == 0


# -- a bad network


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_chunks_that_are_doubled_and_late_still_make_the_body(nats_url: str, seed: int) -> None:
    async with two(nats_url) as (asker, server):
        rates = Rates(doubled=0.2, late=0.3)
        async with BadBus(asker, seed, chunks=rates), BadBus(server, seed + 100, chunks=rates):
            body = body_of(8 * MIB)
            assert (await asker.request("echo", body, timeout=60)).body == body


async def test_a_body_that_never_comes_ends_with_the_time_out_and_gives_its_budget_back(nats_url: str) -> None:
    async with two(nats_url) as (asker, server):
        async with BadBus(server, 1, chunks=Rates(lost=1)):
            asking = asyncio.create_task(asker.request("echo", bytes(MIB), timeout=2))
            await eventually(lambda: server.stats()["budget_used"] == MIB)  # it has begun, and waits for the rest
            assert (server.stats()["pending"], server.stats()["running"], asker.stats()["pending"]) == (1, 1, 1)
            with pytest.raises(RequestTimedOut):
                await asking
            assert asker.stats()["pending"] == 0

            def nothing_is_held() -> bool:
                """Who serves has as much time since the request came, and lets go of one after the other."""
                held = server.stats()
                return held["pending"] == held["budget_used"] == held["running"] == 0

            await eventually(nothing_is_held)


async def test_an_unconfirmed_reply_is_dropped_when_its_time_is_over(nats_url: str) -> None:
    async with two(nats_url) as (asker, server):
        await server.serve("large", gives(bytes(MIB)))

        def without_last_word(send: Send) -> Send:
            def selective(subject: str, reply: str, head: bytes, body: bytes | memoryview) -> None:
                if chunk_index(head) != b"done":
                    send(subject, reply, head, body)

            return selective

        interpose(asker, without_last_word)
        assert len((await asker.request("large", b"", timeout=3)).body) == MIB
        assert server.stats()["outgoing_bytes"] == MIB
        await eventually(lambda: server.stats()["outgoing_bytes"] == 0)


async def test_a_finished_body_is_freed_without_the_garbage_collector(nats_url: str) -> None:
    async with two(nats_url), open_bus(BusConfig(url=nats_url, budget_bytes=8 * MIB)) as asker:
        bodies = [body_of(5 * MIB) for _ in range(3)]  # two of them wait for their share of the budget
        gc.collect()
        gc.disable()
        try:
            replies = await asyncio.gather(*(asker.request("echo", body, timeout=30) for body in bodies))
            assert [reply.body for reply in replies] == bodies
            assert [held for held in gc.get_objects() if isinstance(held, transfers.Pulling)] == []
        finally:
            gc.enable()


async def test_a_cancelled_transfer_gives_everything_back(nats_url: str) -> None:
    async with two(nats_url) as (asker, server):
        await server.serve("large", gives(bytes(8 * MIB)))
        async with BadBus(server, 1, chunks=Rates(lost=1)):
            asking = asyncio.create_task(asker.request("large", b"", timeout=30))
            await eventually(lambda: asker.stats()["budget_used"] == 8 * MIB)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert asker.stats()["pending"] == asker.stats()["budget_used"] == 0


async def test_a_transfer_fails_at_once_when_the_connection_breaks(nats_server: NatsServer) -> None:
    async with two(nats_server.url) as (asker, server):
        await server.serve("large", gives(bytes(8 * MIB)))
        async with BadBus(server, 1, chunks=Rates(lost=1)):
            asking = asyncio.create_task(asker.request("large", b"", timeout=30))
            await eventually(lambda: asker.stats()["budget_used"] > 0)
            await nats_server.kill()
            with pytest.raises(ConnectionLost):
                async with within(1):
                    await asking
            assert asker.stats()["budget_used"] == 0


async def test_a_transfer_fails_within_a_second_when_the_peer_dies(nats_url: str) -> None:
    async with two(nats_url) as (asker, _):
        async with open_bus(BusConfig(url=nats_url, drain_timeout=0)) as mortal:
            BadBus(mortal, 1, chunks=Rates(lost=1))
            await mortal.serve("large", gives(bytes(8 * MIB)))
            asking = asyncio.create_task(asker.request("large", b"", timeout=30))
            await eventually(lambda: asker.stats()["budget_used"] > 0)
            await mortal.close()
            with pytest.raises(TransferFailed):
                async with within(1):
                    await asking


async def test_a_suspended_peer_does_not_hold_the_budget_for_ever(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "_STALL_S", 0.3)
    async with two(nats_url) as (asker, server):
        await server.serve("large", gives(bytes(8 * MIB)))
        async with BadBus(server, 1, chunks=Rates(lost=1)):
            with pytest.raises(TransferFailed):
                async with within(3):
                    await asker.request("large", b"", timeout=3600)
            assert asker.stats()["budget_used"] == 0
