"""Clients that do not read, and clients of a gateway that stops: nobody else notices."""

import asyncio
import socket

import pytest

from smcp_gateway import app
from smcp_testing.gateway_world import MIB, connected, gateway_world
from smcp_testing.held_counts import alive, held_bytes
from smcp_testing.waiting import eventually

OFFICE = "office"
LIMIT = MIB


async def deaf_member(url: str, name: str) -> socket.socket:
    """A member of the office on a raw WebSocket that reads nothing any more."""
    host, port = url.removeprefix("http://").split(":")
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(raw, (host, int(port)))
    await loop.sock_sendall(
        raw,
        b"GET /socket.io/?EIO=4&transport=websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
        b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n",
    )

    async def heard(needle: bytes) -> None:
        seen = b""
        async with asyncio.timeout(30):
            while needle not in seen:
                part = await loop.sock_recv(raw, 4096)
                assert part, f"the gateway hung up: {seen[-200:]!r}"
                seen += part

    def frame(text: str) -> bytes:
        data = text.encode()
        size = bytes([0x80 | len(data)]) if len(data) < 126 else bytes([0x80 | 126]) + len(data).to_bytes(2, "big")
        return b"\x81" + size + bytes(4) + data

    await heard(b"pingInterval")
    await loop.sock_sendall(raw, frame("40/smcp,"))
    await heard(b"40/smcp")
    join = f'42/smcp,1["server:join_office",{{"role":"computer","name":"{name}","office_id":"{OFFICE}"}}]'
    await loop.sock_sendall(raw, frame(join))
    await heard(b"43/smcp,1[[true,null]]")
    return raw


@pytest.mark.rule("answers.large.deaf")
async def test_a_client_that_does_not_read_is_disconnected_at_a_byte_limit_and_others_go_on(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "LONGEST_PING_S", 60.0)  # it is not cut off because it answers no ping
    async with gateway_world(nats_url, max_payload=LIMIT, lease_s=200) as world, connected(world.url) as box:
        await box.join("computer", "box", OFFICE)
        before = alive()["Outbox"]
        raw = await deaf_member(world.url, "deaf")
        gateway = world.gateways[0]
        [deaf] = [session for session in gateway.sessions if session.name == "deaf"]
        big, most = {"computer": "box", "more": "x" * 60_000}, 0
        for _ in range(400):
            assert await box.call("server:update_config", big) is None
            most = max(most, held_bytes(gateway, deaf))
            if deaf.closed:
                break
        assert deaf.closed
        # what waits is bounded; beside it there is a portion (16 messages) that is being written
        assert LIMIT + 7 * MIB < most <= LIMIT + 9 * MIB
        await eventually(lambda: box.told("notify:leave_office"))
        await eventually(lambda: alive()["Outbox"] == before, message="what waited for it is gone")
        raw.close()
