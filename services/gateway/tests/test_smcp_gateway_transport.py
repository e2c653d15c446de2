"""Every request that carries an acknowledgement gets one, in its shape; nothing that a client sends harms others."""

import asyncio
import io
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from smcp_gateway.sockets.engine import SWEEP_S
from smcp_testing.gateway_world import NAMESPACE, connected, gateway_world
from smcp_testing.waiting import Stopwatch, eventually

LIST = {"agent": "anna", "req_id": "1", "office_id": "office"}
CALL = {"agent": "anna", "req_id": "1", "computer": "box", "tool_name": "t", "params": {}, "timeout": 5}


def code_of(answer: Any) -> int:
    """The code of a flat error; its shape is checked."""
    assert isinstance(answer, dict), answer
    assert set(answer) == {"code", "message", "details"}
    assert answer["message"]
    code: int = answer["code"]
    return code


@pytest.mark.rule(
    "events.{namespace,join_office.reply.refused}",
    "answers.acks.{always,join.malformed}",
    "answers.errors.flat",
)
async def test_malformed_requests_are_acknowledged_in_the_shape_of_their_event(nats_url: str) -> None:
    malformed: list[tuple[Any, ...]]
    malformed = [(), (1,), ("text",), (None,), ([],), ({}, {}), (b"binary",), ({"x": b"y"},)]
    requests = ("client:tool_call", "client:get_tools", "client:whatever", "server:list_room", "server:update_x")
    async with gateway_world(nats_url) as world, connected(world.url) as client:
        assert await client.join("agent", "anna", "office") == [True, None]
        for arguments in malformed:
            for event in requests:
                assert code_of(await client.call(event, arguments)) in {400, 403}, arguments
            for event in ("server:join_office", "server:leave_office"):
                done, why, *_ = await client.call(event, arguments)
                assert done is False, arguments
                assert why


@pytest.mark.rule("answers.errors.400.no-event", "answers.unknown.client.verb")
async def test_unknown_events_are_400(nats_url: str) -> None:
    async with gateway_world(nats_url, registry=False) as world, connected(world.url) as client:
        for event in ("", "tool_call", "client:", "client:Tool", "server:x", "client:pending", "no:such"):
            assert code_of(await client.call(event, {})) == 400, event


@pytest.mark.rule("answers.errors.4103")
async def test_before_joining_everything_else_is_4103(nats_url: str) -> None:
    async with gateway_world(nats_url, registry=False) as world, connected(world.url) as client:
        for event, payload in (
            ("client:tool_call", CALL),
            ("client:anything", {"computer": "box"}),
            ("server:list_room", LIST),
            ("server:update_config", {"computer": "box"}),
            ("server:update_anything", {"computer": "box"}),
            ("server:tool_call_cancel", {"agent": "anna", "req_id": "1"}),
        ):
            assert code_of(await client.call(event, payload)) == 4103, event
        done, why, *_ = await client.call("server:leave_office", {"office_id": "office"})
        assert done is False
        assert why


@pytest.mark.rule("answers.acks.always")
async def test_a_packet_that_is_not_json_is_acknowledged_and_the_socket_stays_open(nats_url: str) -> None:
    async with gateway_world(nats_url, registry=False) as world, aiohttp.ClientSession() as http:
        async with http.ws_connect(f"{world.url}/socket.io/?EIO=4&transport=websocket") as socket:
            await socket.receive()
            await socket.send_str("40/smcp,")
            await socket.receive()
            for number, rest in enumerate(
                ('["client:x",{bad', '["client:x",{"a":"\\ud800"}]', "nonsense", '["client:x"')
            ):
                await socket.send_str(f"42/smcp,{number}{rest}")
                text = (await socket.receive(timeout=30)).data
                assert text.startswith(f"43/smcp,{number}["), text
                assert json.loads(text.partition("[")[2][:-1])["code"] == 400
            await socket.send_bytes(b"stray")
            await socket.send_str('451-/smcp,9["client:x",{"_placeholder":true,"num":0}]')
            assert (await socket.receive(timeout=30)).data.startswith("43/smcp,9[")


@pytest.mark.rule("events.list_room.reply.of-this-request", "answers.connect.transports.polling")
async def test_twenty_requests_of_a_polling_client_are_all_answered(nats_url: str) -> None:
    async with gateway_world(nats_url) as world, connected(world.url, transports=["polling"]) as client:
        await client.join("agent", "anna", "office")
        payloads = [{"agent": "anna", "req_id": str(n), "office_id": "office"} for n in range(40)]
        answers = await asyncio.gather(*(client.call("server:list_room", payload) for payload in payloads))
        assert [answer["req_id"] for answer in answers] == [payload["req_id"] for payload in payloads]


@pytest.mark.rule("events.classes.server.direction")
async def test_server_events_happen_in_the_order_in_which_they_came(nats_url: str) -> None:
    async with gateway_world(nats_url) as world, connected(world.url) as client:
        await client.join("computer", "box", "office-0")
        answers: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()
        for number in range(1, 30):
            payload = {"role": "computer", "name": "box", "office_id": f"office-{number % 3}"}
            await client.sio.emit(
                "server:join_office",
                payload,
                namespace=NAMESPACE,
                callback=lambda answer, number=number: answers.put_nowait((number, answer)),
            )
        for number in range(1, 30):
            assert await asyncio.wait_for(answers.get(), 30) == (number, [True, None])
        listed = await client.call("server:list_room", LIST | {"agent": "box", "office_id": "office-2"})
        assert [session["name"] for session in listed["sessions"]] == ["box"]


@pytest.mark.rule("answers.errors.413", "answers.large.request", "answers.large.small-events")
async def test_requests_above_the_limits_are_413_and_the_socket_stays_open(nats_url: str) -> None:
    limit = 1024 * 1024
    async with gateway_world(nats_url, max_payload=limit) as world, connected(world.url) as client:
        await client.join("agent", "anna", "office")
        answer = await client.call("client:tool_call", CALL | {"params": {"x": "y" * limit}})
        assert code_of(answer) == 413
        assert answer["details"]["limit"] == limit
        answer = await client.call("server:list_room", LIST | {"more": "y" * 70_000})
        assert code_of(answer) == 413
        assert answer["details"]["limit"] == 64 * 1024
        done, why, *_ = await client.call("server:leave_office", {"office_id": "office", "more": "y" * 70_000})
        assert done is False
        assert "large" in why
        assert (await client.call("server:list_room", LIST))["req_id"] == "1"


@pytest.mark.rule("answers.large.request")
async def test_a_request_above_a_quarter_of_the_limit_is_413(nats_url: str) -> None:
    limit = 8 * 1024 * 1024
    async with gateway_world(nats_url, max_payload=limit) as world, connected(world.url) as client:
        await client.join("agent", "anna", "office")
        within, above = [
            await client.call("client:tool_call", CALL | {"params": {"x": "y" * size}})
            for size in (limit // 4 - 1024, limit // 4 + 1)
        ]
        assert (code_of(within), code_of(above)) == (404, 413)
        assert above["details"]["limit"] == limit // 4


async def test_a_message_far_above_the_limit_closes_only_its_own_socket(nats_url: str) -> None:
    limit = 1024 * 1024
    async with (
        gateway_world(nats_url, max_payload=limit) as world,
        connected(world.url) as client,
        connected(world.url) as other,
    ):
        await other.join("agent", "anna", "office")
        await client.sio.emit("client:tool_call", CALL | {"params": {"x": "y" * 2 * limit}}, namespace=NAMESPACE)
        await asyncio.wait_for(client.gone.wait(), 30)
        await eventually(lambda: len(world.gateways[0].sessions) == 1)
        assert (await other.call("server:list_room", LIST))["req_id"] == "1"


@pytest.mark.rule("answers.connect.pings")
async def test_a_client_that_does_not_answer_pings_is_found_within_ten_seconds(nats_url: str) -> None:
    async with gateway_world(nats_url, registry=False, pings=True) as world, aiohttp.ClientSession() as http:
        async with http.ws_connect(f"{world.url}/socket.io/?EIO=4&transport=websocket") as socket:
            await socket.receive()
            await socket.send_str("40/smcp,")
            await eventually(lambda: len(world.gateways[0].sessions) == 1)
            watch = Stopwatch()
            await eventually(lambda: len(world.gateways[0].sessions) == 0)
            assert watch.undisturbed < 10


@pytest.mark.rule("answers.connect.pings")
@pytest.mark.parametrize("lease_s", [2.0, 3600.0])
async def test_pings_are_frequent_enough_to_notice_silence_within_ten_seconds(nats_url: str, lease_s: float) -> None:
    async with (
        gateway_world(nats_url, registry=False, pings=True, lease_s=lease_s) as world,
        aiohttp.ClientSession() as http,
    ):
        async with http.ws_connect(f"{world.url}/socket.io/?EIO=4&transport=websocket") as socket:
            greeting = json.loads((await socket.receive_str(timeout=30))[1:])
    # it may have answered just now: one pause, the time that an answer has, and then it has to be looked at
    assert (greeting["pingInterval"] + greeting["pingTimeout"]) / 1000 + SWEEP_S <= 10


async def test_a_gateway_does_not_take_its_clients_for_silent_after_a_suspension(nats_url: str) -> None:
    async with (
        gateway_world(nats_url, registry=False, pings=True, lease_s=4.0) as world,
        aiohttp.ClientSession() as http,
    ):
        async with http.ws_connect(f"{world.url}/socket.io/?EIO=4&transport=websocket") as socket:
            greeting = json.loads((await socket.receive_str(timeout=30))[1:])
            await socket.send_str("40/smcp,")
            while await socket.receive_str(timeout=30) != "2":
                pass
            # The gateway's loop is this one: all of it stands still, for longer than a ping may take.
            time.sleep((greeting["pingInterval"] + greeting["pingTimeout"]) / 1000)  # noqa: ASYNC251
            assert (await http.get(f"{world.url}/livez")).status == 200  # its sweep comes before the answer to the ping
            await socket.send_str("3")
            assert await socket.receive_str(timeout=30) == "2"
            await socket.send_str('42/smcp,1["server:list_room",{}]')
            assert (await socket.receive_str(timeout=30)).startswith("43/smcp,1[")


@asynccontextmanager
async def polling(http: aiohttp.ClientSession, gateway: str) -> AsyncIterator[str]:
    """A client that was let in and writes its requests by hand: where it polls."""
    url = f"{gateway}/socket.io/?EIO=4&transport=polling"
    async with http.get(url) as opened:
        url += f"&sid={json.loads((await opened.text())[1:])['sid']}"
    async with http.post(url, data='40/smcp,{"flat_errors":true}') as let_in, http.get(url) as heard:
        assert let_in.status == heard.status == 200
    yield url
    async with http.post(url, data="1") as closed:
        assert closed.status in {200, 400}


@pytest.mark.parametrize(
    "body",
    [
        "4" + "[" + "[]," * 5_000_000 + "[]]",
        '4"' + "\\n" * 10_000_000 + '"',
        "d=" + "%34" * 5_000_000,
        "b" + "A" * 20_000_000,
        '42/smcp,1["client:get_tools",{"a":"' + "é" * 10_000_000 + '"}]',
        '42/smcp,1["client:get_tools",{"v":[' + "[]," * 5_000_000 + "[]]}]",
        "\x1e" * 20_000_000,
    ],
    ids=["lists", "escapes", "JSONP", "base64", "not ASCII", "a request of lists", "separators"],
)
async def test_what_a_polling_client_sends_holds_the_loop_for_short_steps(nats_url: str, body: str) -> None:
    """Of these, engine.io parsed or copied each in one go: lists for 7 s, the others for 0.15 to 3 s."""
    async with (
        gateway_world(nats_url, registry=False, lease_s=60) as world,
        aiohttp.ClientSession() as http,
        polling(http, world.url) as url,
    ):
        longest, over = 0.0, asyncio.Event()

        async def watch() -> None:
            nonlocal longest
            while not over.is_set():
                began = time.thread_time()
                await asyncio.sleep(0)
                longest = max(longest, time.thread_time() - began)

        upload = io.BytesIO(body.encode())  # sent in pieces: the client is in the same loop
        watching = asyncio.create_task(watch())
        async with http.post(url, data=upload) as answer:
            assert (answer.status, await answer.text()) in {
                (200, "OK"),
                (413, "at most 33619968 bytes and 1024 packets"),
            }
        over.set()
        await watching
        assert longest < 0.1, f"{longest:.3f} s of processor"


async def test_answers_to_a_polling_client_are_not_compressed(nats_url: str) -> None:
    """32 MiB of it would hold the loop for a second."""
    async with (
        gateway_world(nats_url, registry=False) as world,
        aiohttp.ClientSession() as http,
        polling(http, world.url) as url,
    ):
        request = f'42/smcp,1["{"x" * 200}",{{}}]'
        async with http.post(url, data="\x1e".join([request] * 20)) as sent:
            assert sent.status == 200
        async with http.get(url, headers={"Accept-Encoding": "gzip"}) as answer:
            assert len(await answer.read()) > 1024
            assert "Content-Encoding" not in answer.headers


async def test_a_polling_request_that_breaks_off_ends_only_its_own_session(nats_url: str) -> None:
    async with (
        gateway_world(nats_url, registry=False) as world,
        aiohttp.ClientSession() as http,
        polling(http, world.url) as url,
        polling(http, world.url) as other,
    ):
        host, port = world.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        path = url.removeprefix(world.url)
        writer.write(f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100\r\n\r\n42/smcp,".encode())
        writer.close()
        await writer.wait_closed()
        await eventually(lambda: len(world.gateways[0].sessions) == 1)
        async with http.post(other, data='42/smcp,1["client:get_tools",{}]') as sent, http.get(other) as answer:
            assert sent.status == 200
            assert (await answer.text()).startswith("43/smcp,1[")


@pytest.mark.parametrize("version", ["HTTP/1.0", "HTTP/1.1"])
async def test_a_websocket_without_the_header_connection_is_400(nats_url: str, version: str) -> None:
    """Found by the fuzz: engine.io answered a list of packets, which no HTTP server can send."""
    async with gateway_world(nats_url, registry=False) as world:
        host, port = world.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        path = "/socket.io/?EIO=4&transport=websocket"
        writer.write(
            f"GET {path} {version}\r\nHost: {host}\r\nConnection: close\r\nUpgrade: websocket\r\n\r\n".encode()
        )
        answer = (await reader.read()).decode()
        writer.close()
        assert answer.split()[1] == "400"
        assert "`Connection: Upgrade`" in answer


async def test_a_req_id_that_no_header_can_hold_reaches_none(nats_url: str) -> None:
    """Found by the fuzz: the answer was 500."""
    async with gateway_world(nats_url) as world, connected(world.url) as client:
        await client.join("computer", "box", "office")
        for req_id in ("a\nb", "x" * 60_000, 7):
            assert await client.call("server:update_tool_list", {"computer": "box", "req_id": req_id}) is None


async def test_a_large_request_of_a_polling_client_is_read_whole(nats_url: str) -> None:
    async with gateway_world(nats_url) as world, connected(world.url, transports=["polling"]) as client:
        await client.join("agent", "anna", "office")
        for size in (200_000, 900_000):
            answer = await client.call("client:tool_call", CALL | {"params": {"x": "y" * size}})
            assert code_of(answer) == 404, "it was understood: there is no such Computer"
