"""MCP clients of `smcp up`: its URL for them, and the keys that let them in."""

import json
import re
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from smcp_agent import SmcpAgent
from smcp_agent.errors import Malformed
from smcp_agent.tool_calls import on_behalf_of
from smcp_auth import api_keys
from smcp_proto.schemas.tools import OnBehalf
from smcp_testing.bridged import ERAS
from smcp_testing.fork_server import COMMANDS, born
from smcp_testing.mcp_servers import configs
from smcp_testing.mcp_service import office_client
from smcp_testing.service_process import service_process
from smcp_testing.waiting import eventually

SMCP = Path(sys.executable).parent / "smcp"
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
ACCEPT = {"Accept": "application/json, text/event-stream"}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "computer.json"
    path.write_text(json.dumps({"servers": {"toolbox": configs.stdio()}}))
    return path


@asynccontextmanager
async def up(config: Path, *arguments: str, **environment: str) -> AsyncIterator[dict[str, Any]]:
    """The ready line of `smcp up --json`."""
    options = ("--json", "--port", "0", "--config", str(config), "--office", "an office")
    async with service_process(*born(SMCP, "up", *options, *arguments, knows=COMMANDS), env=environment) as process:
        await eventually(lambda: process.output, timeout=60, message="smcp up printed no line")
        yield json.loads(process.output[0])


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def status(url: str, **headers: str) -> int:
    async with aiohttp.ClientSession() as http, http.post(url, json=PING, headers={**ACCEPT, **headers}) as answer:
        return answer.status


def key_file(path: Path, **grants: Any) -> str:
    """Write a key of an Agent into the file, and give it."""
    key, entry = api_keys.new_key(subject=None, roles=["agent"], names=["*"], offices=["*"], **grants)
    api_keys.add(path, entry)
    return key


@ERAS
async def test_an_mcp_client_calls_a_tool_with_the_key_of_the_run(era: str, config: Path) -> None:
    async with up(config) as ready:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/mcp/an%20office", ready["mcp_url"])
        key = Path(ready["key_file"]).read_text().strip()
        async with office_client(ready["mcp_url"], era, **bearer(key)) as client:
            assert await client.text("add", a=1, b=2) == "3"
        assert await status(ready["mcp_url"]) == 401
        assert await status(ready["mcp_url"], **bearer(key[:-1])) == 401
        assert await status(ready["mcp_url"], **bearer(key), Host="rebound.example.com") == 403


async def test_the_key_of_the_run_cannot_call_for_another_user(config: Path) -> None:
    async with up(config) as ready:
        key = Path(ready["key_file"]).read_text().strip()
        async with SmcpAgent(ready["url"], office="an office", name="caller", token=key) as agent:
            assert (await agent.call_tool(ready["computer"], "add", {"a": 1, "b": 2})).text == "3"
            with on_behalf_of(OnBehalf(identity="a" * 32, subject="another")):
                with pytest.raises(Malformed, match="a2c_on_behalf"):
                    await agent.call_tool(ready["computer"], "add", {"a": 1, "b": 2})


async def test_up_prints_the_line_that_adds_it_to_claude_code(config: Path) -> None:
    async with service_process(*born(SMCP, "up", "--port", "0", "--config", str(config), knows=COMMANDS)) as process:
        await eventually(lambda: "ctrl-C stops everything." in process.output, timeout=60)
        printed = "\n".join(process.output)
        line = r"^  claude mcp add --transport http smcp (\S+) --header 'Authorization: Bearer (\S+)'$"
        [(url, key)] = re.findall(line, printed, re.MULTILINE)
        assert f"MCP clients        {url}" in printed
        async with office_client(url, **bearer(key)) as client:
            assert await client.text("add", a=1, b=2) == "3"


async def test_no_mcp_serves_no_mcp_clients(config: Path) -> None:
    async with up(config, "--no-mcp") as ready:
        assert ready["mcp_url"] is None


async def test_with_keys_of_ones_own_it_needs_one_for_itself_that_delegates(config: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    own, users = key_file(file, delegates=True), key_file(file)
    async with up(config, SMCP_AUTH_KEYS=str(file), SMCP_TOKEN=own) as ready:
        async with office_client(ready["mcp_url"], **bearer(users)) as client:
            assert await client.text("add", a=1, b=2) == "3"
    async with up(config, SMCP_AUTH_KEYS=str(file)) as ready:
        assert ready["mcp_url"] is None


async def test_a_taken_port_of_mcp_clients_is_named_with_what_chooses_another(config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = ("--port", "0", "--config", str(config), "--mcp-port", str(port))
        async with service_process(
            *born(SMCP, "up", *options, knows=COMMANDS), env={"SMCP_LOG_FORMAT": "json"}
        ) as process:
            assert await process.exit_code(timeout=60) == 1
            choose = "--mcp-port / SMCP_MCP_PORT, or start without MCP clients (--no-mcp)"
            assert process.log[-1] == {
                "event": f"error: port {port} of 127.0.0.1 is taken; choose another with {choose}"
            }


async def test_the_last_port_leaves_none_for_mcp_clients(config: Path) -> None:
    async with service_process(
        *born(SMCP, "up", "--port", "65535", "--config", str(config), knows=COMMANDS)
    ) as process:
        assert await process.exit_code(timeout=60) == 2
        said = "--mcp-port: input should be less than or equal to 65535"
        assert said in "\n".join(str(line["event"]) for line in process.log)
