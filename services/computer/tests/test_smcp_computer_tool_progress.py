"""A Computer passes on the progress that an MCP server reports, if the caller reads it."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal

import orjson
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification

from smcp_agent import SmcpAgent, ToolProgress
from smcp_bus.tool_progress import ProgressThrottle, note_counts
from smcp_computer.config.file import parse_config
from smcp_computer.gateway import open_gateway_computer
from smcp_computer.mcp.sdk_adapter import Watch
from smcp_computer.settings import ComputerSettings
from smcp_testing.computer_world import native_computer
from smcp_testing.gateway_world import gateway_world
from smcp_testing.mcp_servers import configs
from smcp_testing.supervised import running
from smcp_testing.waiting import eventually


@pytest.mark.parametrize("how", ["stdio", "streamable"])
async def test_a_servers_progress_is_heard_over_a_pipe_and_over_http(how: Literal["stdio", "streamable"]) -> None:
    async with AsyncExitStack() as stack:
        server = configs.stdio()
        if how != "stdio":
            http = await stack.enter_async_context(configs.http_toolbox(how))
            server = configs.http(how, http.url)
        box = (await stack.enter_async_context(running(box=server)))["box"]
        notes: list[bytes] = []
        counts = note_counts()
        feed = ProgressThrottle(notes.append, counts)
        result = await box.call("progress", {"steps": 3}, timeout=30, progress=feed)
        assert result["content"][0]["text"] == "done"
        assert orjson.loads(notes[0]) == {"progress": 0, "total": 3}
        feed.close()
        assert sum(counts.values()) == 3
        result = await box.call("progress", {"steps": 3}, timeout=30)
        assert result["content"][0]["text"] == "done"
        assert sum(counts.values()) == 3, "the second call asks for none"


async def test_a_progress_token_that_is_no_number_is_of_no_call() -> None:
    notes: list[bytes] = []
    watch = Watch("box")
    watch.followed[1] = feed = ProgressThrottle(notes.append, note_counts())
    for progress, token in enumerate((True, 1.0, "1", 2, 1)):
        params = {"progressToken": token, "progress": progress}
        message = JSONRPCNotification(jsonrpc="2.0", method="notifications/progress", params=params)
        assert watch.received(SessionMessage(message))
    feed.close()
    assert [orjson.loads(note)["progress"] for note in notes] == [4]


async def test_an_answer_whose_id_is_true_is_not_that_of_request_1() -> None:
    watch = Watch("box")
    with watch.answer(1) as answer:
        assert not watch.answered('{"jsonrpc": "2.0", "id": true, "result": {}}')
        assert not answer.done()
        assert watch.answered('{"jsonrpc": "2.0", "id": 1, "result": {}}')
        assert answer.result() == {}


@pytest.mark.parametrize("how", ["nats", "gateway"])
async def test_progress_reaches_the_agent_over_two_gateways(nats_url: str, tmp_path: Path, how: str) -> None:
    heard: list[ToolProgress] = []
    servers: dict[str, Any] = {"tools": configs.stdio()}
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(gateway_world(nats_url, gateways=2))
        if how == "nats":
            await stack.enter_async_context(native_computer(world, "office", "box", servers))
        else:
            url = world.gateways[1].url
            settings = ComputerSettings(gateway_url=url, config=Path("unused"), office="office", name="box")
            config = parse_config(json.dumps({"servers": servers}))
            box = await stack.enter_async_context(open_gateway_computer(settings, config=config, environ={}))
            await asyncio.wait_for(box.wait_ready(), 60)
        agent = await stack.enter_async_context(SmcpAgent(world.url, office="office", name="anna"))
        params = {"steps": 3, "until": str(tmp_path / "heard")}
        calling = asyncio.create_task(agent.call_tool("box", "progress", params, on_progress=heard.append))
        await eventually(lambda: heard and heard[-1].progress == 2)
        (tmp_path / "heard").touch()
        assert (await calling).text == "done"
        assert (heard[0].progress, heard[0].total, heard[0].message) == (0, 3, None)
        heard.clear()
        assert (await agent.call_tool("box", "progress", {"steps": 3})).text == "done"
        assert heard == []
