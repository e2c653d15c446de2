"""Messages over a WebSocket are handled in the order in which they were sent, however they were cut."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSCloseCode, web

from smcp_auth import api_keys
from smcp_auth.api_keys import new_key
from smcp_auth.quotas import SUBJECT_BODIES
from smcp_gateway.sockets.packet import ClientPacket, read_packet
from smcp_gateway.sockets.websocket import BURST, FRAMES, SLICE, VERY_LARGE, Slices
from smcp_proto.catalog import HEADROOM
from smcp_testing.gateway_world import MIB, World, connected, gateway_world
from smcp_testing.raw_websocket import CLOSE, CONTINUATION, KIB, PONG, TEXT, RawWebSocket, client_frame
from smcp_testing.waiting import eventually

OFFICE = "office"
BOX = "box"
CONNECT = b"40/smcp,"
BINARY, WS_PING, WS_PONG = 2, 9, 10
FLOOD = 40 * BURST
"""Events at once."""


@asynccontextmanager
async def raw(world: World) -> AsyncIterator[RawWebSocket]:
    """A WebSocket that has been opened, and has said nothing yet."""
    gateway = world.gateways[0]
    with socket.socket() as tcp:
        tcp.setblocking(False)
        client = RawWebSocket(tcp)
        await client.connect(gateway.front.listener.host, gateway.front.listener.port)
        assert (await client.message()).startswith(b"0{")
        yield client


def event(number: int, name: str, payload: dict[str, Any]) -> bytes:
    return b"42/smcp,%d%s" % (number, json.dumps([name, payload]).encode())


def joining(number: int, role: str = "agent", name: str = "anna") -> bytes:
    return event(number, "server:join_office", {"role": role, "name": name, "office_id": OFFICE})


def listing(number: int) -> bytes:
    return event(number, "server:list_room", {"agent": "anna", "req_id": f"r{number}", "office_id": OFFICE})


async def acked(client: RawWebSocket) -> tuple[int, Any]:
    """The next acknowledgement: its number and its argument."""
    while not (message := await client.message()).startswith(b"43/smcp,"):
        pass
    number, _, argument = message.removeprefix(b"43/smcp,").partition(b"[")
    return int(number), json.loads(b"[" + argument)[0]


@pytest.mark.parametrize("size", [1, 7, 64 * KIB])
async def test_messages_sent_right_after_connect_are_answered_in_order(nats_url: str, size: int) -> None:
    async with gateway_world(nats_url) as world, raw(world) as client:
        frames = [
            CONNECT,
            joining(1),
            listing(2),
            PONG,
            event(3, "server:leave_office", {"office_id": OFFICE}),
            listing(4),
        ]
        sent = b"".join(client_frame(TEXT, frame) for frame in frames)
        for at in range(0, len(sent), size):
            await client.write(sent[at : at + size])
        assert (await client.message()).startswith(b"40/smcp,{")
        assert await acked(client) == (1, [True, None])
        number, room = await acked(client)
        assert (number, [member["name"] for member in room["sessions"]]) == (2, ["anna"])
        assert await acked(client) == (3, [True, None])
        number, refused = await acked(client)
        assert (number, refused["code"]) == (4, 4103)


async def test_a_message_in_several_frames_is_one(nats_url: str) -> None:
    async with gateway_world(nats_url) as world, raw(world) as client:
        join = joining(1)
        await client.write(client_frame(TEXT, CONNECT))
        await client.write(
            client_frame(TEXT, join[:9], last=False) + client_frame(CONTINUATION, join[9:30], last=False)
        )
        await client.write(client_frame(CONTINUATION, join[30:]) + client_frame(TEXT, listing(2)))
        assert (await client.message()).startswith(b"40/smcp,{")
        assert await acked(client) == (1, [True, None])
        assert (await acked(client))[0] == 2


async def test_an_acknowledgement_and_the_event_after_it_are_both_handled(nats_url: str) -> None:
    async with (
        gateway_world(nats_url, gateways=2) as world,
        raw(world) as client,
        connected(world.gateways[1].url) as anna,
    ):
        await client.write(client_frame(TEXT, CONNECT) + client_frame(TEXT, joining(1, "computer", BOX)))
        assert (await client.message()).startswith(b"40/smcp,{")
        assert await acked(client) == (1, [True, None])
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        request = {"agent": "anna", "req_id": "r", "computer": BOX}
        asking = asyncio.create_task(anna.call("client:get_tools", request))
        while not (asked := await client.message()).startswith(b"42/smcp,") or b"get_tools" not in asked:
            pass
        number = asked.removeprefix(b"42/smcp,").partition(b"[")[0]
        answer = b"43/smcp,%s%s" % (number, json.dumps([{"tools": [], "req_id": "r"}]).encode())
        notice = event(2, "server:update_config", {"computer": BOX})
        await client.write(client_frame(TEXT, answer) + client_frame(TEXT, notice))
        assert await asking == {"tools": [], "req_id": "r"}
        await eventually(lambda: anna.told("notify:update_config"))


async def test_a_client_that_disconnects_right_after_an_event_leaves(nats_url: str) -> None:
    async with gateway_world(nats_url) as world, raw(world) as client, connected(world.url) as box:
        assert await box.join("computer", BOX, OFFICE) == [True, None]
        await client.write(client_frame(TEXT, CONNECT) + client_frame(TEXT, joining(1)))
        assert (await client.message()).startswith(b"40/smcp,{")
        assert await acked(client) == (1, [True, None])
        await client.write(client_frame(TEXT, listing(2)) + client_frame(TEXT, b"41/smcp,") + client_frame(CLOSE, b""))
        await eventually(lambda: box.told("notify:leave_office"))
        await eventually(lambda: len(world.gateways[0].sessions) == 1)


async def test_other_clients_are_answered_while_one_floods(nats_url: str) -> None:
    async with gateway_world(nats_url) as world, raw(world) as client, connected(world.url) as other:
        await client.write(client_frame(TEXT, CONNECT))
        assert (await client.message()).startswith(b"40/smcp,{")
        flood = asyncio.create_task(client.write(client_frame(TEXT, event(1, "server:none", {})) * FLOOD))
        assert await other.join("agent", "anna", OFFICE) == [True, None]
        for _ in range(FLOOD):
            number, refused = await acked(client)
            assert (number, refused["code"]) == (1, 400)
        await flood


async def test_a_message_after_a_large_one_is_handled_after_it(nats_url: str) -> None:
    large = {"params": "x" * 140 * KIB}  # so much waits then that aiohttp pauses reading
    async with gateway_world(nats_url) as world, raw(world) as client:
        await client.write(client_frame(TEXT, CONNECT))
        assert (await client.message()).startswith(b"40/smcp,{")
        for number in range(2, 12, 2):
            first, second = event(number, "server:none", large), event(number + 1, "server:none", {})
            await client.write(client_frame(WS_PING, b"") + client_frame(TEXT, first) + client_frame(TEXT, second))
            assert (await client.frame()) == (WS_PONG, b"")
            assert [(await acked(client))[0] for _ in range(2)] == [number, number + 1]


class Frames(asyncio.Protocol):
    """What comes to aiohttp's protocol: the first byte of each frame, and its payload."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def data_received(self, data: bytes) -> None:
        self._bytes += data

    def read(self) -> list[tuple[int, bytes]]:
        frames, rest = [], bytes(self._bytes)
        while rest:
            size, header = rest[1] & 0x7F, 2
            if size > 125:
                header = 4 if size == 126 else 10
                size = int.from_bytes(rest[2:header])
            mask, end = b"", header + size
            if rest[1] & 0x80:
                mask, header, end = rest[header : header + 4], header + 4, end + 4
            payload = rest[header:end]
            if mask:
                pattern = mask * (len(payload) // 4 + 1)
                whole = int.from_bytes(payload) ^ int.from_bytes(pattern[: len(payload)])
                payload = whole.to_bytes(len(payload))
            frames.append((rest[0], payload))
            rest = rest[end:]
        return frames


@pytest.mark.parametrize("size", [13, 64 * KIB + 1, 4 * MIB])
def test_aiohttp_gets_a_large_frame_in_slices(size: int) -> None:
    large, other = bytes(range(250)) * (3 * SLICE // 250 + 1), b"x" * 4 * SLICE
    said = [
        client_frame(TEXT, b"small"),
        client_frame(TEXT, large),
        client_frame(TEXT, b"x" * SLICE, last=False),
        client_frame(CONTINUATION, other, last=False),
        client_frame(WS_PING, b"between"),
        client_frame(CONTINUATION, b""),
        client_frame(BINARY, b"small"),
        client_frame(BINARY, large),
        client_frame(BINARY, b"x", last=False),
        client_frame(CONTINUATION, other, last=False),
        client_frame(CONTINUATION, b"x"),
        client_frame(CLOSE, b"\x03\xe8"),
    ]
    sent, frames = b"".join(said), Frames()
    slices = Slices(frames, 8 * SLICE, b"the mark", pytest.fail)
    for at in range(0, len(sent), size):
        slices.data_received(sent[at : at + size])
    came = frames.read()
    assert came[:2] == [(0x81, b"the mark"), (0x81, b"small")]
    assert max(len(payload) for _, payload in came) == SLICE
    assert [first for first, _ in came[2:]] == [*[0x82] * 3, 0x81, *[0x82] * 5, 0x80 | WS_PING, 0x81, 0x88], "no binary"
    assert b"".join(payload for _, payload in came[2:6]) == large
    assert b"".join(payload for _, payload in came[7:11]) == other


@pytest.mark.parametrize("first", [0x01, 0x81, 0x82])
def test_a_frame_above_the_limit_is_for_aiohttp_to_refuse(first: int) -> None:
    frames, header = Frames(), bytes([first, 0xFF]) + (2 * VERY_LARGE).to_bytes(8) + bytes(4)
    slices = Slices(frames, VERY_LARGE, b"the mark", pytest.fail)
    slices.data_received(header + b"begins")
    assert frames.read()[1:] == [(first, b"begins")]


@pytest.mark.parametrize("size", [300 * KIB, 30 * MIB], ids=["fragments", "one frame"])
async def test_a_message_that_is_no_ack_is_truncated_at_the_request_limit(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    read: list[int] = []

    def counted(text: bytes, *more: int) -> ClientPacket | None:
        read.append(len(text))
        return read_packet(text, *more)

    monkeypatch.setattr("smcp_gateway.sockets.packet.read_packet", counted)
    body = b'{"params":"%b"}' % (b"x" * 3 * MIB)
    event, answer = b'42/smcp,1["client:get_tools",%b]' % body, b"43/smcp,9[%b]" % body
    async with gateway_world(nats_url, registry=False, max_payload=4 * MIB) as world, raw(world) as client:
        await client.write(client_frame(TEXT, CONNECT))
        assert (await client.message()).startswith(b"40/smcp,{")
        for text in (event, answer):
            for at in range(0, len(text), size):
                part = client_frame(CONTINUATION if at else TEXT, text[at : at + size], last=at + size >= len(text))
                await client.write(part)
        await client.write(client_frame(TEXT, listing(2)))
        number, refused = await acked(client)
        assert (number, refused["code"], refused["details"]) == (1, 413, {"limit": MIB, "size": len(body)})
        assert (await acked(client))[0] == 2
    assert read[1] <= MIB + HEADROOM
    assert read[2] == len(answer), "an answer may be longer"


async def test_messages_without_an_end_of_one_key_share_a_budget_and_another_key_is_served(
    nats_url: str, tmp_path: Path
) -> None:
    keys = {name: new_key(subject=name, offices=["*"], names=["*"]) for name in ("mallory", "anna")}
    for _, entry in keys.values():
        api_keys.add(tmp_path / "keys.json", entry)
    settings = {"auth_keys": tmp_path / "keys.json"}

    async with (
        gateway_world(nats_url, max_payload=MIB, settings=settings) as world,
        AsyncExitStack() as stack,
    ):

        async def member(name: str) -> RawWebSocket:
            client = await stack.enter_async_context(raw(world))
            await client.write(client_frame(TEXT, CONNECT + json.dumps({"token": keys[name][0]}).encode()))
            assert (await client.message()).startswith(b"40/smcp,{")
            return client

        large = event(1, "server:list_room", {"agent": "a" * 900 * KIB})
        bodies = world.gateways[0].transport.engine.bodies
        for number in range(SUBJECT_BODIES + 3):
            client = await member("mallory")
            await client.write(client_frame(TEXT, large, last=False))
            if number > SUBJECT_BODIES:
                assert await client.frame() == (CLOSE, WSCloseCode.TRY_AGAIN_LATER.to_bytes(2))
        assert bodies.refused >= 2
        anna = await member("anna")
        await anna.write(client_frame(TEXT, large))
        assert (await acked(anna))[0] == 1


async def test_a_message_in_fragments_that_are_too_long_together_ends_the_connection(nats_url: str) -> None:
    async with gateway_world(nats_url, registry=False, max_payload=2 * MIB) as world, raw(world) as client:
        await client.write(client_frame(TEXT, CONNECT))
        assert (await client.message()).startswith(b"40/smcp,{")
        fragments = (client_frame(CONTINUATION if number else TEXT, b"4" * MIB, last=False) for number in range(3))
        await client.write(b"".join(fragments))
        assert await client.frame() == (CLOSE, WSCloseCode.MESSAGE_TOO_BIG.to_bytes(2))


@pytest.mark.parametrize(
    "sent",
    [client_frame(CONTINUATION, b"", last=False) * (FRAMES + 1), client_frame(WS_PING, b"") + b"\x89\x00 and more"],
    ids=["too many", "not masked"],
)
def test_too_many_frames_at_once_and_frames_that_are_not_masked_do_not_reach_aiohttp(sent: bytes) -> None:
    frames = Frames()
    cut_off: list[bool] = []
    slices = Slices(frames, VERY_LARGE, b"the mark", lambda: cut_off.append(True))
    slices.data_received(client_frame(TEXT, b"x") * FRAMES)
    assert len(frames.read()) == 1 + FRAMES
    assert not cut_off
    slices.data_received(sent)
    assert cut_off == [True]
    assert len(frames.read()) == 1 + FRAMES


async def test_a_client_whose_frames_are_not_masked_is_cut_off(nats_url: str) -> None:
    async with gateway_world(nats_url, registry=False) as world, raw(world) as client:
        await client.write(b"\x89\x00" * KIB)
        with suppress(ConnectionResetError):
            assert await client.frame() is None, "no pong"


async def test_many_pings_are_answered_few_at_a_time(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once, most, pong = 0, 0, web.WebSocketResponse.pong

    async def counted(response: Any, message: bytes = b"") -> None:
        nonlocal at_once
        at_once += 1
        await pong(response, message)

    async def watch() -> None:
        nonlocal at_once, most
        while True:
            most, at_once = max(most, at_once), 0
            await asyncio.sleep(0)

    monkeypatch.setattr(web.WebSocketResponse, "pong", counted)
    async with gateway_world(nats_url, registry=False) as world, raw(world) as client:
        pings = [b"%d" % number for number in range(10 * BURST)]
        watching = asyncio.create_task(watch())
        await client.write(b"".join(client_frame(WS_PING, ping) + client_frame(WS_PONG, b"") for ping in pings))
        assert [await client.frame() for _ in pings] == [(WS_PONG, ping) for ping in pings]
        await client.write(client_frame(TEXT, CONNECT))
        assert (await client.message()).startswith(b"40/smcp,{")
        watching.cancel()
        await asyncio.wait([watching])
    assert 0 < most <= BURST


async def test_a_client_that_sends_before_it_is_answered_is_cut_off(nats_url: str) -> None:
    """Where its next frame begins would be anybody's guess: it could make a large one look like many small ones."""
    async with gateway_world(nats_url, registry=False) as world:
        gateway = world.gateways[0].front.listener
        reader, writer = await asyncio.open_connection(gateway.host, gateway.port)
        writer.write(
            b"GET /socket.io/?EIO=4&transport=websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
            b"\x81\xff" + MIB.to_bytes(8)
        )
        async with asyncio.timeout(8):  # others of which nothing is heard are closed after 10 s
            assert (await reader.read()).startswith(b"HTTP/1.1 101 ")
        writer.close()


async def test_an_event_that_is_cancelled_before_it_begins_leaves_nothing(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway_world(nats_url) as world, raw(world) as client:
        gateway = world.gateways[0]
        engine = gateway.transport.engine
        spawn, cancelled = engine.spawn, asyncio.Event()

        def cancelled_at_once(*work: Any) -> None:
            spawn(*work)
            for task in engine.tasks:
                task.cancel()
            cancelled.set()

        await client.write(client_frame(TEXT, CONNECT))
        assert (await client.message()).startswith(b"40/smcp,{")
        monkeypatch.setattr(engine, "spawn", cancelled_at_once)
        await client.write(client_frame(TEXT, event(1, "server:none", {})))
        await asyncio.wait_for(cancelled.wait(), 30)
        monkeypatch.undo()
        await client.write(client_frame(TEXT, event(2, "server:none", {})))
        assert (await acked(client))[0] == 2
        await eventually(lambda: gateway.held()["events_in_flight"] == 0)
        assert not engine.tasks
        assert [session.in_flight_bytes for session in gateway.sessions] == [0]


async def test_the_number_of_concurrent_events_of_one_client_is_bounded(nats_url: str) -> None:
    most = 0
    async with gateway_world(nats_url) as world, raw(world) as client:
        begun = world.gateways[0].transport.engine.tasks

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, len(begun))
                await asyncio.sleep(0)

        await client.write(client_frame(TEXT, CONNECT))
        assert (await client.message()).startswith(b"40/smcp,{")
        watching = asyncio.create_task(watch())
        flood = asyncio.create_task(client.write(client_frame(TEXT, event(1, "server:none", {})) * FLOOD))
        for _ in range(FLOOD):
            assert (await acked(client))[0] == 1
        await flood
        watching.cancel()
        await asyncio.wait([watching])
    assert 0 < most <= 3 * BURST
