"""Messages of connection errors say what to change."""

import asyncio
import datetime as dt
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from smcp_agent import CannotConnect, SmcpAgent
from smcp_testing.agent_command import run
from smcp_testing.fake_gateway import fake_gateway
from smcp_testing.nats_process import NatsServer

HOST = "127.0.0.1"


async def why_not(url: str) -> str:
    """What `details.urls` says of a gateway that cannot be connected to."""
    with pytest.raises(CannotConnect) as refused:
        async with SmcpAgent(url, office="office", name="bot"):
            pytest.fail("it connected")
    why = refused.value.details["urls"][url]
    assert refused.value.message == f"cannot connect to {url}: {why}"
    return str(why)


async def test_the_error_for_https_without_tls_names_the_scheme() -> None:
    async with fake_gateway() as gateway:
        why = await why_not(gateway.url.replace("http://", "https://"))
        assert why.startswith("no TLS there (")
        assert "http://" in why


async def test_the_error_for_a_bad_certificate_names_the_reason(tmp_path: Path) -> None:
    async with listener(certificate(tmp_path)) as url:
        assert await why_not(url) == "its certificate is not accepted: self-signed certificate"


async def test_a_server_that_does_not_speak_http_is_named_so(nats_server: NatsServer) -> None:
    assert await why_not(f"http://{HOST}:{nats_server.port}") == "what listens there does not speak HTTP"


async def test_the_error_for_http_at_a_tls_port_says_that_nothing_answered(tmp_path: Path) -> None:
    async with listener(certificate(tmp_path)) as url:
        assert await why_not(url.replace("https://", "http://")) == "the connection was closed without an answer"


async def test_a_hint_about_certificates_is_given_for_no_other_error(tmp_path: Path) -> None:
    async with listener(certificate(tmp_path)) as url, fake_gateway() as gateway:
        assert "SSL_CERT_FILE" in (await run(gateway, "list", "--url", url))[2]
        for other in (gateway.url.replace("http://", "https://"), f"http://{HOST}:1"):
            code, _, err = await run(gateway, "list", "--url", other)
            assert code == 1
            assert "certificate" not in err
            assert "`smcp up` starts one" in err


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
