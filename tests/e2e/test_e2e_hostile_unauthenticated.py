"""Strangers attack a gateway that runs as a process: what it costs in time and memory, and how others fare meanwhile.

Each test names what the same attack took before there was `smcp_service.http_limits`.
"""

import asyncio
import json
import sys
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import psutil
import pytest

from smcp_auth import api_keys
from smcp_auth.api_keys import new_key
from smcp_testing.gateway_world import MIB, NAMESPACE, connected
from smcp_testing.service_process import ServiceProcess, service_process
from tests.e2e.hostile.bystander import ENDED_S, Bystander, Cost, answer_skills

BIN: Final = Path(sys.executable).parent
OFFICE: Final = "there"
ONE_MESSAGE: Final = 31 * MIB
UPGRADE: Final = (
    b"GET /socket.io/?EIO=4&transport=websocket HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


@dataclass
class Scene:
    gateway: ServiceProcess
    port: int
    registry_port: int
    anna: Bystander
    key: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def line(self, port: int = 0, source: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", port or self.port, local_addr=(source, 0))


@asynccontextmanager
async def scene(nats_url: str, directory: Path) -> AsyncIterator[Scene]:
    """A registry and a gateway with keys; two members of an office on it, one of which answers the other."""
    file = directory / "keys.json"
    key, entry = new_key(subject=None, offices=["*"], roles=["agent", "computer"], names=["*"])
    api_keys.add(file, entry)
    common = {"SMCP_NATS_URL": nats_url, "SMCP_LOG_FORMAT": "json", "SMCP_LEASE_S": "5"}
    front = {"SMCP_GATEWAY_PORT": "0", "SMCP_AUTH_KEYS": str(file)}
    async with (
        service_process(BIN / "smcp-registry", env=common) as registry,
        service_process(BIN / "smcp-gateway", env=common | front) as gateway,
    ):
        health = (await registry.logged("ready"))["health"]
        url = (await gateway.logged("ready"))["url"]
        async with connected(url, auth={"token": key}) as anna, connected(url, auth={"token": key}) as box:
            box.sio.on("client:get_skills", answer_skills, namespace=NAMESPACE)
            assert await anna.join("agent", "anna", OFFICE) == [True, None]
            assert await box.join("computer", "box", OFFICE) == [True, None]
            port, registry_port = (int(each.rpartition(":")[2]) for each in (url, health))
            yield Scene(gateway, port, registry_port, await Bystander.ready(anna, "anna"), key)
            assert not anna.gone.is_set()
            assert not box.gone.is_set()
            assert anna.told("notify:leave_office") == []


async def costs(scene: Scene, attack: Callable[[Scene], Awaitable[object]]) -> Cost:
    return await scene.anna.costs(scene.gateway.pid, partial(attack, scene))


async def flood(writer: asyncio.StreamWriter, head: bytes, size: int) -> None:
    """Send as much as is taken."""
    part = bytes(256 * 1024)
    with suppress(ConnectionError):
        writer.write(head)
        for _ in range(size // len(part)):
            await writer.drain()
            writer.write(part)
        await writer.drain()
    writer.close()


def bomb(mib: int) -> bytes:
    """Zeros, compressed to a thousandth."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([*(packer.compress(bytes(MIB)) for _ in range(mib)), packer.flush()])


async def test_compressed_bodies_are_not_inflated(nats_url: str, tmp_path: Path) -> None:
    body = bomb(256)
    head = b"POST /livez HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(
        body
    )

    async def post(scene: Scene, port: int) -> None:
        reader, writer = await scene.line(port)
        writer.write(head + body)
        assert (await reader.readline()).startswith(b"HTTP/1.1 415 ")
        writer.close()

    async def attack(scene: Scene) -> None:
        await asyncio.gather(*(post(scene, port) for port in [scene.port, scene.registry_port] for _ in range(12)))

    async with scene(nats_url, tmp_path) as here:
        cost = await costs(here, attack)
        assert cost.cpu_s < 3, "12 s before; and the registry removed the gateway's members"
        assert cost.peak_mib < 60, cost


async def test_large_messages_of_unauthenticated_clients_are_not_kept(nats_url: str, tmp_path: Path) -> None:
    message = b"\x81\xff" + ONE_MESSAGE.to_bytes(8) + bytes(4)  # the header of a frame

    async def websocket(scene: Scene) -> None:
        reader, writer = await scene.line()
        writer.write(UPGRADE)
        assert (await reader.readline()).startswith(b"HTTP/1.1 101 ")
        await flood(writer, message, ONE_MESSAGE)

    async def polling(scene: Scene) -> None:
        reader, writer = await scene.line()
        writer.write(b"GET /socket.io/?EIO=4&transport=polling HTTP/1.1\r\nHost: x\r\n\r\n")
        sid = json.loads((await reader.readuntil(b"}")).partition(b"\r\n\r\n0")[2])["sid"]
        head = (
            f"POST /socket.io/?EIO=4&transport=polling&sid={sid} HTTP/1.1\r\nHost: x\r\nContent-Length: {ONE_MESSAGE}"
        )
        await flood(writer, head.encode() + b"\r\n\r\n", ONE_MESSAGE)

    async def attack(scene: Scene) -> None:
        await asyncio.gather(*(kind(scene) for kind in (websocket, polling) for _ in range(20)))

    async with scene(nats_url, tmp_path) as here:
        cost = await costs(here, attack)
        assert cost.peak_mib < 60, "600 MiB before, for 20 of either kind"
        assert cost.cpu_s < 6, cost


async def test_one_address_holds_few_connections_and_others_are_let_in(nats_url: str, tmp_path: Path) -> None:
    lines: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def attack(scene: Scene) -> None:
        for _ in range(800):
            reader, writer = await scene.line(source="127.0.0.9")
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nhalf")
            lines.append((reader, writer))
        async with connected(scene.url, auth={"token": scene.key}) as late:
            assert await late.join("agent", "late", "elsewhere") == [True, None]
        # those that were let in have 10 s for their headers; the others were refused
        async with asyncio.timeout(ENDED_S):
            await asyncio.gather(*(gone(reader) for reader, _ in lines))

    async def gone(reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while await reader.read(1000):
                pass

    async with scene(nats_url, tmp_path) as here:
        held = psutil.Process(here.gateway.pid).num_fds
        before, most = held(), 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, held() - before)
                await asyncio.sleep(0.05)

        watching = asyncio.create_task(watch())
        cost = await costs(here, attack)
        watching.cancel()
        for _, writer in lines:
            writer.close()
        assert most < 300, "all of them before, for longer than 100 s"
        assert held() - before < 20
        assert cost.peak_mib < 60, cost


@pytest.mark.parametrize("sent", [b"40/x,", b'40/smcp,{"token":"wrong"}'], ids=["a CONNECT elsewhere", "a wrong token"])
async def test_connects_of_many_connections_at_once_are_read_in_turns(
    nats_url: str, tmp_path: Path, sent: bytes
) -> None:
    """Members got no answer for 9 s before, and were removed; the log got a traceback for each connection."""
    many = (bytes([0x81, 0x80 + len(sent)]) + bytes(4) + sent) * 1500

    async def connect(scene: Scene) -> None:
        reader, writer = await scene.line(source="127.0.0.9")
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            writer.write(UPGRADE)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(many)
            while await reader.read(64 * 1024):
                pass
        writer.close()

    async def attack(scene: Scene) -> None:
        for _ in range(2):
            await asyncio.gather(*(connect(scene) for _ in range(240)))

    async with scene(nats_url, tmp_path) as here:
        before = len(here.gateway.log)
        cost = await costs(here, attack)
        assert cost.cpu_s < 5, cost
        assert cost.peak_mib < 60, cost
        assert not any("exception" in line for line in here.gateway.log[before:])


async def test_malformed_requests_do_not_flood_the_log(nats_url: str, tmp_path: Path) -> None:
    async def send(scene: Scene, text: bytes) -> None:
        reader, writer = await scene.line()
        writer.write(text)
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    async def attack(scene: Scene) -> None:
        for _ in range(40):
            await asyncio.gather(*(send(scene, b"GET / HTTP/1.1\r\nno header\r\n\r\n") for _ in range(10)))

    async with scene(nats_url, tmp_path) as here:
        before = len(here.gateway.log)
        await costs(here, attack)
        more = here.gateway.log[before:]
        assert len(more) < 20, "400 lines with tracebacks before"
        assert not any("exception" in line or "Traceback" in str(line) for line in more)
