"""The command `smcp-gateway`."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).with_name("smcp-gateway")


async def run(*arguments: str, **variables: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        COMMAND, *arguments, env={**os.environ, **variables},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(30):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_it_says_its_version() -> None:
    code, out, _ = await run("--version")
    assert code == 0
    assert out.startswith("smcp-gateway ")


async def test_it_checks_its_configuration() -> None:
    code, out, _ = await run("--check-config", SMCP_GATEWAY_PORT="0")
    assert code == 0
    assert "SMCP_GATEWAY_PORT=0" in out


@pytest.mark.parametrize(
    ("variable", "value"), [("SMCP_GATEWAY_PORT", "70000"), ("SMCP_LEASE_S", "soon"), ("SMCP_NATS_CREDS", __file__)]
)
async def test_a_wrong_setting_is_named(variable: str, value: str) -> None:
    code, _, err = await run("--check-config", **{variable: value})
    assert code == 2
    assert variable in err


async def test_it_prints_where_it_listens_and_stops_on_a_signal(nats_url: str) -> None:
    process = await asyncio.create_subprocess_exec(
        COMMAND, env={**os.environ, "SMCP_NATS_URL": nats_url, "SMCP_GATEWAY_PORT": "0"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    async with asyncio.timeout(30):
        line = (await process.stdout.readline()).decode()
        assert line.startswith("gateway listening on http://127.0.0.1:")
        assert int(line.strip().rpartition(":")[2]) > 0
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
        await process.stdout.read()
    process._transport.close()  # type: ignore[attr-defined]
