"""A bus over TLS: whom it trusts, and that it tells its secret to nobody else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from smcp_bus.bus import NotConnected
from smcp_bus.nats.bus import BusConfig, open_bus
from smcp_bus.nats.config import Credentials
from smcp_testing.certificates import Authority
from smcp_testing.echo_buses import echo
from smcp_testing.nats_process import NatsServer
from smcp_testing.waiting import eventually

SECRET = "a secret that must not be sent"
CREDENTIALS = Credentials("gateway", SECRET, "_INBOX.gateway")


@asynccontextmanager
async def server_with_tls(directory: Path, authority: Authority, *hosts: str) -> AsyncIterator[NatsServer]:
    made = authority.certificate(*hosts)
    options = ["--tls", "--tlscert", str(made.cert), "--tlskey", str(made.key)]
    server = NatsServer(directory, options=[*options, "--user", CREDENTIALS.name, "--pass", SECRET])
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def config(port: int, ca: Path | None, *, connect_timeout: float = 10) -> BusConfig:
    url = f"tls://localhost:{port}"
    return BusConfig(url=url, credentials=CREDENTIALS, ca=ca, connect_timeout=connect_timeout)


async def test_a_large_request_is_answered_over_tls_and_again_after_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path / "ca")
    body = b"0123456789abcdef" * 256 * 1024

    async with server_with_tls(tmp_path / "nats", authority, "localhost") as server:
        async with open_bus(config(server.port, authority.ca)) as bus:
            await bus.serve("echo", echo)
            assert (await bus.request("echo", body, timeout=20)).body == body
            await server.restart()
            await eventually(lambda: bus.connected)
            assert (await bus.request("echo", body, timeout=20)).body == body
    assert "eof_received" not in caplog.text  # asyncio's warning when a server closes


async def test_a_server_of_another_authority_is_not_trusted(tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger", "somebody else")
    async with server_with_tls(tmp_path / "nats", stranger, "localhost") as server:
        with pytest.raises(NotConnected, match=r"(?i)certificate"):
            async with open_bus(config(server.port, Authority(tmp_path / "ca").ca, connect_timeout=5)):
                raise AssertionError("it opened")


async def test_a_certificate_for_another_host_is_not_taken(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    async with server_with_tls(tmp_path / "nats", authority, "nats.example") as server:
        with pytest.raises(NotConnected, match=r"(?i)certificate"):
            async with open_bus(config(server.port, authority.ca, connect_timeout=5)):
                raise AssertionError("it opened")


async def test_an_attempt_that_times_out_does_not_hide_why_the_one_before_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "smcp_bus.nats.client")
    authority = Authority(tmp_path / "ca")
    async with server_with_tls(tmp_path / "nats", authority, "nats.example") as server:

        async def pause_after_a_failure() -> None:
            await eventually(lambda: "certificate" in caplog.text, pause=0.001)
            server.pause()

        pausing = asyncio.create_task(pause_after_a_failure())
        with pytest.raises(NotConnected, match=r"(?i)certificate"):
            async with open_bus(config(server.port, authority.ca, connect_timeout=5)):
                raise AssertionError("it opened")
        await pausing
        assert "TimeoutError" in caplog.text


async def test_a_server_without_tls_never_gets_the_secret(tmp_path: Path) -> None:
    heard = bytearray()

    async def without_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.15.0","max_payload":1048576,"auth_required":true}\r\n')
        heard.extend(await reader.read())
        writer.close()

    async with await asyncio.start_server(without_tls, "localhost", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        with pytest.raises(NotConnected, match="has no TLS"):
            async with open_bus(config(port, Authority(tmp_path / "ca").ca, connect_timeout=1)):
                raise AssertionError("it opened")
    assert SECRET.encode() not in heard
