"""An office as MCP clients see it: the MCP SDK's client over stdio, `smcp up`, and real MCP servers."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from mcp.client import Client
from mcp.client.session import IncomingMessage
from mcp.client.stdio import StdioServerParameters
from pydantic import BaseModel

from smcp_testing.waiting import eventually
from tests.e2e.scenarios import npm_servers
from tests.e2e.worlds.layout import ALPHA, BETA, Place, command
from tests.e2e.worlds.standalone import open_standalone
from tests.e2e.worlds.world import LAB, World

EVERYTHING: Final[dict[str, Any]] = {
    "command": "npx",
    "args": ["--no", "--", "mcp-server-everything"],
    "cwd": str(npm_servers.NPM),
}
START_S: Final = 240.0
CALLS: Final[dict[str, dict[str, Any]]] = {
    "get-sum": {"a": 20, "b": 22},
    "get-structured-content": {"location": "New York"},
    "get-tiny-image": {},
    "get-annotated-message": {"messageType": "error", "includeImage": True},
    "get-resource-links": {"count": 2},
}
SLEEP: Final = {"seconds": START_S, "mark": "vanished"}

pytestmark = [pytest.mark.keeps_processes, pytest.mark.timeout(2 * START_S)]


class Heard:
    """What a client was told without having asked."""

    def __init__(self) -> None:
        self.methods: list[str] = []

    async def __call__(self, message: IncomingMessage) -> None:
        if not isinstance(message, Exception):
            self.methods.append(message.method)


def bridge(world: World, office: str = LAB) -> StdioServerParameters:
    arguments = ["mcp", "--url", world.url(0), "--office", office, "--tools", "all"]
    return StdioServerParameters(command=command("smcp-agent"), args=arguments)


@asynccontextmanager
async def connected(server: StdioServerParameters, heard: Heard | None = None) -> AsyncIterator[Client]:
    async with Client(server, mode="legacy", message_handler=heard, read_timeout_seconds=START_S) as client:
        yield client


async def names(client: Client) -> set[str]:
    return {each.name for each in (await client.list_tools()).tools}


def plain(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, without_node: str) -> Iterator[World]:
    servers = {} if without_node else {"everything": {"type": "stdio", "server_parameters": EVERYTHING}}
    place = Place("host-everything", LAB, "everything", servers)
    opened = open_standalone(tmp_path_factory.mktemp("bridge"), more=[place])
    with asyncio.Runner() as runner:
        yield runner.run(opened.__aenter__())
        runner.run(opened.__aexit__(None, None, None))


@pytest.mark.usefixtures("node")
async def test_server_everything_is_the_same_through_an_office_and_directly(world: World) -> None:
    with world.telling():
        async with connected(StdioServerParameters(**EVERYTHING)) as direct, connected(bridge(world)) as client:
            await eventually(lambda: _has(client, *CALLS), timeout=START_S)
            through = {each.name: plain(each) for each in (await client.list_tools()).tools}
            listed = {each.name: plain(each) for each in (await direct.list_tools()).tools}
            for name, tool in listed.items():
                if name in through:  # `execution` is about tasks, which an office does not have
                    assert through[name] == {key: value for key, value in tool.items() if key != "execution"}
            assert set(listed) - set(through) == {"echo"}  # other Computers have one, too
            for name, arguments in CALLS.items():
                theirs, ours = (
                    plain(await direct.call_tool(name, arguments)),
                    plain(await client.call_tool(name, arguments)),
                )
                assert ours == theirs, name
            passed, reported = await progress(client), await progress(direct)
            assert passed
            assert set(passed) <= set(reported)  # at most ten a second
            resources = {each.uri: plain(each) for each in (await client.list_resources()).resources}
            for resource in (await direct.list_resources()).resources:
                assert resources[resource.uri] == plain(resource)
                read = plain(await client.read_resource(resource.uri))
                assert read["contents"] == plain(await direct.read_resource(resource.uri))["contents"]


async def progress(client: Client) -> list[tuple[float, float | None, str | None]]:
    """What a call reports while it runs."""
    heard: list[tuple[float, float | None, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    await client.call_tool("trigger-long-running-operation", {"duration": 1, "steps": 4}, progress_callback=hear)
    return heard


async def _has(client: Client, *wanted: str) -> bool:
    return set(wanted) <= await names(client)


async def test_a_computer_that_dies_costs_its_own_tools_and_a_second_bridge_is_refused(world: World) -> None:
    heard = Heard()
    with world.telling():
        async with connected(bridge(world), heard) as client:
            await eventually(lambda: _has(client, "alpha__echo", "beta__echo"), timeout=START_S)
            assert "hello" in str(await client.call_tool("beta__echo", {"text": "hello"}))
            second = await asyncio.create_subprocess_exec(
                command("smcp-agent"), "mcp", "--url", world.url(0), "--office", LAB, stderr=asyncio.subprocess.PIPE
            )
            assert second.stderr is not None
            said = (await second.stderr.read()).decode()
            assert await second.wait() == 1
            assert "already has an Agent" in said
            assert "@" in said  # user@host-pid of the first
            host = world.computer(LAB, BETA.name).part
            heard.methods.clear()
            await host.kill()
            await eventually(lambda: "notifications/tools/list_changed" in heard.methods, timeout=START_S)
            assert "beta__echo" not in await names(client)
            gone = await client.call_tool("beta__echo", {"text": "hello"})
            assert gone.is_error
            assert "Error 404: " in str(gone.content)
            assert "hi" in str(await client.call_tool("alpha__echo", {"text": "hi"}))
            await host.start()
            await eventually(lambda: _has(client, "beta__echo"), timeout=START_S)


async def test_a_client_that_vanishes_ends_its_call_and_frees_the_seat(world: World) -> None:
    with world.telling():
        process = await asyncio.create_subprocess_exec(
            *(command("smcp-agent"), "mcp", "--url", world.url(0), "--office", LAB),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        for message in (
            {"id": 1, "method": "initialize", "params": about},
            {"method": "notifications/initialized"},
            {"id": 2, "method": "tools/call", "params": {"name": "alpha__sleep", "arguments": SLEEP}},
        ):
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        await process.stdout.readline()
        log = world.computer(LAB, ALPHA.name).ran
        await eventually(lambda: log.exists() and "sleep vanished" in log.read_text(), timeout=START_S)
        process.stdin.close()
        async with asyncio.timeout(START_S):
            assert await process.wait() == 0
        await eventually(lambda: "cancelled vanished" in log.read_text(), timeout=START_S)
        async with connected(bridge(world)) as client:
            assert await names(client)
