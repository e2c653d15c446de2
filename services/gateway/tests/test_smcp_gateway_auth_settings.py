"""What may be set of who may connect: refused when wrong or open, shown without secrets."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from smcp_auth import api_keys as key_file
from smcp_auth.api_keys import new_key
from smcp_gateway.http_server import open_http_server
from smcp_gateway.settings import GatewaySettings
from smcp_service.settings import SettingsError, is_loopback
from smcp_testing.fork_server import COMMANDS, born
from smcp_testing.gateway_world import connected, gateway_world
from smcp_testing.issuer import key_set, signing_key
from smcp_testing.service_process import service_process

COMMAND = Path(sys.executable).with_name("smcp-gateway")
SECRET = "a secret of more than thirty-two bytes"


async def run(*arguments: str, **variables: str) -> tuple[int | None, str, str]:
    command = born(COMMAND, *arguments, knows=COMMANDS)
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, **variables},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(60):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "gateway.example", "127.0.0.1.example"])
async def test_without_authentication_only_loopback_addresses_are_allowed(host: str) -> None:
    code, out, err = await run("--check-config", SMCP_GATEWAY_HOST=host)
    assert (code, out) == (2, "")
    for word in ("SMCP_GATEWAY_HOST", host, "SMCP_AUTH_KEYS", "SMCP_INSECURE=true"):
        assert word in err


async def test_any_address_is_allowed_with_authentication_or_when_told_so() -> None:
    host = "0.0.0.0"
    assert (await run("--check-config", "--insecure", SMCP_GATEWAY_HOST=host))[0] == 0
    assert (await run("--check-config", SMCP_INSECURE="true", SMCP_GATEWAY_HOST=host))[0] == 0
    assert (await run("--check-config", SMCP_AUTH_SECRET=SECRET, SMCP_AUTH_AUDIENCE="a", SMCP_GATEWAY_HOST=host))[
        0
    ] == 0


async def test_a_jwk_set_that_others_may_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(key_set(signing_key("one")))
    given = {"SMCP_AUTH_JWKS": str(path), "SMCP_AUTH_AUDIENCE": "a"}
    path.chmod(0o664)
    code, _, err = await run("--check-config", **given)
    assert (code, "its group or others may write it" in err) == (2, True)
    path.chmod(0o644)
    assert (await run("--check-config", **given))[0] == 0


async def test_the_command_refuses_an_open_address_without_authentication(nats_url: str) -> None:
    env = {"SMCP_NATS_URL": nats_url, "SMCP_GATEWAY_PORT": "0", "SMCP_GATEWAY_HOST": "0.0.0.0"}
    async with service_process(*born(COMMAND, knows=COMMANDS), env=env) as process:
        assert await process.exit_code() == 2
    async with service_process(*born(COMMAND, "--insecure", knows=COMMANDS), env=env) as process:
        await process.logged("ready")
        assert any("any client that reaches" in line["event"] for line in process.log)
        process.signal(signal.SIGTERM)
        assert await process.exit_code() == 0


async def test_open_gateway_refuses_an_open_address_without_authentication() -> None:
    with pytest.raises(SettingsError, match="SMCP_GATEWAY_HOST"):
        async with open_http_server(GatewaySettings(gateway_host="0.0.0.0", gateway_port=0)):
            raise AssertionError("it listens")


@pytest.mark.parametrize(
    ("host", "own"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("LOCALHOST", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("localhost.example", False), ("", False)],
)  # fmt: skip
def test_which_addresses_are_loopback(host: str, own: bool) -> None:
    assert is_loopback(host) is own


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"SMCP_AUTH_KEYS": "/no/such/file"}, "SMCP_AUTH_KEYS"),
        ({"SMCP_AUTH_KEYS": __file__}, "SMCP_AUTH_KEYS"),
        ({"SMCP_AUTH_SECRET": "short", "SMCP_AUTH_AUDIENCE": "a"}, "SMCP_AUTH_SECRET"),
        ({"SMCP_AUTH_SECRET": SECRET}, "SMCP_AUTH_AUDIENCE"),
        ({"SMCP_AUTH_JWKS": "https://issuer.example/keys"}, "SMCP_AUTH_AUDIENCE"),
        ({"SMCP_AUTH_JWKS": "http://issuer.example/keys", "SMCP_AUTH_AUDIENCE": "a"}, "SMCP_AUTH_JWKS"),
        ({"SMCP_AUTH_JWKS": "ftp://issuer.example/keys", "SMCP_AUTH_AUDIENCE": "a"}, "SMCP_AUTH_JWKS"),
        ({"SMCP_AUTH_JWKS": "/no/such/file", "SMCP_AUTH_AUDIENCE": "a"}, "SMCP_AUTH_JWKS"),
        ({"SMCP_AUTH_JWKS": __file__, "SMCP_AUTH_AUDIENCE": "a"}, "SMCP_AUTH_JWKS"),
        ({"SMCP_AUTH_REVOKED": __file__}, "SMCP_AUTH_REVOKED"),
        ({"SMCP_AUTH_SECRET": SECRET, "SMCP_AUTH_AUDIENCE": "a", "SMCP_AUTH_REVOKED": __file__}, "SMCP_AUTH_REVOKED"),
        ({"SMCP_AUTH_PROXIES": "10.0.0.1/8"}, "SMCP_AUTH_PROXIES"),
        ({"SMCP_INSECURE": "perhaps"}, "SMCP_INSECURE"),
    ],
)
async def test_a_wrong_setting_is_named(given: dict[str, str], named: str) -> None:
    code, out, err = await run("--check-config", **given)
    assert (code, out) == (2, "")
    assert named in err
    assert "short" not in err
    assert SECRET not in err


async def test_settings_are_shown_without_secrets(tmp_path: Path) -> None:
    keys, jwks = tmp_path / "keys.json", tmp_path / "jwks.json"
    key, entry = new_key(subject="anna", offices=["*"], roles=["agent"], names=["*"])
    key_file.add(keys, entry)
    jwks.write_text(key_set(signing_key("a key")))
    code, out, err = await run(
        "--check-config",
        SMCP_AUTH_KEYS=str(keys), SMCP_AUTH_SECRET=SECRET, SMCP_AUTH_JWKS=str(jwks), SMCP_AUTH_AUDIENCE="lab",
        SMCP_TOKEN=key,
    )  # fmt: skip
    assert code == 0
    assert "SMCP_AUTH_SECRET=<hidden>" in out
    assert f"SMCP_AUTH_KEYS={keys}" in out
    assert "SMCP_AUTH_AUDIENCE=lab" in out
    assert "is not a setting" not in err
    for secret in (SECRET, entry.hash, key):
        assert secret not in out + err


async def test_no_token_is_in_the_log(nats_url: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    key, entry = new_key(subject="anna", offices=["*"], roles=["agent"], names=["*"])
    key_file.add(keys, entry)
    env = {"SMCP_NATS_URL": nats_url, "SMCP_GATEWAY_PORT": "0", "SMCP_AUTH_KEYS": str(keys), "SMCP_LOG_LEVEL": "debug"}
    async with (
        gateway_world(nats_url, gateways=0),
        service_process(*born(COMMAND, knows=COMMANDS), env=env) as process,
    ):
        url = (await process.logged("ready"))["url"]
        async with connected(url, auth={"token": key}, headers={"Authorization": f"Bearer {key}"}) as anna:
            assert await anna.join("agent", "anna", "office") == [True, None]
        wrong = "smcp_0123456789ab_not_the_right_one"
        both: list[dict[str, Any]] = [
            {"auth": {"token": wrong}},
            {"headers": {"Authorization": f"Bearer {wrong}"}},
        ]
        for said in both:
            with pytest.raises(Exception, match=r"onnect|token"):
                async with connected(url, **said):
                    raise AssertionError("it was let in")
        process.signal(signal.SIGTERM)
        assert await process.exit_code() == 0
        logged = json.dumps(process.log)
        assert "a client was refused" in logged
        assert key not in logged
        assert wrong not in logged
