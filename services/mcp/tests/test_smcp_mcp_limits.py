"""What clients may cost over HTTP, while another client is served."""

import asyncio
import gc
import io
import logging
import socket
import struct
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import mcp_types as types
import orjson
import pytest
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError

from smcp_agent import SmcpAgent
from smcp_auth import api_keys
from smcp_auth.grants import UNLIMITED, Quota
from smcp_auth.quotas import SUBJECT_BODIES, BodyBudget
from smcp_mcp import auth, buffered_request, offices
from smcp_proto.errors import RateLimited
from smcp_service import http_limits
from smcp_service.http_limits import HEAD_S
from smcp_testing.bridged import ERAS
from smcp_testing.computer_world import native_computer
from smcp_testing.context_computer import computers_at
from smcp_testing.fake_gateway import fake_gateway, tool
from smcp_testing.gateway_world import gateway_world
from smcp_testing.mcp_servers import configs
from smcp_testing.mcp_servers.shelf import HOST
from smcp_testing.mcp_service import INITIALIZE, META, OfficeClient, Service, mcp_service, office_client
from smcp_testing.waiting import eventually

PATIENCE_S = 20.0
MIB = 1024 * 1024
HALF_A_HEAD = b"POST /mcp/lab-1 HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: " + b"a" * 8000

FORGED = {"Mcp-Method": "subscriptions/listen"}
"""A header that makes a call look like a stream of notifications."""

MODERN = {
    "Accept": "application/json, text/event-stream",
    "Mcp-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tools/call",
    "Mcp-Name": "large",
}

Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def key_of(path: Path, subject: str, **more: Any) -> dict[str, str]:
    """The header with a new key for all offices."""
    key, entry = api_keys.new_key(**{"subject": subject, "offices": ["*"], "roles": ["agent"], "names": ["*"], **more})
    api_keys.add(path, entry)
    return {"Authorization": f"Bearer {key}"}


@asynccontextmanager
async def with_keys(keys: Path, **more: Any) -> AsyncIterator[Service]:
    async with fake_gateway() as gateway, mcp_service(gateway.url, auth_keys=keys, **more) as service:
        gateway.computers["red"] = [tool("echo")]
        yield service


@asynccontextmanager
async def with_large_answers(
    keys: Path, length: int, **more: Any
) -> AsyncIterator[tuple[Service, aiohttp.ClientSession]]:
    """Calls of the tool `large` are answered with that many bytes."""

    async def large(data: dict[str, Any]) -> Any:
        return {"content": [{"type": "text", "text": "a" * length}], "isError": False}

    async with fake_gateway() as gateway, mcp_service(gateway.url, auth_keys=keys, **more) as service:
        gateway.computers["red"] = [tool("large")]
        gateway.answers["client:tool_call"] = large
        async with aiohttp.ClientSession() as http:
            yield service, http


@asynccontextmanager
async def line(service: Service, source: str = "127.0.0.1") -> AsyncIterator[Line]:
    """A connection from that address."""
    url = urlsplit(service.url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port, local_addr=(source, 0))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What is read until the server closes."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read()
    except ConnectionResetError:
        return b""


async def asked(http: aiohttp.ClientSession, service: Service, key: dict[str, str], office: str = "lab-1") -> int:
    """The status of a request."""
    headers = {"Accept": "application/json, text/event-stream", **key}
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with http.post(service.office(office), json=INITIALIZE, headers=headers, timeout=timeout) as answer:
        await answer.read()
        return answer.status


@contextmanager
def traced_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def live_bytes() -> int:
    """What Python has in use of what it took since `traced_memory` began."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize("sent", [b"", HALF_A_HEAD])
async def test_headers_over_http_have_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(http_limits, "HEAD_S", 0.3)
    monkeypatch.setattr(http_limits, "SWEEP_S", 0.05)
    key_of(tmp_path / "keys.json", "anna")
    async with with_keys(tmp_path / "keys.json") as service, line(service) as (reader, writer):
        writer.write(sent)
        assert await ended(reader) == b""


async def test_the_headers_of_a_second_request_over_http_have_the_same_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_of(tmp_path / "keys.json", "anna")
    async with with_keys(tmp_path / "keys.json") as service, line(service) as (reader, writer):
        writer.write(b"GET /nothing HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 404 ")
        monkeypatch.setattr(http_limits, "HEAD_S", 0.3)
        writer.write(b"GET /")
        assert await ended(reader) == b"Not Found"


async def test_one_address_has_few_unfinished_requests_and_clients_with_a_connection_or_another_address_are_served(
    tmp_path: Path,
) -> None:
    anna = key_of(tmp_path / "keys.json", "anna")
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(with_keys(tmp_path / "keys.json", unauthenticated_per_address=20))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        assert await asked(http, service, anna) == 200
        lines = [await stack.enter_async_context(line(service)) for _ in range(60)]
        for _, writer in lines:
            writer.write(HALF_A_HEAD)
        refused = await asyncio.gather(*(ended(reader) for reader, _ in lines[20:]))
        assert all(said == b"" or said.startswith(b"HTTP/1.1 429 ") for said in refused)
        started = time.monotonic()
        assert await asked(http, service, anna) == 200
        elsewhere = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
        other = await stack.enter_async_context(aiohttp.ClientSession(connector=elsewhere))
        assert await asked(other, service, anna) == 200
        assert time.monotonic() - started < HEAD_S / 2
        assert not lines[0][0].at_eof()


async def test_what_a_client_sent_on_a_connection_that_it_resets_is_forgotten_at_once(tmp_path: Path) -> None:
    key_of(tmp_path / "keys.json", "anna")
    request = b"GET /nothing HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: " + b"a" * 60_000 + b"\r\n\r\n"
    async with with_keys(tmp_path / "keys.json") as service:

        async def reset_after_the_answer() -> None:
            async with line(service) as (reader, writer):
                writer.write(request)
                async with asyncio.timeout(PATIENCE_S):
                    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 404 ")
                reset = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)

        await reset_after_the_answer()  # code that runs for the first time takes memory for good
        with traced_memory():
            for _ in range(50):
                await reset_after_the_answer()

            async def forgotten() -> bool:
                return live_bytes() < 10 * len(request)

            await eventually(forgotten, message="connections that were reset are kept")


async def session(http: aiohttp.ClientSession, url: str, key: dict[str, str]) -> dict[str, str]:
    """A session up to MCP 2025-11-25 by plain HTTP: the headers of its further requests."""
    headers = {"Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": "2025-11-25", **key}
    async with http.post(url, json=INITIALIZE, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()
        return {**headers, "Mcp-Session-Id": answer.headers["Mcp-Session-Id"]}


def call_of(name: str, number: int, arguments: dict[str, Any]) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


async def test_a_session_keeps_nothing_of_a_large_request_and_answer(tmp_path: Path) -> None:
    anna = key_of(tmp_path / "keys.json", "anna")
    large: dict[str, Any] = {"text": "a" * (MIB // 2), "lists": [[]] * 20_000}

    async def answer(data: dict[str, Any]) -> Any:
        return {"content": [{"type": "text", "text": "a" * MIB}], "isError": False}

    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(fake_gateway())
        gateway.computers["red"] = [tool("large")]
        gateway.answers["client:tool_call"] = answer
        service = await stack.enter_async_context(mcp_service(gateway.url, auth_keys=tmp_path / "keys.json"))
        http = await stack.enter_async_context(aiohttp.ClientSession())

        async def used(message: dict[str, Any], status: int) -> None:
            headers = await session(http, service.office("lab-1"), anna)
            async with http.post(service.office("lab-1"), json=message, headers=headers) as answer:
                assert answer.status == status
                await answer.read()

        kinds = [
            (call_of("unknown", 2, large), 200),
            (call_of("large", 2, {}), 200),
            ({"jsonrpc": "2.0", "id": 2, "result": large}, 202),
            ({"jsonrpc": "2.0", "method": "notifications/x", "params": large}, 202),
        ]
        for kind in kinds:
            await used(*kind)
        with traced_memory():
            for _ in range(5):
                for kind in kinds:
                    await used(*kind)

            async def forgotten() -> bool:
                return live_bytes() < 4 * MIB

            await eventually(forgotten, message="sessions keep their newest request or answer")


async def test_the_mcp_sdk_handles_a_small_call_of_a_session_once(monkeypatch: pytest.MonkeyPatch) -> None:
    handled = 0
    handle_request = StreamableHTTPSessionManager.handle_request

    async def count(manager: StreamableHTTPSessionManager, *given: Any) -> None:
        nonlocal handled
        handled += 1
        await handle_request(manager, *given)

    async with fake_gateway() as gateway, mcp_service(gateway.url) as service, aiohttp.ClientSession() as http:
        gateway.computers["red"] = [tool("echo")]
        headers = await session(http, service.office(), {})
        await eventually(lambda: service.counted("smcp_mcp_requests_total", by="here") == 1)
        monkeypatch.setattr(StreamableHTTPSessionManager, "handle_request", count)
        for number in range(2, 5):
            async with http.post(service.office(), json=call_of("echo", number, {}), headers=headers) as answer:
                assert "echo" in await answer.text()
        await eventually(lambda: service.counted("smcp_mcp_requests_total", by="here") == 4)
        assert handled == 3


async def test_a_session_keeps_nothing_of_an_answer_or_error_that_comes_when_its_client_is_gone(tmp_path: Path) -> None:
    anna = key_of(tmp_path / "keys.json", "anna")
    text = "a" * MIB
    late = [{"content": [{"type": "text", "text": text}]}, {"code": 500, "message": text, "details": {}}]
    calls = asyncio.Queue[asyncio.Future[Any]]()

    async def answer(data: dict[str, Any]) -> Any:
        calls.put_nowait(called := asyncio.get_running_loop().create_future())
        return await called

    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(fake_gateway())
        gateway.computers["red"] = [tool("sleep")]
        gateway.answers["client:tool_call"] = answer
        service = await stack.enter_async_context(mcp_service(gateway.url, auth_keys=tmp_path / "keys.json"))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        url = service.office("lab-1")

        async def gone_before(answer: Any) -> None:
            headers = await session(http, url, anna)
            begun = service.counted("smcp_mcp_requests_total", by="here")
            async with http.post(url, json=call_of("sleep", 2, {}), headers=headers) as waiting:
                called = await calls.get()
                waiting.close()
            await eventually(lambda: service.counted("smcp_mcp_requests_total", by="here") > begun)
            called.set_result(answer)

        for each in late:
            await gone_before(each)
        with traced_memory():
            for _ in range(5):
                for each in late:
                    await gone_before(each)

            async def forgotten() -> bool:
                return live_bytes() < 2 * MIB

            await eventually(forgotten, message="sessions keep late answers")


async def test_a_client_that_begins_again_and_again_in_its_session_takes_no_more_memory_and_hears_of_changes(
    tmp_path: Path,
) -> None:
    anna = key_of(tmp_path / "keys.json", "anna")
    initialized = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(fake_gateway())
        service = await stack.enter_async_context(mcp_service(gateway.url, auth_keys=tmp_path / "keys.json"))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        url = service.office("lab-1")
        headers = await session(http, url, anna)

        async def begin(times: int) -> None:
            for _ in range(times):
                for message in (INITIALIZE, initialized):
                    async with http.post(url, json=message, headers=headers) as answer:
                        assert answer.ok
                        await answer.read()

        await begin(20)
        with traced_memory():
            await begin(100)

            async def forgotten() -> bool:
                return live_bytes() < MIB / 2

            await eventually(forgotten, message="what a client said before is kept")
        stream = await stack.enter_async_context(http.get(url, headers=headers))
        await gateway.enter("red", [tool("echo")])
        async with asyncio.timeout(PATIENCE_S):
            assert b"/list_changed" in await stream.content.readuntil(b"\r\n\r\n")


@pytest.mark.parametrize("method", ["initialize", "notifications/initialized"])
@pytest.mark.parametrize(
    ("meta", "limit"), [({"v": "a" * 16_384}, {"limit": 16_384}), ({"v": [1] * 1000}, {"max_values": 1000})]
)
async def test_what_a_session_keeps_until_it_ends_is_small(
    tmp_path: Path, method: str, meta: dict[str, Any], limit: dict[str, int]
) -> None:
    anna = key_of(tmp_path / "keys.json", "anna")
    params: Any = INITIALIZE["params"]
    large = {**INITIALIZE, "method": method, "params": {**params, "_meta": meta}}
    async with with_keys(tmp_path / "keys.json") as service, aiohttp.ClientSession() as http:
        url = service.office("lab-1")
        for headers in (anna, await session(http, url, anna)):
            async with http.post(url, json=large, headers=headers) as answer:
                assert answer.status == 413
                assert (await answer.json())["error"]["data"].items() >= limit.items()


async def test_an_answer_that_its_client_does_not_read_ends_with_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffered_request, "BODY_S", 1.0)
    anna = key_of(tmp_path / "keys.json", "anna")
    async with with_large_answers(tmp_path / "keys.json", 16 * MIB) as (service, http):
        url = service.office("lab-1")
        headers = await session(http, url, anna)
        with pytest.raises(aiohttp.ClientPayloadError):
            async with http.post(url, json=call_of("large", 2, {}), headers=headers) as answer:
                assert answer.connection is not None
                assert answer.connection.transport is not None
                transport = answer.connection.transport
                transport.pause_reading()
                await eventually(lambda: service.counted("smcp_mcp_requests_total", by="here") == 2)
                transport.resume_reading()
                await answer.read()


@pytest.mark.parametrize("has_session", [True, False])
async def test_answers_that_a_client_does_not_read_have_a_budget_and_connections_above_it_are_closed(
    tmp_path: Path, has_session: bool
) -> None:
    anna, bob = (key_of(tmp_path / "keys.json", name) for name in ("anna", "bob"))
    length = 7 * MIB  # more than the kernel takes for a connection
    async with AsyncExitStack() as stack:
        answering = with_large_answers(tmp_path / "keys.json", length, max_payload=8 * MIB)
        service, http = await stack.enter_async_context(answering)
        url = service.office("lab-1")
        headers, others = anna | MODERN, bob | MODERN
        if has_session:
            headers, others = await session(http, url, anna), await session(http, url, bob)

        paused = list[asyncio.Transport]()

        async def call(number: int, of: dict[str, str]) -> aiohttp.ClientResponse:
            said = call_of("large", number, {})
            said["params"] |= {} if has_session else {"_meta": META}
            answer = await stack.enter_async_context(http.post(url, json=said, headers=of))
            if of is headers and answer.connection is not None and answer.connection.transport is not None:
                answer.connection.transport.pause_reading()
                paused.append(answer.connection.transport)
            return answer

        answers = [await call(number, headers) for number in range(2, 8)]
        await eventually(lambda: service.counted("smcp_mcp_quota_refusals_total", quota="answers") == 2)
        assert len(await (await call(9, others)).read()) > length
        for transport in paused:
            transport.resume_reading()
        read = await asyncio.gather(*(each.read() for each in answers), return_exceptions=True)
        assert [len(each) > length for each in read if isinstance(each, bytes)] == [True] * 4
        assert [type(each) for each in read if not isinstance(each, bytes)] == [aiohttp.ClientPayloadError] * 2


async def test_large_answers_of_an_office_wait_for_one_another_and_those_of_another_office_for_one_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offices, "READ_PER_S", 4 * MIB)
    anna, bob = (key_of(tmp_path / "keys.json", name) for name in ("anna", "bob"))
    async with with_large_answers(tmp_path / "keys.json", MIB) as (service, http):

        async def call(office: str, key: dict[str, str]) -> bytes:
            request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "large", "_meta": META}}
            async with http.post(service.office(office), json=request, headers=MODERN | key) as answer:
                return await answer.read()

        assert len(await call("lab-1", anna)) > MIB
        assert len(await call("lab-2", bob)) > MIB
        hers = [asyncio.create_task(call("lab-1", anna)) for _ in range(16)]
        try:
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.wait(hers, return_when=asyncio.FIRST_COMPLETED)
                assert len(await call("lab-2", bob)) > MIB
            assert sum(each.done() for each in hers) < len(hers) / 2
        finally:
            for each in hers:
                each.cancel()
            await asyncio.wait(hers)


async def test_a_call_in_a_session_counts_until_it_ends_although_its_client_disconnects(tmp_path: Path) -> None:
    keys, end = tmp_path / "keys.json", asyncio.Event()
    evil = key_of(keys, "evil", quota=Quota(calls_in_flight=1))

    async def answered_late(data: dict[str, Any]) -> Any:
        await end.wait()
        return {"content": [{"type": "text", "text": "late"}]}

    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(fake_gateway())
        gateway.computers["red"] = [tool("sleep")]
        gateway.answers["client:tool_call"] = answered_late
        service = await stack.enter_async_context(mcp_service(gateway.url, auth_keys=keys))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        url = service.office("lab-1")
        headers = await session(http, url, evil)
        async with http.post(url, json=call_of("sleep", 2, {}), headers=headers) as answer:
            assert answer.status == 200
            await eventually(lambda: gateway.seen("client:tool_call"))
            answer.close()

        async def status() -> int:
            async with http.post(url, json=call_of("sleep", 3, {}), headers=headers) as answer:
                await answer.read()
                return answer.status

        for _ in range(20):  # in this time the service notices that the first client is gone
            assert await status() == 429
        end.set()

        async def free() -> bool:
            return await status() == 200

        await eventually(free)


async def test_connections_that_a_client_closes_before_its_answers_have_ended_count_no_longer(tmp_path: Path) -> None:
    anna = key_of(tmp_path / "keys.json", "anna")
    async with (
        with_keys(tmp_path / "keys.json", unauthenticated_per_address=5) as service,
        office_client(service.office("lab-1"), "legacy", **anna) as office,  # it closes one with each call
    ):
        for _ in range(20):
            assert not (await office.client.call_tool("echo", {})).is_error


def upload(key: dict[str, str], size: int) -> bytes:
    """The headers of a request whose body has so many bytes."""
    said = key["Authorization"]
    return (
        f"POST /mcp/lab-1 HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {said}\r\nContent-Length: {size}\r\n\r\n"
    ).encode()


async def test_unfinished_bodies_of_one_key_share_a_budget_and_another_key_is_served(tmp_path: Path) -> None:
    anna, evil = (key_of(tmp_path / "keys.json", name) for name in ("anna", "evil"))
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(with_keys(tmp_path / "keys.json", max_payload=MIB))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        refused: asyncio.Queue[bytes] = asyncio.Queue()

        async def fill() -> None:
            async with line(service) as (reader, writer):
                writer.write(upload(evil, MIB) + bytes(MIB - 1))
                await refused.put(await reader.readline())

        fills = [asyncio.create_task(fill()) for _ in range(12)]
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(12 - SUBJECT_BODIES):
                assert b" 429 " in await refused.get()
        assert await asked(http, service, anna) == 200
        assert refused.empty()
        refusals = service.counted("smcp_mcp_quota_refusals_total", quota="bodies")
        assert refusals == 12 - SUBJECT_BODIES
        for each in fills:
            each.cancel()
        await asyncio.gather(*fills, return_exceptions=True)


async def test_a_body_of_a_million_lists_is_refused_for_less_than_it_costs_to_read_it_once(tmp_path: Path) -> None:
    anna = key_of(tmp_path / "keys.json", "anna")
    body = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"x":[' + b"[]," * 1_300_000 + b"1]}}"
    began = time.thread_time()
    orjson.loads(body)
    at_once = time.thread_time() - began
    async with with_keys(tmp_path / "keys.json") as service, aiohttp.ClientSession() as http:
        began = time.thread_time()
        async with http.post(service.office("lab-1"), data=io.BytesIO(body), headers=anna) as answer:
            assert answer.status == 413
            error = (await answer.json())["error"]
        assert time.thread_time() - began < at_once
        assert error["message"] == "the request holds more than 200000 values"
        assert error["data"] == {"max_values": 200_000, "size": len(body)}
        async with http.post(service.office("lab-1"), data=io.BytesIO(bytes(4 * MIB + 1)), headers=anna) as answer:
            assert (answer.status, (await answer.json())["error"]["data"]) == (413, {"limit": 4 * MIB})


@ERAS
async def test_an_answer_of_many_values_is_refused_for_an_mcp_client_and_reaches_an_agent(
    nats_url: str, era: str
) -> None:
    values = f"[{','.join(['[]'] * 30_000)}]"
    result = f'{{"content":[{{"type":"text","text":"fine"}}],"structuredContent":{{"v":{values}}}}}'
    many = f'{{"jsonrpc":"2.0","id":$ID,"result":{result}}}'
    async with (
        gateway_world(nats_url) as world,
        native_computer(world, "office", "box", {"raw": configs.stdio("raw")}),
    ):
        async with mcp_service(world.url) as service, office_client(service.office(), era) as client:
            assert await client.text("say", text=many) == "!Error 413: the answer holds more than 25000 values"
            assert await client.text("say", text=many.replace(values, "1")) == "fine"
            await service.stop()
        async with SmcpAgent(world.url, office="office", name="anna") as anna:
            assert len((await anna.call_tool("box", "say", {"text": many})).structured_content["v"]) == 30_000


async def test_malformed_requests_over_http_write_nothing_to_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    anna = key_of(tmp_path / "keys.json", "anna")
    upgrade = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n"
    async with with_keys(tmp_path / "keys.json") as service:
        caplog.clear()
        for text, status in ((b"GET / HTTP/1.1\r\nno header\r\n\r\n", b"400"), (upgrade, b"404")):
            async with line(service) as (reader, writer):
                writer.write(text)
                assert (await ended(reader)).startswith(b"HTTP/1.1 %b " % status)
        for key in (anna, {"Authorization": "none"}):
            async with line(service) as (reader, writer):
                writer.write(upload(key, 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked"))
                writer.write(b"2\r\n  \r\nno chunk\r\n")
                await ended(reader)
        assert not [record for record in caplog.records if record.levelno > logging.INFO]


@pytest.mark.parametrize("before", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"])
@pytest.mark.parametrize("has_token", [True, False])
@pytest.mark.parametrize("extension", [b"", b";\rx"])
async def test_a_body_in_thousands_of_small_chunks_costs_little_and_one_in_a_few_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, before: bytes, has_token: bool, extension: bytes
) -> None:
    anna = key_of(tmp_path / "keys.json", "anna")
    head = upload(anna if has_token else {"Authorization": "none"}, 0)
    count = 40_000 if has_token else 10_000  # without a token 64 KiB are read in any case
    chunks = b"1%b\r\n \r\n" % extension * count
    async with with_keys(tmp_path / "keys.json") as service, aiohttp.ClientSession() as http:
        caplog.clear()
        async with line(service) as (reader, writer):
            began = time.thread_time()
            writer.write(before + head.replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + chunks)
            await ended(reader)
            assert time.thread_time() - began < 0.08
        assert not [record for record in caplog.records if record.levelno > logging.INFO]
        body = orjson.dumps(INITIALIZE)

        async def parts() -> AsyncIterator[bytes]:
            for at in range(0, len(body), 2):  # fewer than 256
                yield body[at : at + 2]

        headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json", **anna}
        async with http.post(service.office("lab-1"), data=parts(), headers=headers) as answer:
            assert answer.status == 200


async def test_a_body_over_http_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffered_request, "BODY_S", 0.3)
    anna = key_of(tmp_path / "keys.json", "anna")
    async with with_keys(tmp_path / "keys.json") as service, line(service) as (reader, writer):
        writer.write(upload(anna, 1000) + b"{")
        async with asyncio.timeout(PATIENCE_S):
            assert b" 408 " in await reader.readline()


def test_all_subjects_share_a_budget_of_bodies_and_what_is_answered_is_free_again() -> None:
    budget = BodyBudget(10)
    with ExitStack() as stack:
        for number in range(SUBJECT_BODIES):
            with budget.of(f"key {number}") as hold:
                hold(40)
            stack.enter_context(budget.of(f"key {number}"))(40)
        with budget.of("another") as hold, pytest.raises(RateLimited, match="unanswered requests"):
            hold(1)
    with budget.of("another") as hold:
        hold(40)
        with pytest.raises(RateLimited, match="unanswered requests"):
            hold(1)


async def refused(
    http: aiohttp.ClientSession, service: Service, key: dict[str, str], office: str = "lab-1"
) -> tuple[str, dict[str, Any]]:
    """`Retry-After` and the error's data of a request that is above a quota."""
    headers = {"Accept": "application/json, text/event-stream", **key}
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with http.post(service.office(office), json=INITIALIZE, headers=headers, timeout=timeout) as answer:
        assert answer.status == 429
        return answer.headers["Retry-After"], (await answer.json())["error"]["data"]


async def test_a_key_above_its_quota_gets_429_with_the_time_to_wait_and_another_key_is_served(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    anna, evil = key_of(keys, "anna"), key_of(keys, "evil", quota=Quota(calls_per_s=0.02))
    async with with_keys(keys, quota_burst_s=100.0) as service, aiohttp.ClientSession() as http:
        assert [await asked(http, service, evil) for _ in range(2)] == [200, 200]
        after, data = await refused(http, service, evil)
        assert data.keys() == {"quota", "limit", "retry_after_s"}
        assert (data["quota"], data["limit"]) == ("calls_per_s", 0.02)
        assert data["retry_after_s"] <= int(after) <= 50
        assert await asked(http, service, anna) == 200
        assert service.counted("smcp_mcp_quota_refusals_total", quota="calls_per_s") == 1


async def test_a_key_has_few_calls_in_flight_and_streams_as_its_quota_says(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    anna, evil = key_of(keys, "anna"), key_of(keys, "evil", quota=Quota(calls_in_flight=1, sockets=2))
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(fake_gateway())
        gateway.computers["red"] = [tool("sleep")]
        gateway.answers["client:tool_call"] = gateway.never
        service = await stack.enter_async_context(mcp_service(gateway.url, auth_keys=keys))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        client = await stack.enter_async_context(office_client(service.office("lab-1"), "2026-07-28", **evil))
        async with client.client.listen(tools_list_changed=True):
            async with http.get(service.office("lab-1"), headers={"Accept": "text/event-stream", **evil}) as answer:
                assert answer.status == 429
                assert (await answer.json())["error"]["data"]["quota"] == "sockets"
            call = asyncio.create_task(client.text("sleep"))
            await eventually(lambda: gateway.seen("client:tool_call"))
            for more in ({}, FORGED):
                assert (await refused(http, service, {**evil, **more}))[1]["quota"] == "calls_in_flight"
            assert await asked(http, service, anna) == 200
            call.cancel()
            await asyncio.wait([call])


async def test_a_request_of_another_key_does_not_wait_for_all_those_that_came_before_it(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    anna, evil = key_of(keys, "anna"), key_of(keys, "evil")
    answered: list[str] = []
    async with with_keys(keys) as service, aiohttp.ClientSession() as http:

        async def ask(who: str, headers: dict[str, str]) -> None:
            assert await asked(http, service, headers) == 200
            answered.append(who)

        await asyncio.gather(ask("anna", anna), ask("evil", evil))  # the office is held, and both are connected
        answered.clear()
        async with asyncio.TaskGroup() as group:
            for _ in range(60):
                group.create_task(ask("evil", evil))
            await eventually(lambda: answered)
            group.create_task(ask("anna", anna))
    assert answered.index("anna") < 30


@ERAS
async def test_a_key_may_ask_mcp_servers_for_resources_and_prompts_as_often_as_its_quota_says(
    tmp_path: Path, era: str
) -> None:
    keys = tmp_path / "keys.json"
    anna, evil = key_of(keys, "anna"), key_of(keys, "evil", quota=Quota(reads_per_s=0.02))
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(with_keys(keys, quota_burst_s=100.0))
        few, other = [
            await stack.enter_async_context(office_client(service.office("lab-1"), era, **key)) for key in (evil, anna)
        ]
        await few.client.list_resources()
        await few.client.list_prompts()
        with pytest.raises(MCPError, match="error 429: this key has reached its quota reads_per_s") as raised:
            await few.client.list_resource_templates()
        assert raised.value.error.data["quota"] == "reads_per_s"
        assert await few.text("echo") == "echo"
        await other.client.list_resources()


async def watch(client: OfficeClient, era: str, *names: str) -> None:
    uris = [f"window://{HOST}/{name}" for name in names]
    if era == "legacy":
        for uri in uris:
            request = types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri))
            await client.client.session.send_request(request, types.EmptyResult)
    else:
        async with client.client.listen(resource_subscriptions=uris):
            pass


@ERAS
async def test_a_key_watches_few_resources_and_another_key_watches_its_own(tmp_path: Path, era: str) -> None:
    keys = tmp_path / "keys.json"
    anna, evil = key_of(keys, "anna"), key_of(keys, "evil", quota=Quota(subscriptions=2))
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(fake_gateway())
        computers_at(gateway, "red")
        service = await stack.enter_async_context(mcp_service(gateway.url, auth_keys=keys))
        few, more, other = [
            await stack.enter_async_context(office_client(service.office("lab-1"), era, **key))
            for key in (evil, evil, anna)
        ]
        await watch(few, era, "1", "1")
        await watch(more, era, "2")
        with pytest.raises(MCPError, match="this key has reached its quota subscriptions") as raised:
            await watch(few, era, "3", "4", "5")
        assert (raised.value.error.data["quota"], raised.value.error.data["limit"]) == ("subscriptions", 2)
        await watch(other, era, *map(str, range(100)))
        with pytest.raises(MCPError, match="error 429"):
            await watch(other, era, *map(str, range(101)))
        if era == "legacy":
            request = types.UnsubscribeRequest(params=types.UnsubscribeRequestParams(uri=f"window://{HOST}/1"))
            await few.client.session.send_request(request, types.EmptyResult)
            await watch(few, era, "6")
        assert service.counted("smcp_mcp_quota_refusals_total", quota="subscriptions") == 2


async def test_without_authentication_each_connection_watches_few_resources() -> None:
    async with fake_gateway() as gateway, mcp_service(gateway.url) as service:
        computers_at(gateway, "red")
        async with office_client(service.office()) as greedy, office_client(service.office()) as other:
            await watch(greedy, "legacy", *map(str, range(100)))
            with pytest.raises(MCPError, match="error 429"):
                await watch(greedy, "legacy", "100")
            await watch(other, "legacy", "mine")


async def test_a_key_opens_few_offices_as_its_quota_of_sockets_says_and_another_key_is_served(
    tmp_path: Path, nats_url: str
) -> None:
    keys = tmp_path / "keys.json"
    own = key_of(keys, "smcp-mcp", delegates=True, quota=Quota(sockets=4))["Authorization"].removeprefix("Bearer ")
    anna, evil = key_of(keys, "anna"), key_of(keys, "evil", offices=["c-*"], quota=Quota(sockets=2))
    async with (
        gateway_world(nats_url, settings={"auth_keys": keys}) as world,
        mcp_service(world.url, auth_keys=keys, token=own) as service,
        aiohttp.ClientSession() as http,
    ):
        await eventually(lambda: "mcp_gateway_connection" not in service.readiness.problems())
        assert [await asked(http, service, evil, f"c-{number}") for number in range(2)] == [200, 200]
        for number in range(2, 20):
            _, data = await refused(http, service, evil, f"c-{number}")
            assert (data["quota"], data["limit"]) == ("sockets", 2)
        assert await asked(http, service, anna, "lab-1") == 200
        assert await asked(http, service, anna, "c-0") == 200  # which evil opened


async def test_a_tenant_at_its_quota_leaves_room_in_the_services_own_key_for_another_tenant(
    tmp_path: Path, nats_url: str
) -> None:
    keys = tmp_path / "keys.json"
    own = key_of(keys, "smcp-mcp", delegates=True, quota=UNLIMITED)["Authorization"].removeprefix("Bearer ")
    anna, evil = key_of(keys, "anna"), key_of(keys, "evil")
    async with (
        gateway_world(nats_url, settings={"auth_keys": keys, "quota_sockets": 3}) as world,
        mcp_service(world.url, auth_keys=keys, token=own, quota_sockets=3) as service,
        aiohttp.ClientSession() as http,
    ):
        assert [await asked(http, service, evil, f"c-{number}") for number in range(4)] == [200, 200, 200, 429]
        assert await asked(http, service, anna, "lab-1") == 200


async def test_an_office_that_was_left_does_not_count_for_the_quota_of_sockets(tmp_path: Path) -> None:
    anna = key_of(tmp_path / "keys.json", "anna", quota=Quota(sockets=1))
    async with with_keys(tmp_path / "keys.json", mcp_idle_s=0.2) as service, aiohttp.ClientSession() as http:
        assert await asked(http, service, anna, "lab-1") == 200
        async with asyncio.timeout(PATIENCE_S):
            while (status := await asked(http, service, anna, "lab-2")) != 200:
                assert status == 429


async def end_session(http: aiohttp.ClientSession, service: Service, headers: dict[str, str]) -> int:
    async with http.delete(service.office("lab-1"), headers=headers) as answer:
        return answer.status


@pytest.mark.parametrize("quota", [None, Quota(sockets=2)])
async def test_a_key_has_few_sessions_and_another_key_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: Quota | None
) -> None:
    monkeypatch.setattr(auth, "DEFAULT_MAX_SESSIONS", 2)
    keys = tmp_path / "keys.json"
    anna, evil = key_of(keys, "anna"), key_of(keys, "evil", quota=quota)
    invalid = {**INITIALIZE, "params": {}}
    headers = {"Accept": "application/json, text/event-stream", **evil}
    async with with_keys(keys) as service, aiohttp.ClientSession() as http:
        for _ in range(3):  # no session begins
            async with http.post(service.office("lab-1"), json=INITIALIZE, headers={**evil, "Accept": "x/y"}) as answer:
                assert answer.status == 406
        sessions = []
        for body in (INITIALIZE, invalid):  # the MCP SDK keeps a session for both
            async with http.post(service.office("lab-1"), json=body, headers=headers) as answer:
                assert answer.status == 200
                sessions.append({"Mcp-Session-Id": answer.headers["Mcp-Session-Id"]})
                await answer.read()
        after, data = await refused(http, service, evil)
        assert (after, data) == ("10", {"quota": "sockets", "limit": 2, "retry_after_s": 10})
        assert service.counted("smcp_mcp_quota_refusals_total", quota="sockets") == 1
        assert [await asked(http, service, anna) for _ in range(2)] == [200, 200]
        assert await asked(http, service, evil | sessions[0]) == 200  # another `initialize` in the same session
        assert await end_session(http, service, headers | sessions[1]) == 200
        async with asyncio.timeout(PATIENCE_S):
            while (status := await asked(http, service, evil)) != 200:
                assert status == 429
        assert (await refused(http, service, evil))[1]["quota"] == "sockets"


async def test_the_settings_bound_what_a_key_without_a_quota_of_its_own_may_have(tmp_path: Path) -> None:
    evil = key_of(tmp_path / "keys.json", "evil")
    less = {"quota_sockets": 2, "quota_subscriptions": 1}
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(fake_gateway())
        computers_at(gateway, "red")
        keys = tmp_path / "keys.json"
        service = await stack.enter_async_context(mcp_service(gateway.url, auth_keys=keys, **less))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        client = await stack.enter_async_context(office_client(service.office("lab-1"), "legacy", **evil))
        await watch(client, "legacy", "1")
        with pytest.raises(MCPError, match="has reached its quota subscriptions"):
            await watch(client, "legacy", "2")
        assert await asked(http, service, evil) == 200
        assert (await refused(http, service, evil))[1]["limit"] == 2


async def test_a_quota_that_the_service_itself_has_reached_is_503(tmp_path: Path) -> None:
    anna = key_of(tmp_path / "keys.json", "anna")
    async with (
        fake_gateway() as gateway,
        mcp_service(gateway.url, auth_keys=tmp_path / "keys.json") as service,
        aiohttp.ClientSession() as http,
    ):
        gateway.connect_error = {"code": 429, "message": "this key has reached its quota sockets", "details": {}}
        assert await asked(http, service, anna) == 503


@pytest.mark.parametrize("header", [{}, FORGED])
async def test_bytes_of_requests_and_answers_count_for_the_quota_of_a_key(
    tmp_path: Path, header: dict[str, str]
) -> None:
    evil = key_of(tmp_path / "keys.json", "evil", quota=Quota(bytes_per_s=1.0)) | header
    async with with_keys(tmp_path / "keys.json") as service, aiohttp.ClientSession() as http:
        assert await asked(http, service, evil) == 200
        assert (await refused(http, service, evil))[1]["quota"] == "bytes_per_s"


async def test_bytes_of_a_notification_stream_count_for_the_quota_of_a_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    evil = key_of(keys, "evil", quota=Quota(bytes_per_s=200.0))  # 429 above 35 s of them
    accept = {"Accept": "application/json, text/event-stream"}
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(fake_gateway())
        service = await stack.enter_async_context(mcp_service(gateway.url, auth_keys=keys))
        http = await stack.enter_async_context(aiohttp.ClientSession(headers=accept | evil))
        url = service.office("lab-1")
        async with http.post(url, json=INITIALIZE) as answer:
            session = {"Mcp-Session-Id": answer.headers["Mcp-Session-Id"]}
            await answer.read()
        started = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        async with http.post(url, json=started, headers=session) as answer:
            assert answer.status == 202
        stream = await stack.enter_async_context(http.get(url, headers=session))
        sent = 0
        async with asyncio.timeout(PATIENCE_S):
            while sent < 12_000:
                await gateway.enter("red", [tool("echo")])
                sent += len(await stream.content.readuntil(b"\r\n\r\n"))
                await gateway.leave("red")
                sent += len(await stream.content.readuntil(b"\r\n\r\n"))
        assert (await refused(http, service, evil))[1]["quota"] == "bytes_per_s"


async def kept(on: Line, key: dict[str, str]) -> bool:
    """Whether a connection is kept after the answer to a request."""
    reader, writer = on
    writer.write(upload(key, 2) + b"{}")
    async with asyncio.timeout(PATIENCE_S):
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
    return b"connection: close" not in head


async def test_connections_of_a_trusted_proxy_are_kept(tmp_path: Path) -> None:
    anna = key_of(tmp_path / "keys.json", "anna", quota=Quota(sockets=1))
    async with with_keys(tmp_path / "keys.json", auth_proxies="127.0.0.1") as service, AsyncExitStack() as stack:
        for _ in range(3):
            assert await kept(await stack.enter_async_context(line(service)), anna)
