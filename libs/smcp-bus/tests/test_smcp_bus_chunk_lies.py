"""Peers whose chunks are not what they announced."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats
import orjson
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from smcp_bus.bus import RequestTimedOut, TransferFailed
from smcp_bus.headers import ERROR
from smcp_bus.nats.wire import CHUNK, CHUNKS, SIZE
from smcp_testing.echo_buses import MIB, body_of, two

# -- peers that lie


async def settle(client: Client) -> None:
    """Return when nats-server knows what `client` subscribed.

    One flush of nats-py is not enough: its PING goes straight to the transport and may overtake a SUB that is still in
    its buffer. The second one goes after the first one's PONG, and by then the buffer has been written.
    """
    await client.flush()
    await client.flush()


@asynccontextmanager
async def liar(url: str) -> AsyncIterator[Client]:
    client = await nats.connect(url)
    try:
        yield client
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("headers", "first", "code"),
    [
        ({SIZE: str(10**12 - 1), CHUNKS: "2"}, bytes(100), "413"),
        ({SIZE: str(33 * MIB), CHUNKS: "66"}, bytes(512 * 1024), "413"),
        ({SIZE: "1000000", CHUNKS: "7"}, bytes(100), "503"),
        ({SIZE: "-5", CHUNKS: "7"}, bytes(100), "503"),
        ({SIZE: "1000"}, bytes(100), "503"),
    ],
)
async def test_a_request_whose_sizes_lie_is_refused_and_nothing_is_pulled(
    nats_url: str, headers: dict[str, str], first: bytes, code: str
) -> None:
    async with two(nats_url) as (_, server), liar(nats_url) as client:
        reply = await client.request("echo", first, headers=headers, timeout=30)
        assert reply.headers is not None
        assert reply.headers[ERROR] == code
        assert server.stats()["budget_used"] == server.stats()["pending"] == 0


@pytest.mark.parametrize(
    "headers",
    [
        {SIZE: "1000000", CHUNKS: "7"},
        {SIZE: "nonsense", CHUNKS: "2"},
        {SIZE: "200", CHUNKS: "2"},  # adds up, but carries no way to the rest
    ],
)
async def test_a_reply_whose_sizes_lie_fails(nats_url: str, headers: dict[str, str]) -> None:
    async with two(nats_url) as (asker, _), liar(nats_url) as client:

        async def lie(message: Msg) -> None:
            await client.publish(message.reply, bytes(100), headers=headers)

        await client.subscribe("liar", cb=lie)
        await settle(client)
        with pytest.raises(TransferFailed):
            await asker.request("liar", b"", timeout=30)
        assert asker.stats()["pending"] == asker.stats()["budget_used"] == 0


@pytest.mark.parametrize(
    ("index", "length"),
    [("1", 99), ("1", 101), ("7", 100), ("0", 100), ("-1", 100), ("nonsense", 100), ("gone", 0)],
)
async def test_a_chunk_of_a_wrong_index_or_size_fails_the_transfer(nats_url: str, index: str, length: int) -> None:
    async with two(nats_url) as (asker, _), liar(nats_url) as client:

        async def begin(message: Msg) -> None:
            await client.publish(
                message.reply, bytes(100), reply="_INBOX.liar.rest", headers={SIZE: "200", CHUNKS: "2"}
            )

        async def lie(message: Msg) -> None:
            await client.publish(message.reply, bytes(length), headers={CHUNK: index})

        await client.subscribe("liar", cb=begin)
        await client.subscribe("_INBOX.liar.rest", cb=lie)
        await settle(client)
        if index == "0":  # it has come already, so it counts as doubled
            with pytest.raises(RequestTimedOut):
                await asker.request("liar", b"", timeout=0.3)
            return
        with pytest.raises(TransferFailed):
            await asker.request("liar", b"", timeout=30)
        assert asker.stats()["pending"] == asker.stats()["budget_used"] == 0


async def test_malformed_chunk_indices_are_not_answered(nats_url: str) -> None:
    async with two(nats_url) as (asker, _), liar(nats_url) as client:
        address: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def keep(message: Msg) -> None:
            address.set_result(message.reply)

        await client.subscribe("keeper", cb=keep)
        await settle(client)
        asking = asyncio.create_task(asker.request("keeper", body_of(MIB), timeout=30))
        subject = await address
        for index in ("2", "-1", "x", "999999", ""):
            with pytest.raises(nats.errors.TimeoutError):
                await client.request(subject, b"", headers={CHUNK: index}, timeout=0.05)
        second = await client.request(subject, b"", headers={CHUNK: "1"}, timeout=30)
        assert second.data == body_of(MIB)[512 * 1024 :]
        await client.publish(subject, orjson.dumps("done"))
        assert (await asking).body == b'"done"'
