"""The command while NATS is not there: it says so, and is alive meanwhile."""

import asyncio
import sys
from pathlib import Path

import aiohttp

from smcp_testing.fork_server import COMMANDS, born
from smcp_testing.service_process import service_process

COMMAND = Path(sys.executable).with_name("smcp-gateway")


async def test_without_nats_the_command_is_alive_and_then_ends_with_an_error_message() -> None:
    connections: list[asyncio.StreamWriter] = []

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        env = {"SMCP_NATS_URL": f"nats://127.0.0.1:{port}", "SMCP_GATEWAY_PORT": "0", "SMCP_LOG_FORMAT": "json"}
        async with service_process(*born(COMMAND, knows=COMMANDS), env=env) as process:
            url = (await process.logged("listening"))["url"]
            await process.logged(f"NATS at 127.0.0.1:{port} does not answer yet; trying for 10 s")
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
