"""The bus over WebSocket, as behind a proxy that carries HTTP alone."""

import asyncio
import datetime as dt
import ipaddress
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from smcp_bus.bus import Connection, Incoming, Reply
from smcp_bus.errors import ConnectionLost, NoResponder, NotConnected
from smcp_bus.nats.bus import BusConfig, NatsBus, open_bus
from smcp_bus.nats.config import load_credentials
from smcp_testing.bus_pair import echo, holding
from smcp_testing.line import Line, open_line
from smcp_testing.nats_process import NatsServer
from smcp_testing.waiting import eventually

MIB = 1024 * 1024
PLAIN = "no_tls: true"


@asynccontextmanager
async def websocket_server(directory: Path, tls: str = PLAIN, more: str = "") -> AsyncIterator[NatsServer]:
    directory.mkdir(exist_ok=True)
    config = directory / "websocket.conf"
    config.write_text(f'websocket {{ host: "127.0.0.1", port: -1, {tls} }}\n{more}')
    server = NatsServer(directory / "nats", config=config, options=["--http_port", "-1"])
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = directory / "cert.pem", directory / "key.pem"
    cert_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert_file, key_file


@pytest.fixture(params=["ws", "wss"])
async def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    tls = PLAIN
    if request.param == "wss":
        cert, key = certificate(tmp_path)
        tls = f'tls {{ cert_file: "{cert}", key_file: "{key}" }}'
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    async with websocket_server(tmp_path, tls) as server:
        yield f"{request.param}://127.0.0.1:{server.websocket_port}"


@asynccontextmanager
async def over_a_line(server: NatsServer) -> AsyncIterator[tuple[Line, BusConfig]]:
    async with open_line(server.websocket_port) as line:
        yield line, BusConfig(url=line.url.replace("http", "ws"), ping_interval=0.2)


async def test_requests_of_all_sizes_are_answered(url: str) -> None:
    config = BusConfig(url=url, max_payload=8 * MIB)
    async with open_bus(config) as asker, open_bus(config) as server:
        await server.serve("echo", echo)
        for size in (0, 1, 100_000, 5 * MIB):
            body = bytes(size % 251 for size in range(1000)) * (size // 1000) or b"x" * size
            assert (await asker.request("echo", body, timeout=20, headers={"Size": "größe"})).body == body
        with pytest.raises(NoResponder):
            await asker.request("nobody", b"", timeout=10)
        assert (asker.stats().pending, asker.stats().budget_used) == (0, 0)


async def test_many_at_once_keep_apart_and_in_order(url: str) -> None:
    async with open_bus(BusConfig(url=url)) as asker, open_bus(BusConfig(url=url)) as server:
        heard: list[bytes] = []

        async def hear(incoming: Incoming) -> None:
            heard.append(incoming.body)

        await server.listen("notes", hear)
        await server.serve("echo", echo)
        bodies = [b"%d" % number * 100 for number in range(500)]
        answers = await asyncio.gather(*(asker.request("echo", body, timeout=20) for body in bodies))
        assert [answer.body for answer in answers] == bodies
        for body in bodies:
            await asker.publish("notes", body)
        await eventually(lambda: len(heard) == len(bodies))
        assert heard == bodies


async def test_it_comes_back_after_a_cut_line_and_after_a_restart(tmp_path: Path) -> None:
    async with (
        websocket_server(tmp_path) as server,
        over_a_line(server) as (line, config),
        open_bus(config) as bus,
        open_bus(BusConfig(url=server.url)) as other,
    ):
        runs, go, handler = holding()
        await other.serve("hold", handler)
        await bus.serve("echo", echo)
        told: list[Connection] = []
        bus.watch(told.append)
        waiting = asyncio.create_task(bus.request("hold", b"", timeout=60))
        await runs.wait()
        line.cut()
        with pytest.raises(ConnectionLost):
            await waiting
        go.set()
        await eventually(lambda: bus.connected)
        await bus.flush()
        assert (await other.request("echo", b"after the cut", timeout=10)).body == b"after the cut"
        await server.restart()
        line.port = server.websocket_port
        await eventually(lambda: bus.connected and other.connected)
        await bus.flush()
        assert (await other.request("echo", b"restarted", timeout=10)).body == b"restarted"
        assert told == [Connection.DOWN, Connection.UP] * 2


async def test_a_line_that_stands_still_is_noticed_and_holds_up_no_end(tmp_path: Path) -> None:
    async with websocket_server(tmp_path) as server, over_a_line(server) as (line, config):
        async with open_bus(config) as bus:
            line.stall()
            await bus.publish("n", bytes(900_000))  # more than the socket takes, so that something is left
            await eventually(lambda: not bus.connected, timeout=10)
            with pytest.raises(NotConnected):
                await bus.request("n", b"", timeout=10)
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began < 3


async def test_a_sender_waits_while_nobody_takes_what_it_says(tmp_path: Path) -> None:
    async with websocket_server(tmp_path) as server, over_a_line(server) as (line, config):
        async with open_bus(BusConfig(url=config.url, ping_interval=60)) as bus:
            line.stall()
            sent = 0
            with pytest.raises(TimeoutError):
                while True:
                    await asyncio.wait_for(bus.publish("n", bytes(500_000)), 0.3)
                    sent += 1
            assert 4 < sent < 100, "it is bounded by the buffers on the way"
            line.resume()
            await bus.flush(timeout=30)


async def test_a_refused_credential_is_said_and_the_right_one_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    users = 'authorization { users: [ {user: "host", password: "right"} ] }\n'
    file = tmp_path / "host.json"

    def holds(secret: str) -> None:
        file.write_text(json.dumps({"name": "host", "secret": secret, "inbox_prefix": "_INBOX.host"}))

    holds("wrong")
    opened: list[NatsBus] = []
    async with websocket_server(tmp_path, more=users) as server:

        async def opens() -> Reply:
            config = BusConfig(
                url=f"ws://127.0.0.1:{server.websocket_port}", credentials=load_credentials(file), connect_timeout=20
            )
            async with open_bus(config, opening=opened.append) as bus:
                await bus.serve("echo", echo)
                return await bus.request("echo", b"hello", timeout=5)

        opening = asyncio.create_task(opens())
        await eventually(lambda: opened and opened[0].problem == "nats-server refuses the credential", timeout=20)
        assert any("refuses the credential 'host'" in message for message in caplog.messages)
        holds("right")
        assert await opening == Reply(b"hello")


async def test_something_else_that_speaks_http_is_told_from_nats(tmp_path: Path) -> None:
    async with websocket_server(tmp_path) as server:
        url = server.monitoring_url.replace("http", "ws")
        url = url.replace("ws://", "ws://host:secret@")
        with pytest.raises(NotConnected, match="no WebSocket is there, but HTTP 200") as told:
            async with open_bus(BusConfig(url=url, connect_timeout=1)):
                raise AssertionError("it opened")
        assert "secret" not in str(told.value)
