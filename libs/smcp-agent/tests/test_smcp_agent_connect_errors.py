"""Messages of connection errors say what to change."""

import asyncio
import datetime as dt
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from smcp_agent import CannotConnect, NotAllowed, SmcpAgent, SmcpError
from smcp_testing.gateway_world import gateway_world
from smcp_testing.nats_process import NatsServer
from smcp_testing.ports import Ports

HOST = "127.0.0.1"


async def why_not(url: str) -> str:
    """What `details.urls` says of a gateway that cannot be connected to."""
    with pytest.raises(CannotConnect) as refused:
        async with SmcpAgent(url, office="office", name="bot"):
            pytest.fail("it connected")
    why = refused.value.details["urls"][url]
    assert refused.value.message == f"cannot connect to {url}: {why}"
    return str(why)


async def test_the_error_for_a_bad_certificate_names_the_reason(tmp_path: Path) -> None:
    async with listener(certificate(tmp_path)) as url:
        assert "certificate verify failed: self-signed certificate" in await why_not(url)


async def test_a_server_that_does_not_speak_http_is_an_error_with_what_it_said(nats_server: NatsServer) -> None:
    assert "INFO" in await why_not(f"http://{HOST}:{nats_server.port}")


@pytest.mark.parametrize(
    "url",
    ["http://me:s3cr@t@127.0.0.1:1", "http://me:s3cr@t@ho st:1", "http://me:s3cr@t@127.0.0.1:1/a/?b=c",
     "me:s3cr@t@127.0.0.1:1", "http://me:s3cr@t/x@127.0.0.1:1", "http://me:s3cr@t@[::1"],
)  # fmt: skip
async def test_a_login_in_a_url_is_not_told_in_errors(url: str) -> None:
    with pytest.raises(SmcpError) as refused:
        async with SmcpAgent([url, "http://127.0.0.1:2"], office="office", name="bot", connect_timeout=5):
            pytest.fail("it connected")
    told = f"{refused.value.message} {refused.value.details}"
    assert "<redacted>@" in told
    assert not any(part in told for part in ("me:", "s3cr", "t@"))


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (404, "", "what answers there (HTTP 404) is not an A2C-SMCP gateway"),
        (404, "{}", "what answers there (HTTP 404) is not an A2C-SMCP gateway"),
        (405, "", "what answers there (HTTP 405) is not an A2C-SMCP gateway"),
        (200, "<html></html>", "what answers there (HTTP 200) is not an A2C-SMCP gateway"),
        (503, "", "HTTP 503"),
        (400, "", "HTTP 400"),
    ],
)
async def test_an_http_error_is_named_by_its_status_and_what_is_no_gateway_by_that(
    status: int, body: str, why: str
) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=status, text=body, content_type="application/json")

    app, port = web.Application(), Ports().take()
    app.router.add_get("/{path:.*}", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, port).start()
        assert await why_not(f"http://{HOST}:{port}") == why
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(("header", "value"), [("Host", "pc.example"), ("Origin", "http://page.example")])
async def test_a_gateway_that_refuses_a_header_says_which_and_how_to_allow_it(
    nats_url: str, header: str, value: str
) -> None:
    async with gateway_world(nats_url, registry=False) as world:
        with pytest.raises(NotAllowed, match=f"{header}: .*: see SMCP_ALLOWED_{header.upper()}S") as refused:
            async with SmcpAgent(world.url, office="office", name="bot", headers={header: value}):
                pytest.fail("it connected")
        assert refused.value.details == {"field": header}


@pytest.mark.parametrize("content", ["{}", "[]", "5", '{"pingInterval":1e400,"pingTimeout":1}'])
async def test_a_gateway_whose_open_packet_cannot_be_read_is_an_error(content: str) -> None:
    async def open_badly(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str(f"0{content}")
        async for _ in socket:
            pass
        return socket

    app, port = web.Application(), Ports().take()
    app.router.add_get("/{path:.*}", open_badly)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, port).start()
        assert await why_not(f"http://{HOST}:{port}")
    finally:
        await runner.cleanup()


def certificate(directory: Path) -> Path:
    """A self-signed one and its key, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HOST)])
    now = dt.datetime.now(dt.UTC)
    alternative = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address(HOST))])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(alternative, critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = directory / "gateway.pem"
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


@asynccontextmanager
async def listener(pem: Path) -> AsyncIterator[str]:
    """A port that speaks TLS, and then says nothing."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    async with await asyncio.start_server(hang_up, HOST, 0, ssl=context) as server:
        yield f"https://{HOST}:{server.sockets[0].getsockname()[1]}"
