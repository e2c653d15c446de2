"""Reply addresses: an answer goes to an inbox only."""

import asyncio
import logging

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from smcp_bus.bus import Incoming, Reply
from smcp_bus.dispatch import Dispatcher
from smcp_bus.headers import ERROR
from smcp_bus.nats.bus import BusConfig, open_bus
from smcp_bus.nats.receiving import Entry, Inbox, is_inbox
from smcp_bus.nats.wire import SIZE
from smcp_bus.subjects import serve_requests
from smcp_testing.nats_process import NatsServer

SERVED = "smcp.v1.lab.server.computer.pc.list_room"
OUTSIDE = ["smcp.v1.lab.notify.leave_office", "$JS.API.STREAM.PURGE.KV_members", "$KV.members.lab.agent", "_INBOXES.x"]
LONG = f"_INBOX.{'x' * 3600}"
"""An answer to it, with the way to its rest, is longer than nats-server's control line: it would end the connection."""


@pytest.mark.parametrize("address", [*OUTSIDE, LONG])
async def test_a_request_with_a_foreign_reply_address_is_not_run(nats_server: NatsServer, address: str) -> None:
    ran: list[Incoming] = []
    heard: list[Msg] = []

    async def handler(incoming: Incoming) -> Reply:
        ran.append(incoming)
        return Reply(b"{}")

    async def hear(message: Msg) -> None:
        heard.append(message)

    client = Client()
    await client.connect(nats_server.url)
    try:
        async with open_bus(BusConfig(url=nats_server.url, name="test")) as bus:
            await bus.serve(SERVED, handler)
            if not address.startswith("$JS"):
                await client.subscribe(address, cb=hear)
            await client.publish(SERVED, b"{}", reply=address)
            await client.request(SERVED, b"{}", timeout=30)  # what came before it has been dealt with
            assert len(ran) == 1
            assert heard == []
    finally:
        await client.close()


def test_an_inbox_is_recognized_by_its_root() -> None:
    assert is_inbox(b"_INBOX.gateway-1.ab12.1-cd")
    assert not any(is_inbox(address.encode()) for address in [*OUTSIDE, LONG])


async def test_requests_that_no_process_of_ours_sends_write_nothing_to_the_log(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_bus(BusConfig(url=nats_url)) as bus, open_bus(BusConfig(url=nats_url)) as peer:
        await serve_requests(bus, Dispatcher({}), "smcp.v1.*.server.*.*.*")
        with caplog.at_level(logging.INFO):
            for _ in range(3):
                peer.send(SERVED, OUTSIDE[0], b"", b"{}")
                reply = await peer.request("smcp.v1.lab.server.computer.pc.unknown", b"{}", timeout=30)
                assert reply.headers[ERROR] == "400"
                reply = await peer.request(SERVED, b"{}", timeout=30, headers={SIZE: "none"})
                assert reply.headers[ERROR] == "503"
        assert caplog.records == []


async def test_the_next_reply_address_cannot_be_guessed() -> None:
    class Place(Entry):
        def receive(self, reply: str, head: bytes, body: bytes) -> None: ...

        def lost(self) -> None: ...

    inbox = Inbox("_INBOX.gateway", "ab12")
    tokens = [inbox.enter(Place())[0].partition(b"-") for _ in range(100)]
    secrets = {secret for _, _, secret in tokens}
    assert len(secrets) == 100
    assert {len(secret) for secret in secrets} == {16}


async def test_a_chunk_is_only_sent_to_an_inbox(nats_server: NatsServer) -> None:
    """The rest of a large answer goes to who asks for it, and only into an inbox."""
    heard: list[Msg] = []
    large = b'"' + b"x" * 2_000_000 + b'"'

    async def handler(incoming: Incoming) -> Reply:
        return Reply(large)

    async def hear(message: Msg) -> None:
        heard.append(message)

    client = Client()
    await client.connect(nats_server.url)
    try:
        async with open_bus(BusConfig(url=nats_server.url, name="test")) as bus, asyncio.timeout(30):
            await bus.serve(SERVED, handler)
            await client.subscribe(OUTSIDE[0], cb=hear)
            first = await client.request(SERVED, b"{}", timeout=30)
            pull = {"Smcp-Chunk": "1"}
            await client.publish(first.reply, b"", reply=OUTSIDE[0], headers=pull)
            chunk = await client.request(first.reply, b"", timeout=30, headers=pull)
            assert len(chunk.data) == 512 * 1024
            assert heard == []
    finally:
        await client.close()
