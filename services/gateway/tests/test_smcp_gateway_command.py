"""The command `smcp-gateway`."""

import asyncio
import os
import re
import resource
import signal
import sys
from pathlib import Path

import aiohttp
import pytest

from smcp_testing.fork_server import COMMANDS, born
from smcp_testing.service_process import service_process
from smcp_testing.waiting import eventually

COMMAND = Path(sys.executable).with_name("smcp-gateway")


async def run(*arguments: str, **variables: str) -> tuple[int | None, str, str]:
    command = born(COMMAND, *arguments, knows=COMMANDS)
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, **variables},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(30):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_the_command_checks_its_configuration() -> None:
    code, out, _ = await run("--check-config", SMCP_GATEWAY_PORT="0")
    assert code == 0
    assert "SMCP_GATEWAY_PORT=0" in out


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SMCP_GATEWAY_PORT", "70000"),
        ("SMCP_LEASE_S", "soon"),
        ("SMCP_NATS_CREDS", __file__),
        ("SMCP_QUOTA_READS_PER_S", "-1"),
        ("SMCP_QUOTA_READS_PER_S", "nan"),
        ("SMCP_QUOTA_BURST_S", "0"),
        ("SMCP_QUOTA_SOCKETS", "1.5"),
    ],
)
async def test_a_wrong_setting_is_named(variable: str, value: str) -> None:
    code, _, err = await run("--check-config", **{variable: value})
    assert code == 2
    assert variable in err


async def test_the_command_logs_its_address_and_stops_on_a_signal(nats_url: str) -> None:
    env = {"SMCP_NATS_URL": nats_url, "SMCP_GATEWAY_PORT": "0"}
    async with service_process(*born(COMMAND, knows=COMMANDS), env=env) as process:
        ready = await process.logged("ready")
        assert re.fullmatch(r"http://127\.0\.0\.1:[1-9]\d*", ready["url"])
        process.signal(signal.SIGTERM)
        assert await process.exit_code() == 0
        assert [line["event"] for line in process.log].count("listening") == 1
        assert process.output == [f"smcp-gateway listens on {ready['url']}"]


async def test_it_may_open_as_many_files_as_the_hard_limit_allows(nats_url: str) -> None:
    env = {"SMCP_NATS_URL": nats_url, "SMCP_GATEWAY_PORT": "0"}
    limited = ("sh", "-c", 'ulimit -S -n 256; exec "$0"', COMMAND)
    async with service_process(*limited, env=env) as process:
        await process.logged("ready")
        soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        assert 256 < soft == hard


async def test_a_free_port_is_printed_even_without_a_log(nats_url: str) -> None:
    env = {"SMCP_NATS_URL": nats_url, "SMCP_GATEWAY_PORT": "0", "SMCP_LOG_LEVEL": "error"}
    async with service_process(*born(COMMAND, knows=COMMANDS), env=env) as process:
        await eventually(lambda: process.output, timeout=60)
        assert re.fullmatch(r"smcp-gateway listens on http://127\.0\.0\.1:[1-9]\d*", process.output[0])
        assert process.log == []


async def test_without_nats_the_command_is_alive_and_then_ends_with_an_error_message() -> None:
    connections: list[asyncio.StreamWriter] = []

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        env = {"SMCP_NATS_URL": f"nats://127.0.0.1:{port}", "SMCP_GATEWAY_PORT": "0", "SMCP_LOG_FORMAT": "json"}
        async with service_process(*born(COMMAND, knows=COMMANDS), env=env) as process:
            url = (await process.logged("listening"))["url"]
            async with aiohttp.ClientSession() as http:
                expected = {"livez": 200, "readyz": 503, "socket.io/?EIO=4&transport=polling": 503}
                for path, status in expected.items():
                    async with http.get(f"{url}/{path}") as answer:
                        assert answer.status == status, path
            assert await process.exit_code() == 1
            assert f"127.0.0.1:{port} could not be reached" in str(process.log)
            assert "Traceback" not in str(process.log)
        for writer in connections:
            writer.close()
