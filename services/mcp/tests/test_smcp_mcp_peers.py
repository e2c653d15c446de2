"""Requests that a replica passes on to a peer; the gateway gives the seat of an office to one process at a time."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from smcp_testing.bridged import ERAS
from smcp_testing.fake_gateway import FakeGateway, fake_gateway, tool
from smcp_testing.mcp_service import INITIALIZE, mcp_service, office_client
from smcp_testing.ports import Ports

TAKEN = [False, "403 the office has an Agent already", {"holder": "smcp-mcp", "since": "2026-11-26T10:00:00Z"}]
CALL = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "echo"}}
PING = {"jsonrpc": "2.0", "id": 7, "method": "ping"}
ACCEPT = {"Accept": "application/json, text/event-stream"}
HEADERS = {**ACCEPT, "Mcp-Session-Id": "of-a-peer"}
UNKNOWN = {"code": -32603, "message": "the replica that held the office is gone", "data": {"may_have_run": True}}
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def gateway_with_one_seat() -> AsyncIterator[FakeGateway]:
    """Grants the seat of each office once, until it is left."""
    held: set[str] = set()

    async def join(data: dict[str, Any]) -> Any:
        if data["office_id"] in held:
            return TAKEN
        held.add(data["office_id"])
        return [True, None]

    async def leave(data: dict[str, Any]) -> Any:
        held.discard(data["office_id"])
        return [True, None]

    async with fake_gateway() as gateway:
        gateway.answers |= {"server:join_office": join, "server:leave_office": leave}
        gateway.computers["red"] = [tool("echo")]
        yield gateway


@asynccontextmanager
async def peer_that_answers(*chunks: bytes) -> AsyncIterator[str]:
    """The URL of a peer that answers each request with those bytes, and hangs up."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(length)
        for chunk in chunks:
            writer.write(chunk)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def refused_by_another(gateway: FakeGateway) -> None:
    """Somebody else takes the seat of the office."""
    await gateway.answers["server:join_office"]({"office_id": "office"})


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


@ERAS
async def test_a_replica_passes_requests_on_to_the_one_that_holds_the_seat(era: str) -> None:
    async with gateway_with_one_seat() as gateway, mcp_service(gateway.url) as holder:
        async with office_client(holder.office("Büro 3"), era) as here:
            assert await here.names() == ["echo"]
            async with (
                mcp_service(gateway.url, mcp_peers=f"http://127.0.0.1:{Ports().take()},{holder.url}") as other,
                office_client(other.office("Büro 3"), era) as passed_on,
            ):
                assert await passed_on.text("echo") == "echo"
                joins = len(gateway.seen("server:join_office"))
                assert await passed_on.names() == ["echo"]
                assert len(gateway.seen("server:join_office")) == joins == 2
                assert other.counted("smcp_mcp_requests_total", by="here") == 0
                assert other.counted("smcp_mcp_passed_on_total", outcome="unreachable") == 1


async def test_a_session_is_known_at_a_replica_that_never_joined_its_office() -> None:
    async with gateway_with_one_seat() as gateway, mcp_service(gateway.url) as holder, aiohttp.ClientSession() as http:
        async with http.post(holder.office(), json=INITIALIZE, headers=ACCEPT) as answer:
            session = answer.headers["Mcp-Session-Id"]
        async with mcp_service(gateway.url, mcp_peers=holder.url) as other:
            for known, status in ((session, 200), ("of-nobody", 404)):
                headers = {**ACCEPT, "Mcp-Session-Id": known}
                async with http.post(other.office(), json=PING, headers=headers) as answer:
                    assert answer.status == status
        assert len(gateway.seen("server:join_office")) == 1


async def test_a_replica_takes_the_seat_that_its_peer_leaves() -> None:
    async with gateway_with_one_seat() as gateway:
        async with mcp_service(gateway.url) as holder:
            async with office_client(holder.office(), "2026-07-28") as client:
                await client.names()
            async with mcp_service(gateway.url, mcp_peers=holder.url) as other:
                async with office_client(other.office(), "2026-07-28") as client:
                    await client.names()
                    assert (holder.counted("smcp_mcp_offices"), other.counted("smcp_mcp_offices")) == (1, 0)
                    await holder.stop()
                    assert await client.text("echo") == "echo"
                    assert other.counted("smcp_mcp_offices") == 1


@pytest.mark.parametrize("begun", [[], [EVENTS], [EVENTS, chunked(b": ping\r\n\r\n")]])
async def test_a_call_whose_peer_breaks_off_is_an_error_that_says_that_it_may_have_run(begun: Sequence[bytes]) -> None:
    async with gateway_with_one_seat() as gateway, peer_that_answers(*begun) as peer:
        await refused_by_another(gateway)
        async with mcp_service(gateway.url, mcp_peers=peer) as service, aiohttp.ClientSession() as http:
            async with http.post(service.office(), json=CALL, headers=HEADERS) as answer:
                said = (await answer.read()).strip().splitlines()[-1]
    error = json.loads(said.removeprefix(b"data: "))
    assert error == {"jsonrpc": "2.0", "id": 7, "error": UNKNOWN}


async def test_a_header_that_cannot_be_passed_on_is_refused_and_an_answer_has_one_date() -> None:
    async with gateway_with_one_seat() as gateway, mcp_service(gateway.url) as holder:
        async with office_client(holder.office(), "2026-07-28") as client:
            await client.names()
        async with mcp_service(gateway.url, mcp_peers=holder.url) as other, aiohttp.ClientSession() as http:
            async with http.post(other.office(), json=CALL, headers=HEADERS) as answer:
                assert len(answer.headers.getall("Date")) == 1
            host, port = other.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            body = json.dumps(CALL).encode()
            head = f"POST /mcp/office HTTP/1.1\r\nHost: {host}\r\nX-A: a\x01b\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            async with asyncio.timeout(30):
                said = await reader.readuntil(b"\r\n\r\n")
            writer.close()
            await writer.wait_closed()
    assert said.startswith(b"HTTP/1.1 400 "), said


async def test_an_event_that_a_peer_sent_by_half_ends_the_connection() -> None:
    async with gateway_with_one_seat() as gateway, peer_that_answers(EVENTS, chunked(b'data: {"js')) as peer:
        await refused_by_another(gateway)
        async with mcp_service(gateway.url, mcp_peers=peer) as service, aiohttp.ClientSession() as http:
            async with http.post(service.office(), json=CALL, headers=HEADERS) as answer:
                with pytest.raises(aiohttp.ClientPayloadError):
                    await answer.read()


async def test_a_replica_that_does_not_hold_the_seat_answers_421_to_a_peer_and_passes_nothing_on() -> None:
    async with gateway_with_one_seat() as gateway, peer_that_answers(b"") as peer:
        async with mcp_service(gateway.url, mcp_peers=peer) as service, aiohttp.ClientSession() as http:
            async with http.post(service.office(), json=CALL, headers={**HEADERS, "smcp-passed-on": "1"}) as answer:
                assert answer.status == 421
        assert not gateway.received
