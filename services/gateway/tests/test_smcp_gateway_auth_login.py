"""Who is let in, over both transports and by both places of a token; and who is not."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from socketio.exceptions import ConnectionError as Refused

from smcp_auth import api_keys as key_file
from smcp_auth import authenticator
from smcp_auth.api_keys import new_key
from smcp_bus.limits import Rate
from smcp_gateway import auth
from smcp_gateway.app import EVENTS
from smcp_testing import issuer
from smcp_testing.gateway_world import World, connected, gateway_world
from smcp_testing.issuer import open_issuer, signing_key, unsigned_token
from smcp_testing.waiting import eventually

TRANSPORTS = ["polling", "websocket"]
ANNA = signing_key("anna's issuer")


def key_of(path: Path, **more: Any) -> str:
    """A key for everything that `more` does not say, added to the file."""
    key, entry = new_key(**{"subject": None, "offices": ["*"], "roles": ["agent", "computer"], "names": ["*"], **more})
    key_file.add(path, entry)
    return key


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


@pytest.fixture
def twenty_wrong_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an address, and then one in five minutes: however long a test takes, there is no other one."""
    monkeypatch.setattr(authenticator, "WRONG_TOKENS", Rate(1 / 300, 20 * 300.0))


async def handshake(world: World, transport: str, headers: dict[str, str]) -> tuple[int, dict[str, Any], Any]:
    """Status, headers and JSON of the first request of a connection."""
    url = f"{world.url}/socket.io/?EIO=4&transport={transport}"
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
               "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}  # fmt: skip
    async with (
        aiohttp.ClientSession() as http,
        http.get(url, headers={**headers, **(upgrade if transport == "websocket" else {})}) as answer,
    ):
        body = await answer.json() if answer.content_type == "application/json" else None
        if answer.status == 200:
            opened = json.loads((await answer.text()).removeprefix("0"))
            async with http.post(f"{url}&sid={opened['sid']}", data="1") as closed:
                assert closed.status == 200
        return answer.status, dict(answer.headers), body


@pytest.mark.rule("answers.connect.token")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_api_key_is_accepted_in_the_header_and_in_auth(nats_url: str, keys: Path, transport: str) -> None:
    key = key_of(keys)
    async with gateway_world(nats_url, settings={"auth_keys": keys}) as world:
        header = {"Authorization": f"Bearer {key}"}
        auth = {"token": key}
        ways: list[dict[str, Any]] = [{"headers": header}, {"auth": auth}, {"headers": header, "auth": auth}]
        for said in ways:
            async with connected(world.url, transports=[transport], **said) as client:
                assert await client.join("agent", "anna", "office") == [True, None]


@pytest.mark.rule("answers.connect.token.header", "answers.errors.401")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_wrong_token_in_the_header_is_401_before_socketio_sees_it(
    nats_url: str, keys: Path, transport: str
) -> None:
    key_of(keys)
    async with gateway_world(nats_url, registry=False, settings={"auth_keys": keys}) as world:
        for wrong in ("smcp_0123456789ab_wrong", "wrong", unsigned_token(), "x" * 8000):
            status, headers, body = await handshake(world, transport, {"Authorization": f"Bearer {wrong}"})
            assert status == 401
            assert headers["WWW-Authenticate"].startswith("Bearer ")
            assert headers["Cache-Control"] == "no-store"
            assert (set(body), body["code"]) == ({"code", "message", "details"}, 401)
            assert wrong not in json.dumps(body)
        assert len(world.gateways[0].sessions) == 0


@pytest.mark.rule("answers.connect.token.auth", "answers.errors.401")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_without_a_valid_token_in_auth_connect_is_refused_and_the_connection_closed(
    nats_url: str, keys: Path, transport: str
) -> None:
    key_of(keys)
    async with gateway_world(nats_url, registry=False, settings={"auth_keys": keys}) as world:
        refused: list[Any] = [None, {}, {"max_message": 5}, {"token": ""}, {"token": "wrong"}, {"token": 5}]
        for auth in refused:
            with pytest.raises(Refused, match="/smcp"):
                async with connected(world.url, auth=auth, transports=[transport]):
                    raise AssertionError("it was let in")
            code = 400 if auth == {"token": 5} else 401
            assert len(world.gateways[0].sessions) == 0
            async with aiohttp.ClientSession() as http:
                async with http.ws_connect(f"{world.url}/socket.io/?EIO=4&transport=websocket") as socket:
                    await socket.receive()
                    await socket.send_str(f"40/smcp,{json.dumps(auth) if auth is not None else ''}")
                    told = json.loads((await socket.receive(timeout=30)).data.removeprefix("44/smcp,"))
                    assert told["data"]["code"] == code
                    assert set(told["data"]) == {"code", "message", "details"}
                    # what a refused client says next is not heard, and its connection ends
                    await socket.send_str('42/smcp,1["server:join_office",{"role":"agent","name":"a","office_id":"o"}]')
                    async with asyncio.timeout(30):
                        async for message in socket:
                            assert message.data == "2"
                    assert socket.close_code == aiohttp.WSCloseCode.POLICY_VIOLATION


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_auth_above_a_size_limit_is_refused(nats_url: str, keys: Path, transport: str) -> None:
    key = key_of(keys)
    async with gateway_world(nats_url, settings={"auth_keys": keys}) as world:
        options: dict[str, Any] = {"transports": [transport]}
        async with connected(world.url, auth={"token": key, "more": "x" * 30_000}, **options) as client:
            assert await client.join("agent", "anna", "office") == [True, None]
        long = {"token": key, "more": [[]] * 12_000}
        with pytest.raises(Refused, match="/smcp"):
            async with connected(world.url, auth=long, **options):
                raise AssertionError("it was let in")
        async with aiohttp.ClientSession() as http:
            async with http.ws_connect(f"{world.url}/socket.io/?EIO=4&transport=websocket") as socket:
                await socket.receive()
                await socket.send_str(f"40/smcp,{json.dumps(long)}")
                told = json.loads((await socket.receive(timeout=30)).data.removeprefix("44/smcp,"))
        assert told["data"]["code"] == 413
        assert told["data"]["details"] == {"field": "auth", "limit": 32768}
        async with connected(world.url, auth={"token": key}, **options) as client:
            assert await client.join("agent", "anna", "office") == [True, None]


@pytest.mark.rule("answers.connect.token")
async def test_different_tokens_in_header_and_auth_are_refused(nats_url: str, keys: Path) -> None:
    one, other = key_of(keys), key_of(keys)
    async with gateway_world(nats_url, registry=False, settings={"auth_keys": keys}) as world:
        url, header = f"{world.url}/socket.io/?EIO=4&transport=websocket", {"Authorization": f"Bearer {one}"}
        async with aiohttp.ClientSession() as http, http.ws_connect(url, headers=header) as socket:
            await socket.receive()
            await socket.send_str(f'40/smcp,{{"token":"{other}"}}')
            told = json.loads((await socket.receive(timeout=30)).data.removeprefix("44/smcp,"))
            assert (told["data"]["code"], told["data"]["details"]["field"]) == (400, "auth.token")
        assert len(world.gateways[0].sessions) == 0


async def test_a_connection_without_a_connect_packet_is_closed(
    nats_url: str, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "CONNECT_S", 0.5)
    key = key_of(keys)
    async with gateway_world(nats_url, settings={"auth_keys": keys}) as world, aiohttp.ClientSession() as http:
        async with (
            connected(world.url, auth={"token": key}) as client,
            http.ws_connect(f"{world.url}/socket.io/?EIO=4&transport=websocket") as socket,
        ):
            async with asyncio.timeout(30):
                async for message in socket:
                    assert message.data == "2" or message.data.startswith("0{")
            assert socket.close_code == aiohttp.WSCloseCode.POLICY_VIOLATION
            assert await client.join("agent", "anna", "office") == [True, None]


@pytest.mark.rule("answers.connect.token.tries")
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.usefixtures("twenty_wrong_tokens")
async def test_after_20_wrong_tokens_of_an_address_wrong_ones_get_429_and_right_ones_are_let_in(
    nats_url: str, keys: Path, transport: str
) -> None:
    key = key_of(keys)
    async with gateway_world(nats_url, settings={"auth_keys": keys}) as world:
        for _ in range(20):
            assert (await handshake(world, transport, {"Authorization": "Bearer x"}))[0] == 401
        status, headers, body = await handshake(world, transport, {"Authorization": "Bearer x"})
        assert (status, body["code"]) == (429, 429)
        assert 1 <= int(headers["Retry-After"]) == body["details"]["retry_after_s"] <= 300
        ways: list[dict[str, Any]] = [{"auth": {"token": key}}, {"headers": {"Authorization": f"Bearer {key}"}}]
        for said in ways:  # 20 wrong ones a minute locked out right ones of the same address, too
            async with connected(world.url, transports=[transport], **said) as client:
                assert await client.join("agent", "anna", "office") == [True, None]


async def refused_connect(world: World) -> int:
    """The code that a CONNECT with a wrong token gets; its connection is closed then."""
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(f"{world.url}/socket.io/?EIO=4&transport=websocket") as socket,
    ):
        await socket.receive()
        await socket.send_str('40/smcp,{"token":"wrong"}')
        code: int = json.loads((await socket.receive()).data.removeprefix("44/smcp,"))["data"]["code"]
        closed = await socket.receive(10)
        assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.POLICY_VIOLATION)
        return code


@pytest.mark.rule("answers.connect.token.tries")
@pytest.mark.usefixtures("twenty_wrong_tokens")
async def test_wrong_tokens_in_auth_count_like_those_in_the_header(nats_url: str, keys: Path) -> None:
    key_of(keys)
    async with gateway_world(nats_url, registry=False, settings={"auth_keys": keys}) as world:
        assert [await refused_connect(world) for _ in range(22)] == [401] * 20 + [429] * 2
        assert (await handshake(world, "polling", {"Authorization": "Bearer x"}))[0] == 429


@pytest.mark.usefixtures("twenty_wrong_tokens")
async def test_each_client_that_is_not_let_in_leaves_one_record(
    nats_url: str, keys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key_of(keys)
    caplog.set_level(logging.INFO, logger=EVENTS)
    async with gateway_world(nats_url, registry=False, settings={"auth_keys": keys}) as world:
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"{world.url}/socket.io/?EIO=4&transport=polling&a2c_version=9.0.0") as answer,
        ):
            assert answer.status == 400
        for _ in range(21):
            await refused_connect(world)
        assert (await handshake(world, "polling", {"Authorization": "Bearer x"}))[0] == 429
    refused = [vars(record) for record in caplog.records if record.name == EVENTS]
    assert [each["outcome"] for each in refused] == ["4008"] + ["401"] * 20 + ["429"] * 2
    assert {(each["refused"], each["address"]) for each in refused} == {("connect", "127.0.0.1")}
    assert "9.0.0" in refused[0]["why"]


@pytest.mark.usefixtures("twenty_wrong_tokens")
async def test_a_forged_forwarded_header_does_not_avoid_the_throttle(nats_url: str, keys: Path) -> None:
    key_of(keys)
    async with gateway_world(nats_url, registry=False, settings={"auth_keys": keys}) as world:
        statuses = [
            (await handshake(world, "polling", {"Authorization": "Bearer x", "X-Forwarded-For": f"192.0.2.{number}"}))[
                0
            ]
            for number in range(21)
        ]
        assert statuses == [401] * 20 + [429]


async def test_health_needs_no_token_and_other_schemes_are_ignored(nats_url: str, keys: Path) -> None:
    key = key_of(keys)
    async with gateway_world(nats_url, settings={"auth_keys": keys}) as world, aiohttp.ClientSession() as http:

        async def ready() -> bool:
            async with http.get(f"{world.url}/livez") as alive, http.get(f"{world.url}/readyz") as answer:
                return (alive.status, answer.status) == (200, 200)

        await eventually(ready)
        basic = {"Authorization": "Basic dXNlcjpzZWNyZXQ="}  # a proxy's
        async with connected(world.url, auth={"token": key}, headers=basic) as client:
            assert await client.join("agent", "anna", "office") == [True, None]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_jwt_of_the_issuer_is_accepted_and_another_is_refused(nats_url: str, transport: str) -> None:
    async with (
        open_issuer(ANNA) as known,
        gateway_world(nats_url, settings=issuer.settings(known.url)) as world,
    ):
        async with connected(world.url, auth={"token": ANNA.token()}, transports=[transport]) as client:
            assert await client.join("agent", "anna", "office") == [True, None]
        for wrong in (
            ANNA.token(aud="x"),
            ANNA.token(exp=1),
            signing_key("other").token(kid=ANNA.kid),
            unsigned_token(),
        ):
            assert (await handshake(world, transport, {"Authorization": f"Bearer {wrong}"}))[0] == 401


async def test_without_the_issuers_keys_a_login_is_503_and_does_not_count_as_failed(nats_url: str) -> None:
    async with open_issuer(ANNA) as away:
        away.status = 500
        async with gateway_world(nats_url, settings=issuer.settings(away.url)) as world:
            header = {"Authorization": f"Bearer {ANNA.token()}"}
            answers = await asyncio.gather(*(handshake(world, "polling", header) for _ in range(25)))
            assert {status for status, _, _ in answers} == {503}
            away.status = 200

            async def let_in() -> bool:
                return (await handshake(world, "polling", header))[0] == 200

            await eventually(let_in)


def connecting(token: str) -> str:
    """Socket.IO's CONNECT, as a packet of engine.io."""
    return f"40/smcp,{json.dumps({'token': token})}"


async def heard(socket: aiohttp.ClientWebSocketResponse, beginning: str) -> str:
    """The first message that begins so."""
    async with asyncio.timeout(30):
        while True:
            text = str((await socket.receive()).data)
            if text.startswith(beginning):
                return text


async def test_an_upgrade_or_second_connect_with_another_token_keeps_the_first_identity(
    nats_url: str, keys: Path
) -> None:
    first, other = key_of(keys, offices=["lab"]), key_of(keys, offices=["kitchen"])
    async with gateway_world(nats_url, settings={"auth_keys": keys}) as world, aiohttp.ClientSession() as http:
        url = f"{world.url}/socket.io/?EIO=4"
        async with http.get(f"{url}&transport=polling") as answer:
            sid = json.loads((await answer.text()).removeprefix("0"))["sid"]
        async with http.post(f"{url}&transport=polling&sid={sid}", data=connecting(first)) as answer:
            assert answer.status == 200
        async with http.get(f"{url}&transport=polling&sid={sid}") as answer:
            assert (await answer.text()).startswith("40/smcp,")
        others = {"Authorization": f"Bearer {other}"}
        async with http.ws_connect(f"{url}&transport=websocket&sid={sid}", headers=others) as socket:
            await socket.send_str("2probe")
            assert await heard(socket, "3") == "3probe"
            await socket.send_str("5")
            await socket.send_str('42/smcp,1["server:join_office",{"role":"agent","name":"a","office_id":"kitchen"}]')
            assert "the key or token is not for this office" in await heard(socket, "43/smcp,1")
            await socket.send_str(connecting(other))
            await socket.send_str('42/smcp,2["server:join_office",{"role":"agent","name":"a","office_id":"kitchen"}]')
            assert "the key or token is not for this office" in await heard(socket, "43/smcp,2")
            await socket.send_str('42/smcp,3["server:join_office",{"role":"agent","name":"a","office_id":"lab"}]')
            assert await heard(socket, "43/smcp,3") == "43/smcp,3[[true,null]]"
