"""Requests that a replica passes on to a peer; the gateway gives the seat of an office to one process at a time."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from smcp_auth import api_keys
from smcp_auth.grants import Quota
from smcp_testing.bridged import ERAS
from smcp_testing.fake_gateway import FakeGateway, fake_gateway, tool
from smcp_testing.mcp_service import INITIALIZE, Service, mcp_service, office_client
from smcp_testing.ports import Ports

TAKEN = [False, "403 the office already has an Agent", {"holder": "smcp-mcp", "since": "2026-11-26T10:00:00Z"}]
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


def key_of(path: Path, quota: Quota) -> dict[str, str]:
    """The headers with a new key for all offices."""
    key, entry = api_keys.new_key(subject="anna", offices=["*"], roles=["agent"], names=["*"], quota=quota)
    api_keys.add(path, entry)
    return {"Accept": HEADERS["Accept"], "Authorization": f"Bearer {key}"}


async def asked(http: aiohttp.ClientSession, service: Service, office: str = "office", **more: str) -> int:
    """The status of a client's first request."""
    async with asyncio.timeout(30), http.post(service.office(office), json=INITIALIZE, headers=more) as answer:
        await answer.read()
        return answer.status


async def test_a_replica_that_is_among_its_own_peers_finds_the_holder_and_counts_a_request_once(tmp_path: Path) -> None:
    keys, port = tmp_path / "keys.json", Ports().take()
    headers = key_of(keys, Quota(calls_in_flight=1))
    async with (
        gateway_with_one_seat() as gateway,
        mcp_service(gateway.url, auth_keys=keys) as holder,
        mcp_service(
            gateway.url, auth_keys=keys, mcp_port=port, mcp_peers=f"http://127.0.0.1:{port},{holder.url}"
        ) as other,
        aiohttp.ClientSession(headers=headers) as http,
    ):
        assert await asked(http, holder) == 200
        assert [await asked(http, other) for _ in range(3)] == [200, 200, 200]
        assert len(gateway.seen("server:join_office")) == 2  # the holder was found once
        assert other.counted("smcp_mcp_passed_on_total", outcome="not_held") == 1


async def test_a_request_that_waits_for_a_seat_is_counted_once(tmp_path: Path) -> None:
    keys, port = tmp_path / "keys.json", Ports().take()
    headers = key_of(keys, Quota(calls_per_s=0.02))
    refusals = iter(range(5))

    async def join(data: dict[str, Any]) -> Any:
        return [True, None] if next(refusals, None) is None else TAKEN

    peers = {"mcp_port": port, "mcp_peers": f"http://127.0.0.1:{port}"}
    async with fake_gateway() as gateway, aiohttp.ClientSession(headers=headers) as http:
        gateway.answers["server:join_office"] = join
        async with mcp_service(gateway.url, auth_keys=keys, quota_burst_s=100.0, **peers) as service:
            assert [await asked(http, service) for _ in range(3)] == [200, 200, 429]
            assert service.counted("smcp_mcp_passed_on_total", outcome="not_held") == 5


async def test_a_client_that_writes_the_header_of_a_peer_is_counted_where_the_seat_is_and_costs_nothing_elsewhere(
    tmp_path: Path,
) -> None:
    keys = tmp_path / "keys.json"
    headers = key_of(keys, Quota(calls_per_s=0.02))
    forged = {"smcp-passed-on": "1"}
    async with gateway_with_one_seat() as gateway, aiohttp.ClientSession(headers=headers) as http:
        async with mcp_service(gateway.url, auth_keys=keys, quota_burst_s=150.0) as service:
            for _ in range(5):
                assert await asked(http, service, **forged) == 421
            assert [await asked(http, service, **more) for more in ({}, forged, forged)] == [200, 200, 200]
            assert [await asked(http, service, **more) for more in ({}, forged)] == [429, 429]


async def test_a_replica_that_does_not_hold_the_seat_does_not_wait_for_the_body_of_a_peers_request() -> None:
    async with fake_gateway() as gateway, mcp_service(gateway.url) as service:
        host, port = service.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"POST /mcp/office HTTP/1.1\r\nHost: {host}\r\nsmcp-passed-on: 1\r\nContent-Length: 9\r\n\r\n".encode()
        )
        async with asyncio.timeout(30):
            assert (await reader.readline()).startswith(b"HTTP/1.1 421 ")
        writer.close()
        await writer.wait_closed()


async def test_a_peer_that_refuses_a_request_is_not_taken_for_the_holder_of_the_seat() -> None:
    refusal = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    async with gateway_with_one_seat() as gateway, peer_that_answers(refusal) as peer:
        await refused_by_another(gateway)
        async with mcp_service(gateway.url, mcp_peers=peer) as service, aiohttp.ClientSession() as http:
            assert await asked(http, service, **HEADERS) == 401
            await gateway.answers["server:leave_office"]({"office_id": "office"})
            async with http.post(service.office(), json=INITIALIZE, headers={"Accept": HEADERS["Accept"]}) as answer:
                assert answer.status == 200
        assert service.counted("smcp_mcp_passed_on_total", outcome="answered") == 1


async def test_a_replica_knows_the_peers_of_a_bounded_number_of_offices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smcp_mcp.peers.MAX_KNOWN_PEERS", 1)
    async with (
        gateway_with_one_seat() as gateway,
        mcp_service(gateway.url) as holder,
        mcp_service(gateway.url, mcp_peers=holder.url) as other,
        aiohttp.ClientSession(headers={"Accept": HEADERS["Accept"]}) as http,
    ):
        for office in ("a", "b"):
            assert await asked(http, holder, office) == 200

        async def joins_until_passed_on(office: str) -> int:
            before = len(gateway.seen("server:join_office"))
            assert await asked(http, other, office) == 200
            return len(gateway.seen("server:join_office")) - before

        assert [await joins_until_passed_on(office) for office in ("a", "a", "b", "b", "a")] == [1, 0, 1, 0, 1]


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
