"""A `smcp-computer` that runs follows its configuration file: over NATS, through a gateway, and within `smcp up`."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal

import aiohttp
import psutil
import pytest

from smcp_testing.gateway_world import Client, connected, gateway_world
from smcp_testing.mcp_servers import configs
from smcp_testing.ports import Ports
from smcp_testing.service_process import ServiceProcess, service_process
from smcp_testing.waiting import eventually
from tests.e2e.worlds.layout import command

OFFICE, NAME = "lab", "pc"
START_S = 120.0
"""On a machine that starts 50 processes at a time."""
pytestmark = pytest.mark.timeout(5 * START_S)
Servers = dict[str, dict[str, Any]]


@dataclass
class Scene:
    """A Computer's file and process, and an Agent beside it."""

    file: Path
    process: ServiceProcess
    health: str
    agent: Client
    numbers: "count[int]" = field(default_factory=count)

    def save(self, servers: Servers) -> None:
        self.file.write_text(json.dumps({"servers": servers}))

    async def ask(self, event: str, **more: Any) -> dict[str, Any]:
        asked = {"agent": "bot", "req_id": f"r{next(self.numbers)}", "computer": NAME, **more}
        answer: dict[str, Any] = await self.agent.call(event, asked, timeout=START_S)
        return answer

    async def call(self, tool: str, **params: Any) -> dict[str, Any]:
        return await self.ask("client:tool_call", tool_name=tool, params=params, timeout=100)

    async def servers(self) -> Servers:
        answer: Servers = (await self.ask("client:get_config"))["servers"]
        return answer

    async def tools(self) -> set[str]:
        return {tool["name"] for tool in (await self.ask("client:get_tools"))["tools"]}

    async def lists(self, *tools: str) -> None:
        """Wait until it lists these tools."""

        async def listed() -> bool:
            return set(tools) <= await self.tools()

        await eventually(listed, timeout=START_S)

    async def hears(self, event: str) -> None:
        await eventually(lambda: self.agent.told(event), timeout=START_S)

    async def readyz(self) -> tuple[int, dict[str, str]]:
        async with aiohttp.ClientSession() as session, session.get(f"{self.health}/readyz") as answer:
            return answer.status, (await answer.json())["checks"]

    def children(self) -> set[int]:
        return {child.pid for child in psutil.Process(self.process.pid).children(recursive=True)}


@asynccontextmanager
async def running(
    nats_url: str, file: Path, servers: Servers, *, by: Literal["nats", "gateway"] = "nats"
) -> AsyncIterator[Scene]:
    """Its MCP servers are ready, and the Agent is in the office. A `file` that is there is taken as it is."""
    if not file.exists():
        file.write_text(json.dumps({"servers": servers}))
    async with gateway_world(nats_url) as world:
        address = {"SMCP_NATS_URL": nats_url} if by == "nats" else {"SMCP_GATEWAY_URL": world.url}
        env = {**address, "SMCP_LOG_FORMAT": "json", "SMCP_START_S": "300"}
        started = (command("smcp-computer"), "run", "--config", file, "--office", OFFICE, "--name", NAME)
        async with service_process(*started, env=env) as process, connected(world.url) as agent:
            health = (await process.logged("serving", timeout=START_S))["health"]
            scene = Scene(file, process, health, agent)

            async def ready() -> bool:
                return (await scene.readyz())[0] == 200

            await eventually(ready, timeout=START_S)
            assert await agent.join("agent", "bot", OFFICE) == [True, None]
            yield scene


def toolbox(log: Path | None = None, **config: Any) -> dict[str, Any]:
    return configs.stdio(log=log, fresh=True, **config)


async def test_the_file_may_be_saved_replaced_and_swapped_and_the_signal_ends_nothing(
    nats_url: str, tmp_path: Path
) -> None:
    def text(tool: str) -> str:
        return json.dumps({"servers": {"box": toolbox(forbidden_tools=[tool], env_file=str(variables))}})

    file, variables = tmp_path / "computer.json", tmp_path / "elsewhere" / "box.env"
    variables.parent.mkdir()
    variables.write_text("MARK=one")
    (tmp_path / "..v1").mkdir()
    (tmp_path / "..v1" / file.name).write_text(text("nothing"))
    (tmp_path / "..data").symlink_to("..v1")
    file.symlink_to(Path("..data") / file.name)
    async with running(nats_url, file, {}) as scene:
        children = scene.children()

        async def followed(tool: str) -> None:
            async def forbidden() -> bool:
                return bool((await scene.servers())["box"]["forbidden_tools"] == [tool])

            await eventually(forbidden, timeout=START_S)
            assert tool not in await scene.tools()

        (tmp_path / "..v2").mkdir()
        (tmp_path / "..v2" / file.name).write_text(text("echo"))
        (tmp_path / "..data_tmp").symlink_to("..v2")
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")
        await followed("echo")
        file.resolve().write_text(text("add"))
        await followed("add")
        beside = tmp_path / "beside"
        beside.write_text(text("pid"))
        beside.rename(file)
        await followed("pid")
        file.write_text(text("fail"))
        await followed("fail")
        scene.process.signal(signal.SIGHUP)
        await scene.process.logged("the configuration is read again (SIGHUP)")
        await followed("fail")
        assert scene.children() == children
        variables.write_text("MARK=two")
        await eventually(lambda: scene.children().isdisjoint(children), timeout=START_S)


@pytest.mark.parametrize("by", ["nats", "gateway"])
async def test_calls_elsewhere_go_on_and_those_at_a_removed_server_are_cancelled(
    nats_url: str, tmp_path: Path, by: Literal["nats", "gateway"]
) -> None:
    log, kept = tmp_path / "log", toolbox(tmp_path / "log", tool_meta={"sleep": {"alias": "kept_sleep"}})
    gone = toolbox(log, tool_meta={"sleep": {"alias": "gone_sleep"}})
    off = toolbox(tool_meta={"echo": {"alias": "new_echo"}}, disabled=True)
    async with running(nats_url, tmp_path / "c.json", {"kept": kept, "gone": gone, "off": off}, by=by) as scene:
        calls = [
            asyncio.create_task(scene.call("kept_sleep", seconds=8, mark="kept")),
            asyncio.create_task(scene.call("gone_sleep", seconds=600, mark="gone")),
        ]

        def both_run() -> bool:
            assert not [call.result() for call in calls if call.done()]
            return log.exists() and {"sleep kept", "sleep gone"} <= set(log.read_text().splitlines())

        await eventually(both_run, timeout=START_S)
        scene.save({"kept": kept, "off": {**off, "disabled": False}})
        await scene.lists("new_echo")
        assert (await scene.call("gone_sleep", seconds=0))["isError"]
        assert (await scene.call("new_echo", text="hi"))["content"][0]["text"] == "hi"
        kept_result, gone_result = await asyncio.gather(*calls)
        assert not kept_result.get("isError")
        assert gone_result["meta"]["a2c_cancelled"] is True
        assert "restarted or removed" in gone_result["content"][0]["text"]
        await eventually(lambda: "cancelled gone" in log.read_text().splitlines())
        assert len(scene.agent.told("notify:update_config")) == 1
        assert set(await scene.servers()) == {"kept", "off"}


async def test_smcp_up_follows_its_file(tmp_path: Path) -> None:
    file, port = tmp_path / "computer.json", Ports().take()
    file.write_text(json.dumps({"servers": {"box": toolbox()}}))
    up = (
        command("smcp"),
        "up",
        "--no-mcp",
        "--port",
        str(port),
        "--data",
        tmp_path / "data",
        "--config",
        file,
        "--insecure",
    )
    async with service_process(*up, "--office", OFFICE, "--name", NAME, env={"SMCP_LOG_FORMAT": "json"}) as process:
        health = f"http://127.0.0.1:{port}"

        async def ready() -> bool:
            try:
                async with aiohttp.ClientSession() as session, session.get(f"{health}/readyz") as answer:
                    return bool(answer.status == 200)
            except aiohttp.ClientError:
                return False

        await eventually(ready, timeout=START_S)
        async with connected(health) as agent:
            assert await agent.join("agent", "bot", OFFICE) == [True, None]
            scene = Scene(file, process, health, agent)
            scene.save({"box": toolbox(forbidden_tools=["echo"]), "more": toolbox()})
            await scene.hears("notify:update_config")
            await scene.lists("more__add")
            assert set(await scene.servers()) == {"box", "more"}
