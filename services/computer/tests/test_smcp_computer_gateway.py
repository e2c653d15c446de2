"""The Computer on Socket.IO: a real gateway with its registry, real MCP servers, and Agents of the SDK beside it."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from mcp_types import HEADER_MISMATCH

from smcp_agent import (
    ComputerEntered,
    ComputerLeft,
    Event,
    ResourceUpdated,
    SmcpAgent,
    TooLarge,
    ToolsChanged,
    Unavailable,
)
from smcp_agent.connecting.connection import Connection
from smcp_agent.connecting.options import Token
from smcp_computer.computer import Computer
from smcp_computer.config.file import parse_config
from smcp_computer.gateway import GatewayMembership, open_gateway_computer
from smcp_computer.settings import ComputerSettings, token_of
from smcp_testing import issuer
from smcp_testing.computer_world import native_computer
from smcp_testing.gateway_world import World, connected, gateway_world
from smcp_testing.issuer import shared_token
from smcp_testing.leaving_gateway import in_time, two_gateways
from smcp_testing.mcp_servers import configs
from smcp_testing.ports import Ports
from smcp_testing.tcp_proxy import open_line
from smcp_testing.waiting import OWNER_FIRST_S, eventually

OFFICE, NAME = "office", "box"
MIB = 1024 * 1024
SECRET = "a shared secret of the tests, long enough"
LOCKED = issuer.settings(auth_secret=SECRET)


@asynccontextmanager
async def box(
    *urls: str,
    joined: bool = True,
    token: Token | None = None,
    drain_s: float = 10.0,
    max_payload: int = 32 * MIB,
    **servers: Any,
) -> AsyncIterator[Computer]:
    settings = ComputerSettings(
        gateway_url=",".join(urls),
        config=Path("unused"),
        office=OFFICE,
        name=NAME,
        drain_s=drain_s,
        max_payload=max_payload,
    )
    config = parse_config(json.dumps({"servers": servers}))
    async with open_gateway_computer(settings, token=token, config=config, environ={}) as computer:
        if joined:
            await asyncio.wait_for(computer.wait_ready(), 60)
        yield computer


def anna(*urls: str, **options: Any) -> SmcpAgent:
    return SmcpAgent(urls, office=OFFICE, name="anna", **options)


@asynccontextmanager
async def either(how: str, world: World, **servers: Any) -> AsyncIterator[None]:
    """The same Computer over NATS or over Socket.IO."""
    if how == "nats":
        async with native_computer(world, OFFICE, NAME, servers):
            yield
    else:
        async with box(world.url, **servers):
            yield


def connection_of(computer: Computer) -> Connection | None:
    assert isinstance(computer.membership, GatewayMembership)
    return computer.membership.link.connection


async def tell(computer: Computer, server: str, tool: str, **arguments: Any) -> Any:
    """What a tool of a context server gives, past the Computer's own handlers."""
    result = await computer.fleet.supervisors[server].call(tool, arguments, timeout=30)
    assert not result.get("isError"), result
    return json.loads(result["content"][0]["text"])


@pytest.mark.parametrize("how", ["nats", "gateway"])
async def test_a_computer_answers_the_same_over_nats_and_gateway(nats_url: str, tmp_path: Path, how: str) -> None:
    log = tmp_path / "log"
    desk = configs.context("2026", windows=1, documents=1, host="h")
    async with (
        gateway_world(nats_url) as world,
        either(how, world, tools=configs.stdio(log=log, env={"KEY": "s3cret"}), desk=desk),
        anna(world.url) as agent,
    ):
        assert agent.computers() == [NAME]
        assert {"echo", "add"} <= {tool.name for tool in await agent.tools(NAME)}
        config = await agent.get_config(NAME)
        assert "s3cret" not in config.model_dump_json()
        assert (await agent.call_tool(NAME, "add", {"a": 40, "b": 2})).structured_content == {"result": 42}
        large = {"n": 12345678901234567890123, "more": [-(2**63) - 1, 2**64 - 1, 1.5], "文": "\u2028"}
        assert (await agent.call_tool(NAME, "keys", {"value": large})).structured_content == large
        (window,) = (await agent.get_desktop(NAME))["desktops"]
        assert window.startswith("window://h/0")
        assert len((await agent.get_finder(NAME))["documents"]) == 1
        twice = [agent.call_tool(NAME, "append", {"mark": "once"}, req_id="r1") for _ in range(2)]
        assert {result.text for result in await asyncio.gather(*twice)} == {"once"}
        assert log.read_text().splitlines() == ["once"]


@pytest.mark.parametrize("how", ["nats", "gateway"])
async def test_a_call_times_out_and_is_cancelled_over_nats_and_gateway(nats_url: str, tmp_path: Path, how: str) -> None:
    log = tmp_path / "log"
    async with (
        gateway_world(nats_url) as world,
        either(how, world, tools=configs.stdio(log=log)),
        anna(world.url) as agent,
    ):
        late = await agent.call_tool(NAME, "sleep", {"seconds": 60, "mark": "late"}, timeout=OWNER_FIRST_S)
        assert late.timed_out
        await eventually(lambda: "cancelled late" in log.read_text())
        unwanted = asyncio.create_task(agent.call_tool(NAME, "sleep", {"seconds": 60, "mark": "unwanted"}))
        await eventually(lambda: "sleep unwanted" in log.read_text())
        unwanted.cancel()
        await eventually(lambda: "cancelled unwanted" in log.read_text())


@pytest.mark.parametrize("how", ["nats", "gateway"])
async def test_changes_are_announced_over_nats_and_gateway(nats_url: str, how: str) -> None:
    heard: list[Event] = []
    async with gateway_world(nats_url) as world, anna(world.url) as agent:
        agent.on_event(heard.append)
        async with either(how, world, tools=configs.stdio()):
            await eventually(lambda: ComputerEntered(NAME) in heard)
            await eventually(lambda: any(isinstance(event, ToolsChanged) for event in heard))
            await agent.call_tool(NAME, "add_tool", {"name": "late_comer"})

            async def listed() -> bool:
                return "late_comer" in {tool.name for tool in await agent.tools(NAME)}

            await eventually(listed)
            assert ComputerLeft(NAME) not in heard
        await eventually(lambda: ComputerLeft(NAME) in heard)


async def test_an_agent_gets_updates_until_it_leaves(nats_url: str) -> None:
    notes = configs.context("2026", content=[{"uri": "note://1"}])
    async with gateway_world(nats_url) as world, box(world.url, one=notes) as computer:
        heard: list[Event] = []
        async with anna(world.url) as agent:
            agent.on_event(heard.append)
            await agent.subscribe_resource(NAME, "note://1")
            await tell(computer, "one", "update", uri="note://1")
            await eventually(lambda: ResourceUpdated(NAME, "note://1", "one") in heard)
            assert computer.resources.subscriptions.agents == {"anna"}
        await eventually(lambda: computer.resources.subscriptions.agents == frozenset())


async def test_an_answer_too_large_for_the_gateway_is_413_and_keeps_the_connection(nats_url: str) -> None:
    async with (
        gateway_world(nats_url, max_payload=256 * 1024) as world,
        box(world.url, tools=configs.stdio()) as computer,
        anna(world.url) as agent,
    ):
        connection = connection_of(computer)
        with pytest.raises(TooLarge):
            await agent.call_tool(NAME, "big", {"size": 1024 * 1024})
        assert (await agent.call_tool(NAME, "echo", {"text": "x"})).text == "x"
        assert connection_of(computer) is connection


@pytest.mark.rule("answers.errors.tool-call")
@pytest.mark.parametrize("flat_errors", [True, False])
async def test_a_published_agent_reads_the_errors_of_a_computer_behind_a_gateway(
    nats_url: str, flat_errors: bool
) -> None:
    def shown(answer: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        error = answer if flat_errors else answer["meta"]["a2c_error"]
        assert flat_errors or answer["isError"] is True
        return error["code"], error["details"]

    call = {"agent": "anna", "computer": NAME, "tool_name": "big", "params": {"size": 100_000}, "timeout": 30}
    async with (
        gateway_world(nats_url) as world,
        connected(world.url, flat_errors=flat_errors) as agent,
        box(world.url, max_payload=64 * 1024, tools=configs.stdio()) as computer,
    ):
        assert await agent.join("agent", "anna", OFFICE) == [True, None]
        for _ in range(2):
            code, details = shown(await agent.call("client:tool_call", call | {"req_id": "large"}))
            assert (code, details["limit"]) == (413, 64 * 1024)
        membership = computer.membership
        assert isinstance(membership, GatewayMembership)
        again = call | {"req_id": "stopping", "tool_name": "echo", "params": {"text": "x"}}
        membership.serving = False
        assert shown(await agent.call("client:tool_call", again)) == (503, {"may_have_run": False})
        membership.serving = True
        assert (await agent.call("client:tool_call", again))["content"][0]["text"] == "x"


async def test_a_call_that_does_not_fit_a_changed_tool_fails_once_and_the_tools_are_listed_again(nats_url: str) -> None:
    mismatch = json.dumps({"jsonrpc": "2.0", "id": "$ID", "error": {"code": HEADER_MISMATCH, "message": "secret"}})
    counts = {"content": [{"type": "text", "text": "$LISTS lists, $CALLS calls"}]}
    async with (
        gateway_world(nats_url) as world,
        box(world.url, raw=configs.stdio("raw")) as computer,
        anna(world.url) as agent,
    ):
        refused = await agent.call_tool(NAME, "say", {"text": mismatch.replace('"$ID"', "$ID")})
        assert refused.is_error
        assert refused.text == (
            "MCP server 'raw' ran nothing, since the tool has changed and is being listed again; retry"
        )
        asked = 1

        async def listed() -> bool:
            nonlocal asked
            asked += 1
            answer = json.dumps({"jsonrpc": "2.0", "id": "$ID", "result": counts}).replace('"$ID"', "$ID")
            said = (await agent.call_tool(NAME, "say", {"text": answer})).text
            assert said.endswith(f", {asked} calls")
            return said.startswith("2 lists")

        await eventually(listed)
        assert computer.fleet.supervisors["raw"].starts == 1


async def test_a_computer_reconnects_and_its_interrupted_call_runs_once(nats_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with (
        gateway_world(nats_url) as world,
        open_line(world.gateways[0].front.listener.port) as line,
        box(line.url, tools=configs.stdio(log=log)) as computer,
        anna(world.url) as agent,
    ):
        first = connection_of(computer)
        running = asyncio.create_task(agent.call_tool(NAME, "sleep", {"seconds": 2, "mark": "cut"}))
        await eventually(lambda: log.exists() and "sleep cut" in log.read_text())
        line.cut()
        with pytest.raises(Unavailable) as broken:
            await in_time(running)
        assert broken.value.details["may_have_run"] is True
        await eventually(lambda: connection_of(computer) is not first)
        await eventually(lambda: computer.membership.problem is None)
        await eventually(lambda: agent.computers() == [NAME])
        assert (await agent.call_tool(NAME, "echo", {"text": "again"})).text == "again"
        await eventually(lambda: not computer.owner.running)
        assert log.read_text().splitlines() == ["sleep cut"]


async def test_a_computer_that_moves_to_another_gateway_causes_no_notification(nats_url: str) -> None:
    async with two_gateways(nats_url) as (staying, leaving, leave), anna(staying.url) as agent:
        heard: list[Event] = []
        async with box(leaving.url, staying.url, tools=configs.stdio()) as computer:
            await eventually(lambda: agent.computers() == [NAME])
            agent.on_event(heard.append)
            await in_time(leave(), 30)
            await eventually(lambda: computer.membership.problem is None)
            connection = connection_of(computer)
            assert connection is not None
            assert connection.url == staying.url
            assert (await agent.call_tool(NAME, "echo", {"text": "moved"})).text == "moved"
            assert not [event for event in heard if isinstance(event, ComputerEntered | ComputerLeft)]


async def test_a_stopping_computer_finishes_its_calls_and_starts_none(nats_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with gateway_world(nats_url) as world, anna(world.url) as agent, AsyncExitStack() as opened:
        computer = await opened.enter_async_context(box(world.url, tools=configs.stdio(log=log)))
        running = asyncio.create_task(agent.call_tool(NAME, "sleep", {"seconds": 2, "mark": "runs"}))
        await eventually(lambda: log.exists() and "sleep runs" in log.read_text())
        stopping = asyncio.create_task(opened.aclose())
        await eventually(lambda: "process" in computer.readiness.problems())
        with pytest.raises(Unavailable) as refused:
            await agent.call_tool(NAME, "append", {"mark": "never"})
        assert refused.value.details == {"may_have_run": False}
        assert (await running).text == "slept 2.0"
        await in_time(stopping, 20)
        await eventually(lambda: agent.computers() == [])
        assert "never" not in log.read_text()


async def test_a_refused_token_is_reported_and_a_renewed_one_used(
    nats_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "token"
    file.write_text("wrong\n")
    settings = ComputerSettings(config=Path("unused"), office=OFFICE, name=NAME, token_file=file)
    async with (
        gateway_world(nats_url, settings=LOCKED) as world,
        box(world.url, token=token_of(settings), joined=False) as computer,
    ):
        await eventually(lambda: "token is not accepted" in (computer.membership.problem or ""))
        assert computer.readiness.problems()["office"] == computer.membership.problem
        file.write_text(shared_token(SECRET, sub="holder of box") + "\n")
        await eventually(lambda: computer.membership.problem is None, timeout=30)
        [warning] = [line for line in caplog.messages if "retrying" in line]
        assert warning.endswith("token is not accepted; set it with --token-file or SMCP_TOKEN; retrying")


async def test_a_token_file_without_a_token_is_reported_and_read_again(nats_url: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    settings = ComputerSettings(config=Path("unused"), office=OFFICE, name=NAME, token_file=file)
    async with (
        gateway_world(nats_url, settings=LOCKED) as world,
        box(world.url, token=token_of(settings), joined=False) as computer,
    ):
        await eventually(lambda: f"(SMCP_TOKEN_FILE): {file}: cannot be read" in (computer.membership.problem or ""))
        file.write_bytes(b"\xff\xfe")
        await eventually(
            lambda: f"{file}: cannot be read: it is not UTF-8 text" in (computer.membership.problem or ""), timeout=30
        )
        file.write_text(shared_token(SECRET, sub="holder of box"))
        await eventually(lambda: computer.membership.problem is None, timeout=30)


async def test_an_expired_token_is_renewed_without_a_notification(nats_url: str) -> None:
    asked: list[float] = []

    async def fresh() -> str:
        asked.append(time.time() + (3 if not asked else 600))
        return shared_token(SECRET, sub="holder of box", exp=asked[-1])

    async with gateway_world(nats_url, settings=LOCKED) as world:
        async with anna(world.url, token=shared_token(SECRET)) as agent, box(world.url, token=fresh) as computer:
            await eventually(lambda: agent.computers() == [NAME])
            heard: list[Event] = []
            agent.on_event(heard.append)
            await eventually(lambda: len(asked) == 2, timeout=30)
            await eventually(lambda: computer.membership.problem is None)
            assert agent.computers() == [NAME]
            assert not [event for event in heard if isinstance(event, ComputerEntered | ComputerLeft)]


@asynccontextmanager
async def no_gateway() -> AsyncIterator[tuple[int, list[str]]]:
    """The port of an HTTP server that is not a gateway, and what it was asked for."""
    asked: list[str] = []

    async def refuse(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=404)

    app, port = web.Application(), Ports().take()
    app.router.add_get("/{path:.*}", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield port, asked
    finally:
        await runner.cleanup()


async def test_a_computer_says_that_something_else_than_a_gateway_answers() -> None:
    async with no_gateway() as (port, _), box(f"http://127.0.0.1:{port}", joined=False) as computer:
        why = "(HTTP 404) is not an A2C-SMCP gateway: is --gateway (SMCP_GATEWAY_URL) right?"
        await eventually(lambda: why in (computer.membership.problem or ""))


async def test_a_computer_joins_where_a_gateway_is_missing_behind_its_address_for_a_moment(nats_url: str) -> None:
    async with (
        no_gateway() as (port, asked),
        open_line(port) as line,
        box(line.url, joined=False) as computer,
        gateway_world(nats_url) as world,
    ):
        await eventually(lambda: asked)
        line.port = int(world.url.rpartition(":")[2])
        await asyncio.wait_for(computer.wait_ready(), 60)
