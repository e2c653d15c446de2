"""Clients that are not let in yet: which pages may connect, how much they may send, and how many they may be."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from smcp_auth import api_keys
from smcp_auth.api_keys import new_key
from smcp_auth.authenticator import Authenticator
from smcp_auth.grants import Principal
from smcp_gateway.app import EVENTS
from smcp_testing.gateway_world import MIB, World, connected, gateway_world
from smcp_testing.waiting import eventually

TRANSPORTS = ["polling", "websocket"]


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    _, entry = new_key(subject=None, offices=["*"], roles=["agent"], names=["*"])
    file = tmp_path / "keys.json"
    api_keys.add(file, entry)
    return file


async def first(world: World, transport: str, **headers: str) -> int:
    """The status of the first request of a connection; it is closed again."""
    if transport == "websocket":
        headers |= {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
                    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}  # fmt: skip
    url = f"{world.url}/socket.io/?EIO=4&transport={transport}"
    async with aiohttp.ClientSession() as http:
        async with http.get(url, headers=headers) as answer:
            status, text = answer.status, await answer.text() if answer.status == 200 else ""
        if text:
            await close(http, url, text)
    return status


async def close(http: aiohttp.ClientSession, url: str, opened: str) -> None:
    """Close a polling session; `opened` is the answer to its first request."""
    sid = json.loads(opened.removeprefix("0"))["sid"]
    async with http.post(f"{url}&sid={sid}", data="1") as closed:
        assert closed.status == 200


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_page_that_reaches_loopback_by_another_name_is_refused(nats_url: str, transport: str) -> None:
    async with gateway_world(nats_url, registry=False, settings={"allowed_hosts": "office.example"}) as world:
        port = world.gateways[0].front.listener.port
        evil = f"evil.example:{port}"
        assert await first(world, transport, Host=evil, Origin=f"http://{evil}") == 403
        assert await first(world, transport, Host=evil) == 403
        good = 101 if transport == "websocket" else 200
        for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"office.example:{port}"):
            assert await first(world, transport, Host=host) == good


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_pages_of_other_origins_are_refused(
    nats_url: str, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=EVENTS)
    settings = {"allowed_origins": "https://console.example"}
    async with gateway_world(nats_url, registry=False, settings=settings) as world:
        good = 101 if transport == "websocket" else 200
        for origin in ("http://evil.example", "null", "https://console.example.evil.example"):
            said = {"Origin": origin, "X-Forwarded-Host": origin.removeprefix("http://"), "X-Forwarded-Proto": "http"}
            assert await first(world, transport, **said) == 403
        records = [vars(record) for record in caplog.records if record.name == EVENTS]
        refused = [(each["refused"], each["outcome"], each["address"]) for each in records]
        assert refused == 3 * [("connect", "403", "127.0.0.1")]
        for origin in ("https://console.example", world.url):
            assert await first(world, transport, Origin=origin) == good


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_compressed_request_is_refused_and_recorded(
    nats_url: str, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=EVENTS)
    async with gateway_world(nats_url, registry=False) as world:
        assert await first(world, transport, **{"Content-Encoding": "gzip"}) == 415
        [said] = [vars(record) for record in caplog.records if record.name == EVENTS]
        assert (said["refused"], said["outcome"], said["address"]) == ("connect", "415", "127.0.0.1")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_with_tokens_any_name_of_the_gateway_may_be_used_and_no_page_of_that_name(
    nats_url: str, keys: Path, transport: str
) -> None:
    async with gateway_world(nats_url, registry=False, settings={"auth_keys": keys}) as world:
        good = 101 if transport == "websocket" else 200
        assert await first(world, transport, Host="gateway.example") == good
        assert await first(world, transport, Host="evil.example", Origin="http://evil.example") == 403
        assert await first(world, transport, Origin=world.url) == good


async def test_a_page_of_another_origin_cannot_use_a_session_that_is_open(nats_url: str) -> None:
    page = {"Host": "evil.example", "Origin": "http://evil.example"}
    async with gateway_world(nats_url, registry=False, settings={"gateway_host": "0.0.0.0", "insecure": True}) as world:
        url = f"http://127.0.0.1:{world.gateways[0].front.listener.port}/socket.io/?EIO=4&transport="
        async with aiohttp.ClientSession() as http:
            # browsers say no Origin where a page reads from its own host
            async with http.get(f"{url}polling", headers={"Host": page["Host"]}) as answer:
                opened = await answer.text()
            sid = json.loads(opened.removeprefix("0"))["sid"]
            async with http.post(f"{url}polling&sid={sid}", data="40/smcp,{}", headers=page) as answer:
                assert answer.status == 403
            with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
                await http.ws_connect(f"{url}websocket&sid={sid}", headers=page)
            async with http.post(f"{url}polling&sid={sid}", data="40/smcp,{}") as answer:
                assert answer.status == 200
            await close(http, f"{url}polling", opened)


async def test_clients_behind_a_trusted_proxy_are_counted_by_their_own_address(nats_url: str, keys: Path) -> None:
    settings = {"auth_keys": keys, "auth_proxies": "127.0.0.1", "unauthenticated_per_address": 3}
    async with gateway_world(nats_url, registry=False, settings=settings) as world:
        url, greedy = f"{world.url}/socket.io/?EIO=4&transport=polling", {"X-Forwarded-For": "192.0.2.66"}
        async with aiohttp.ClientSession() as http:
            opened = []
            for _ in range(3):
                async with http.get(url, headers=greedy) as answer:
                    opened.append(await answer.text())
            assert await first(world, "polling", **greedy) == 429
            assert await first(world, "polling", **{"X-Forwarded-For": "192.0.2.7"}) == 200
            for each in opened:
                await close(http, url, each)
            assert await first(world, "polling", **greedy) == 200


async def test_clients_that_are_let_in_do_not_count(nats_url: str) -> None:
    async with gateway_world(nats_url, registry=False, settings={"unauthenticated_per_address": 3}) as world:
        async with connected(world.url), connected(world.url), connected(world.url), connected(world.url) as last:
            assert last.sio.connected
            await eventually(lambda: len(world.gateways[0].front.listener.unauthenticated) == 0)


@pytest.mark.parametrize("transports", [["polling"], ["websocket"], ["polling", "websocket"]])
async def test_members_send_large_requests_over_every_transport(nats_url: str, transports: list[str]) -> None:
    async with gateway_world(nats_url) as world, connected(world.url, transports=transports) as anna:
        assert await anna.join("agent", "anna", "office") == [True, None]
        call: dict[str, Any] = {"agent": "anna", "req_id": "r", "computer": "box", "tool_name": "t", "timeout": 5}
        answer = await anna.call("client:tool_call", {**call, "params": {"text": "x" * (MIB // 2)}})
        assert answer["code"] == 404


async def test_an_unauthenticated_client_that_sends_much_is_closed_and_a_polling_one_gets_413(nats_url: str) -> None:
    async with gateway_world(nats_url, registry=False) as world, aiohttp.ClientSession() as http:
        url = f"{world.url}/socket.io/?EIO=4"
        async with http.ws_connect(f"{url}&transport=websocket") as socket:
            await socket.receive()
            await socket.send_str("4" + "x" * MIB)
            async with asyncio.timeout(30):
                assert (await socket.receive()).type is not aiohttp.WSMsgType.TEXT
        async with http.get(f"{url}&transport=polling") as answer:
            opened = await answer.text()
        sid = json.loads(opened.removeprefix("0"))["sid"]
        async with http.post(f"{url}&transport=polling&sid={sid}", data="4" + "x" * 50_000) as answer:
            assert answer.status == 413
            assert (await answer.json())["details"]["limit"] < 50_000
        await close(http, f"{url}&transport=polling", opened)


async def test_a_client_that_goes_while_its_token_is_checked_leaves_no_session(
    nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, entry = new_key(subject=None, offices=["*"], roles=["agent"], names=["*"])
    api_keys.add(tmp_path / "keys.json", entry)
    checking, go, authenticate = asyncio.Event(), asyncio.Event(), Authenticator.authenticate

    async def slowly(authenticator: Authenticator, token: str | None, source: str, **more: Any) -> Principal:
        checking.set()
        await go.wait()
        return await authenticate(authenticator, token, source, **more)

    monkeypatch.setattr(Authenticator, "authenticate", slowly)
    settings = {"auth_keys": tmp_path / "keys.json"}
    async with gateway_world(nats_url, registry=False, settings=settings) as world, aiohttp.ClientSession() as http:
        url = f"{world.url}/socket.io/?EIO=4&transport=polling"
        async with http.get(url) as answer:
            sid = json.loads((await answer.text()).removeprefix("0"))["sid"]

        async def post(packet: str) -> None:
            async with http.post(f"{url}&sid={sid}", data=packet) as posted:
                await posted.read()

        connecting = asyncio.create_task(post("40/smcp," + json.dumps({"token": key})))
        async with asyncio.timeout(30):
            await checking.wait()
            await post("1")
            go.set()
            await connecting
        assert world.gateways[0].held()["sessions"] == 0
