"""Limits of unauthenticated clients: their bytes, time and connections; and which web pages may connect."""

import asyncio
import gzip
import logging
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from smcp_service import http_limits
from smcp_service.http_limits import CONNECTION_BYTES, EdgeRules, of_member
from smcp_service.http_server import Listener, listening
from smcp_testing.waiting import eventually

HEAD = "POST /{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {size}\r\n\r\n"
PATIENCE_S = 30


async def read(request: web.Request) -> web.Response:
    """Answers with the size of the body, once all of it has come. A path `/member` makes it one of a member."""
    if request.path == "/member":
        of_member(request)
    return web.json_response({"size": len(await request.read())})


async def echo(request: web.Request) -> web.WebSocketResponse:
    """A WebSocket that answers each message with its size; `in` lets the client in."""
    answers = web.WebSocketResponse(max_msg_size=0)
    await answers.prepare(request)
    async for message in answers:
        if message.data == "in":
            http_limits.let_in(request.transport)
        await answers.send_str(str(len(message.data)))
    return answers


@asynccontextmanager
async def serving(**rules: Any) -> AsyncIterator[Listener]:
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.add_routes([web.get("/echo", echo), web.get("/livez", read), web.route("*", "/{path:.*}", read)])
    async with listening(app, "127.0.0.1", 0, EdgeRules(**rules), choose="--port") as server:
        yield server


@asynccontextmanager
async def line(server: Listener) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What still comes until the server ends the connection."""
    rest = b""
    async with asyncio.timeout(PATIENCE_S):
        try:
            while part := await reader.read(64 * 1024):
                rest += part
        except ConnectionError:
            pass
    return rest


@pytest.mark.parametrize("path", ["", "member"])
async def test_a_body_in_thousands_of_small_chunks_ends_its_connection_before_it_is_parsed(path: str) -> None:
    head = HEAD.format(path=path, size=0).replace("Content-Length: 0", "Transfer-Encoding: chunked").encode()
    async with serving() as server:
        for chunk in (b"1\r\na\r\n", b"00001;x=y\r\na\r\n", b"a\r\naaaaaaaaaa\r\n"):
            async with line(server) as (reader, writer):
                began = time.thread_time()
                writer.write(head + chunk * 40_000)
                assert b"HTTP/1.1 200 " not in await ended(reader)
                assert time.thread_time() - began < 0.1, "0.5 s of which nobody else had any before"
        async with line(server) as (reader, writer):
            writer.write(head + b"1\r\na\r\n" * 250 + (b"200\r\n" + b"a" * 512 + b"\r\n") * 100 + b"0\r\n\r\n")
            answer = await reader.readuntil(b"}")
            assert answer.endswith(b'{"size": 51450}')


async def status(server: Listener, path: str = "/", **request: Any) -> int:
    async with aiohttp.ClientSession() as http, http.request("GET", f"{server.url}{path}", **request) as answer:
        return answer.status


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "x-gzip, gzip"])
@pytest.mark.parametrize("path", ["/", "/livez", "/member"])
async def test_a_compressed_body_is_415_on_any_path(path: str, encoding: str) -> None:
    body = gzip.compress(bytes(1024 * 1024))
    async with serving() as server:
        assert await status(server, path, data=body, headers={"Content-Encoding": encoding}) == 415
        assert await status(server, path, data=b"plain", headers={"Content-Encoding": "identity"}) == 200


async def test_an_authenticated_request_is_not_limited_and_any_other_one_is_to_64_kib() -> None:
    large = bytes(12 * CONNECTION_BYTES)
    async with serving() as server, aiohttp.ClientSession() as http:
        async with http.post(f"{server.url}/member", data=large) as answer:
            assert await answer.json() == {"size": len(large)}
        async with line(server) as (reader, writer):
            writer.write(HEAD.format(path="other", size=len(large)).encode())
            await writer.drain()
            with pytest.raises(ConnectionError):
                while True:
                    writer.write(bytes(CONNECTION_BYTES))
                    await writer.drain()
                    await asyncio.sleep(0)
            assert await ended(reader) == b""
        assert server.unauthenticated.closed["bytes"] == 1
        # a connection that a proxy uses for a member's requests and then for others
        async with http.post(f"{server.url}/member", data=large) as answer:
            assert answer.status == 200
        async with http.post(f"{server.url}/other", data=large[:1000]) as answer:
            assert await answer.json() == {"size": 1000}
        assert server.unauthenticated.bytes == 0


async def test_answered_requests_do_not_add_up() -> None:
    async with serving() as server, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as http:
        for _ in range(10):
            async with http.post(f"{server.url}/", data=bytes(CONNECTION_BYTES // 2)) as answer:
                assert answer.status == 200
        assert len(server.unauthenticated) == 1


async def test_a_websocket_has_no_limit_from_when_it_is_let_in() -> None:
    async with serving() as server, aiohttp.ClientSession() as http:
        async with http.ws_connect(f"{server.url}/echo") as other:
            await other.send_bytes(bytes(2 * CONNECTION_BYTES))
            assert (await other.receive(PATIENCE_S)).type in {aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR}
        async with http.ws_connect(f"{server.url}/echo") as member:
            await member.send_str("in")
            assert await member.receive_str() == "2"
            assert len(server.unauthenticated) == 0
            await member.send_bytes(bytes(200 * CONNECTION_BYTES))
            assert await member.receive_str() == str(200 * CONNECTION_BYTES)


async def test_what_many_unauthenticated_connections_send_at_once_is_read_a_little_at_a_time() -> None:
    rounds = 0
    began = Counter[int]()

    async def count_rounds() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    async def note(request: web.Request) -> web.Response:
        began[rounds] += 1
        return web.Response()

    app = web.Application()
    app.add_routes([web.get("/", note)])
    counting = asyncio.create_task(count_rounds())
    async with listening(app, "127.0.0.1", 0, EdgeRules(), choose="--port") as server, AsyncExitStack() as stack:
        lines = [await stack.enter_async_context(line(server)) for _ in range(50)]
        for _, writer in lines:
            writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 20)
        await eventually(lambda: began.total() == 50 * 20)
        counting.cancel()
    assert max(began.values()) < 10, "of up to 50 connections in one round before"


@pytest.mark.parametrize("sent", ["", "GET / HTTP/1.1\r\nHost: 127.0", HEAD.format(path="x", size=5)[:-2]])
async def test_headers_have_a_deadline(monkeypatch: pytest.MonkeyPatch, sent: str) -> None:
    monkeypatch.setattr(http_limits, "HEAD_S", 0.2)
    monkeypatch.setattr(http_limits, "SWEEP_S", 0.05)
    async with serving() as server, line(server) as (reader, writer):
        writer.write(sent.encode())
        assert await ended(reader) == b""
        assert server.unauthenticated.closed["late"] == 1


async def test_the_headers_of_a_second_request_have_the_same_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_limits, "SWEEP_S", 0.05)
    async with serving() as server, line(server) as (reader, writer):
        writer.write(HEAD.format(path="x", size=0).encode())
        assert (await reader.readuntil(b"}")).endswith(b'{"size": 0}')
        monkeypatch.setattr(http_limits, "HEAD_S", 0.2)
        writer.write(b"GET /")
        assert await ended(reader) == b""


async def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_limits, "IDLE_S", 0.2)
    monkeypatch.setattr(http_limits, "SWEEP_S", 0.05)
    async with serving() as server, line(server) as (reader, writer):
        writer.write(HEAD.format(path="x", size=0).encode())
        assert (await ended(reader)).endswith(b'{"size": 0}')


async def test_unauthenticated_connections_of_one_address_are_limited() -> None:
    async with serving(per_address=3) as server, aiohttp.ClientSession() as http:
        async with http.ws_connect(f"{server.url}/echo") as member:
            await member.send_str("in")
            assert await member.receive_str() == "2"
            async with line(server), line(server), line(server), line(server) as (reader, _):
                assert (await ended(reader)).startswith(b"HTTP/1.1 429 ")
                await member.send_str("more")
                assert await member.receive_str() == "4"
                with socket.create_connection((server.host, server.port), source_address=("127.0.0.2", 0)) as other:
                    other.setblocking(False)
                    loop = asyncio.get_running_loop()
                    await loop.sock_sendall(other, HEAD.format(path="x", size=0).encode())
                    assert (await loop.sock_recv(other, 1000)).startswith(b"HTTP/1.1 200 ")
        assert server.unauthenticated.closed["connections"] == 1


async def test_a_proxy_may_have_any_number_of_connections() -> None:
    async with serving(per_address=1, counted_as=lambda _: None) as server, line(server), line(server):
        assert await status(server) == 200


async def test_unauthenticated_connections_share_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_limits, "TOTAL_BYTES", 100_000)
    async with serving() as server, line(server) as small, line(server) as large, line(server) as last:
        expected = 0
        for (_, writer), size in ((small, 30_000), (large, 60_000)):
            sent = HEAD.format(path="x", size=size + 1).encode() + bytes(size)
            writer.write(sent)
            expected += len(sent)
            await eventually(lambda: server.unauthenticated.bytes == expected)  # noqa: B023 -- asked before the next turn
        last[1].write(HEAD.format(path="x", size=20_001).encode() + bytes(20_000))
        assert await ended(large[0]) == b""
        for reader, writer in (small, last):
            writer.write(b"x")
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1", True),
        ("127.0.0.1:8000", True),
        ("localhost:8000", True),
        ("LOCALHOST", True),
        ("[::1]:8000", True),
        ("office.example:8000", True),
        ("evil.example", False),
        ("evil.example:8000", False),
        ("127.0.0.1.evil.example", False),
        ("evil.example@127.0.0.1", False),
        ("10.0.0.1", False),
        ("a b", False),
        ("", False),
    ],
)
async def test_a_page_that_reaches_this_address_by_another_name_is_refused(host: str, allowed: bool) -> None:
    async with serving(hosts=("office.example",)) as server:
        assert await status(server, headers={"Host": host}) == (200 if allowed else 403)
        assert await status(server, "/livez", headers={"Host": host or "x"}) == 200


@pytest.mark.parametrize("hosts", [(), None], ids=["names of loopback", "any Host"])
@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        ("https://console.example", "127.0.0.1", True),
        ("HTTPS://console.example", "127.0.0.1", True),
        ("http://127.0.0.1:8000", "127.0.0.1:8000", True),
        ("https://127.0.0.1:8000", "127.0.0.1:8000", True),
        ("http://127.0.0.1:8001", "127.0.0.1:8000", False),
        ("http://console.example", "127.0.0.1", False),
        ("http://evil.example", "127.0.0.1", False),
        ("null", "127.0.0.1", False),
        ("file://", "127.0.0.1", False),
        ("http://", "127.0.0.1", False),
        ("http://[[[", "127.0.0.1", False),
        ("http://evil.example:8000", "evil.example:8000", False),
        ("http://10.0.0.1:8000", "10.0.0.1:8000", False),
        ("https://127.0.0.1.evil.example", "127.0.0.1.evil.example", False),
    ],
)
async def test_only_pages_of_allowed_origins_may_connect(
    hosts: tuple[str, ...] | None, origin: str, host: str, allowed: bool
) -> None:
    async with serving(hosts=hosts, origins=("https://console.example",)) as server:
        headers = {"Origin": origin, "Host": host, "X-Forwarded-Host": origin.removeprefix("http://")}
        assert await status(server, headers=headers) == (200 if allowed else 403)


async def test_a_client_may_say_the_url_that_it_connects_to_by_a_name_that_is_allowed() -> None:
    async with serving(hosts=("office.example",)) as server:
        for origin, answer in (("https://office.example", 200), ("https://office.example:8443", 403)):
            assert await status(server, headers={"Origin": origin, "Host": "office.example"}) == answer


@pytest.mark.parametrize("said", [b"200-ok", b"10\xf0\x9f0-continue"])
async def test_an_expectation_that_is_not_known_is_417_and_not_logged(
    said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with serving() as server, line(server) as (reader, writer):
        writer.write(b"GET /x HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: " + said + b"\r\n\r\n")
        assert (await ended(reader)).startswith(b"HTTP/1.1 417 ")
    assert not [record for record in caplog.records if record.name.startswith("aiohttp")]


async def test_malformed_requests_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serving() as server:
        for number in range(40):
            async with line(server) as (reader, writer):
                writer.write(b"GET / HTTP/1.1\r\nbad header %d\r\n\r\n" % number)
                assert (await ended(reader)).startswith(b"HTTP/1.0 400 ")
    assert not [record for record in caplog.records if record.name.startswith("aiohttp")]
