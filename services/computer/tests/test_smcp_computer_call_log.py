"""A Computer logs one line for each call, without arguments and results."""

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from smcp_bus import subjects
from smcp_bus.nats.bus import Bus, BusConfig, open_bus
from smcp_computer.app import open_computer
from smcp_computer.config.file import parse_config
from smcp_computer.confirmation import Answer, Asker
from smcp_computer.handlers.tool_call import RECENT
from smcp_computer.settings import ComputerSettings, Confirm
from smcp_computer.tools import Target
from smcp_proto.schemas.tools import ToolCallReq
from smcp_registry.app import open_registry
from smcp_registry.settings import RegistrySettings
from smcp_testing.computer_office import world
from smcp_testing.fork_server import COMMANDS, born
from smcp_testing.mcp_servers import configs
from smcp_testing.service_process import service_process
from smcp_testing.waiting import eventually

COMMAND = Path(sys.executable).with_name("smcp-computer")


@asynccontextmanager
async def agent_and_registry(url: str) -> AsyncIterator[Bus]:
    async with (
        open_bus(BusConfig(url=url)) as bus,
        open_registry(RegistrySettings(nats_url=url), bus),
        open_bus(BusConfig(url=url)) as agent,
    ):
        yield agent


async def call(agent: Bus, tool: str, req_id: str, timeout: int = 15, **params: Any) -> dict[str, Any]:
    request = {"agent": "alice", "req_id": req_id, "computer": "pc", "tool_name": tool, "params": params}
    body = json.dumps({**request, "timeout": timeout}).encode()
    reply = await agent.request(subjects.client("lab", "pc", "tool_call"), body, timeout=20.0)
    answer: dict[str, Any] = json.loads(reply.body)
    return answer


async def test_each_call_is_one_log_line_without_its_content(nats_url: str, tmp_path: Path) -> None:
    config = tmp_path / "c.json"
    config.write_text(json.dumps({"servers": {"box": {**configs.stdio(), "forbidden_tools": ["append"]}}}))
    command = born(COMMAND, "run", "--config", config, "--office", "lab", "--name", "pc", knows=COMMANDS)
    async with (
        agent_and_registry(nats_url) as agent,
        service_process(*command, env={"SMCP_NATS_URL": nats_url, "SMCP_LOG_FORMAT": "json"}) as process,
    ):
        await process.logged("MCP server 'box' is ready with 17 tools", timeout=40)
        await process.logged("in the office 'lab' as 'pc'", timeout=40)
        traced = "4bf92f3577b34da6a3ce929d0e0e4736"
        await call(agent, "echo", traced, text="s3cret")
        await call(agent, "echo", traced, text="s3cret")
        await call(agent, "fail", "r2", message="s3cret")
        await call(agent, "append", "r3", mark="s3cret")
        await call(agent, "sleep", "r4", timeout=1, seconds=60, mark="s3cret")
        await call(agent, "die", "r5")

        def lines() -> list[dict[str, Any]]:
            return [line for line in process.log if line["event"] == "tool call"]

        await eventually(lambda: len(lines()) == 6)
        told = [(line["tool"], line["outcome"], line.get("mcp_server"), line["req_id"]) for line in lines()]
        assert told == [
            ("echo", "ok", "box", traced),
            ("echo", "repeated", None, traced),
            ("fail", "tool_error", "box", "r2"),
            ("append", "refused", None, "r3"),
            ("sleep", "timeout", "box", "r4"),
            ("die", "failed", "box", "r5"),
        ]
        assert lines()[0]["trace_id"] == traced
        assert all(line["agent"] == "alice" and line["office"] == "lab" and line["ms"] >= 0 for line in lines())
        assert lines()[4]["ms"] >= 800
        assert "went away before it answered" in lines()[5]["why"]
        assert "s3cret" not in json.dumps(lines())


class Nobody:
    """A user who is asked and has gone for lunch."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.withdrawn = asyncio.Event()

    async def __call__(self, target: Target, request: ToolCallReq, user: str | None) -> Answer:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.withdrawn.set()
        return Answer.YES


async def test_an_unanswered_confirmation_is_logged_as_not_confirmed(
    nats_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="smcp_computer.tool_call")
    log = tmp_path / "log"
    config = parse_config(json.dumps({"servers": {"box": configs.stdio(log=log)}}))
    user = Nobody()
    asker: Asker = user
    settings = ComputerSettings(
        nats_url=nats_url, config=Path("unused"), office="lab", name="pc", confirm=Confirm.ASK, drain_s=5.0
    )
    async with (
        agent_and_registry(nats_url) as agent,
        open_bus(BusConfig(url=nats_url)) as bus,
        open_computer(settings, bus, config=config, environ={}, asker=asker) as computer,
    ):
        await asyncio.wait_for(computer.wait_ready(), 60)
        result = await call(agent, "append", "r1", timeout=1, mark="ran")
        assert user.asked.is_set()
        assert result["isError"] is True
        assert result["meta"] == {"a2c_timeout": True, "a2c_not_confirmed": True}
        text = result["content"][0]["text"]
        assert text == "the tool 'append' was not run: the user of this Computer did not approve it within 1 s"
        await asyncio.wait_for(user.withdrawn.wait(), 30)
        assert not log.exists()
    records = [record for record in caplog.records if record.getMessage() == "tool call"]
    assert [vars(record)["outcome"] for record in records] == ["not_confirmed"]


async def test_recent_calls_and_those_in_flight_are_known_by_server(nats_url: str) -> None:
    box = configs.stdio(forbidden_tools=["append"])
    async with world(nats_url, box=box, other=configs.stdio("hello")) as here:
        running = asyncio.create_task(here.call("sleep", req_id="1", seconds=60))

        def calls() -> list[tuple[str, str, str]]:
            return [
                (each["tool"], each["agent"], each["outcome"]) for each in here.computer.calls.recent().get("box", [])
            ]

        await eventually(lambda: calls() == [("sleep", "alice", "running")])
        await here.call("box__fail", req_id="2")
        await here.call("add", req_id="3", a="x")
        await here.call("append", req_id="4")
        await here.cancel("1")
        await running
        await eventually(
            lambda: (
                calls()
                == [("sleep", "alice", "cancelled"), ("add", "alice", "400"), ("box__fail", "alice", "tool_error")]
            )
        )
        [forbidden] = here.computer.calls.recent()[""]
        assert (forbidden["tool"], forbidden["outcome"]) == ("append", "refused")
        for number in range(RECENT):
            await here.call("echo", req_id=f"echo {number}", text="x")
        assert calls() == [("echo", "alice", "ok")] * RECENT
