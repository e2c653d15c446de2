"""Elicitation through an office to MCP clients of both eras, by MCP servers of both eras behind a real Computer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import mcp_types as types
import pytest
from mcp.client.session import ElicitationFnT

from smcp_computer.computer import Computer
from smcp_testing.bridged import ERAS, Bridged, bridged
from smcp_testing.computer_world import native_computer
from smcp_testing.gateway_world import gateway_world
from smcp_testing.mcp_servers import configs
from smcp_testing.mcp_service import mcp_service, office_client
from smcp_testing.waiting import eventually, within

SERVERS = pytest.mark.parametrize("server", ["2025", "2026"])
HEADERS = {"Accept": "application/json, text/event-stream"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
BOOK = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "book", "arguments": {"table": 4}}}
FRIDAY = types.ElicitResult(action="accept", content={"day": "friday"})


@asynccontextmanager
async def box(
    nats_url: str, server: str, client: str, on_input: ElicitationFnT | None, log: Path | None = None, **settings: Any
) -> AsyncIterator[tuple[Bridged, Computer]]:
    """An MCP client of an office with one Computer, whose MCP server elicits."""
    servers = {"eliciting": configs.stdio("eliciting", "--era", server, log=log)}
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(gateway_world(nats_url))
        computer = await stack.enter_async_context(native_computer(world, "office", "box", servers, **settings))
        bridge = await stack.enter_async_context(bridged(world.url, client, on_input))
        yield bridge, computer


class User:
    """Answers what an MCP client asks, with the answers in turn; the last one stands for all others."""

    def __init__(self, *answers: types.ElicitResult) -> None:
        self.answers = list(answers)
        self.asked: list[types.ElicitRequestParams] = []

    async def __call__(self, context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        self.asked.append(params)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@SERVERS
@ERAS
async def test_a_client_answers_forms_and_pages_and_declines(nats_url: str, server: str, era: str) -> None:
    user = User(FRIDAY)
    async with box(nats_url, server, era, user) as (bridge, computer):
        assert await bridge.text("book", table=4) == "book {'table': 4}: accept {'day': 'friday'}"
        (form,) = user.asked
        assert isinstance(form, types.ElicitRequestFormParams)
        assert (form.message, form.requested_schema["required"]) == ("Which day (1)?", ["day"])
        assert (await bridge.text("insist", times=3)).endswith("accept {'day': 'friday'}")
        assert (await bridge.text("crowd", at_once=3)).count("accept") == 3
        assert len(user.asked) == 7
        user.answers = [types.ElicitResult(action="accept")]
        assert await bridge.text("pay") == "pay {}: accept"
        page = user.asked[-1]
        assert isinstance(page, types.ElicitRequestURLParams)
        assert page.url == "https://pay.example/1"
        user.answers = [types.ElicitResult(action="decline")]
        assert await bridge.text("book") == "book {}: decline"
        await eventually(lambda: computer.calls.held()["open_elicitations"] == 0)


@ERAS
async def test_an_approval_is_asked_of_the_clients_user(nats_url: str, era: str) -> None:
    user = User(types.ElicitResult(action="accept", content={}), types.ElicitResult(action="decline"))
    async with box(nats_url, "2025", era, user, confirm="agent") as (bridge, _):
        user.answers = [types.ElicitResult(action="accept", content={}), FRIDAY, types.ElicitResult(action="decline")]
        assert await bridge.text("book") == "book {}: accept {'day': 'friday'}"
        assert user.asked[0].message.startswith("The Agent 'bridge' wants to run 'book' of 'eliciting' with {}")
        assert await bridge.text("book") == "!the tool 'book' was declined by the Agent's user"


@SERVERS
@ERAS
async def test_a_client_that_cannot_ask_gets_an_error_that_a_model_can_read_and_the_tool_is_cancelled(
    nats_url: str, server: str, era: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with box(nats_url, server, era, None, log) as (bridge, computer):
        said = await bridge.text("book")
        assert said.startswith(
            "!the tool asks its user: Which day (1)?\nThe call was cancelled: this MCP client cannot ask"
        )
        await eventually(lambda: computer.calls.held()["open_elicitations"] == 0)
        await eventually(lambda: computer.calls.held()["tool_tasks"] == 0)
        if server == "2025":
            await eventually(lambda: log.exists() and "cancelled book" in log.read_text())


@SERVERS
async def test_an_answer_that_does_not_fit_ends_the_call_of_a_handshake_client(nats_url: str, server: str) -> None:
    user = User(types.ElicitResult(action="accept", content={"day": "sunday"}))
    async with box(nats_url, server, "legacy", user) as (bridge, computer):
        said = await bridge.text("book")
        assert said.startswith("!Error 400: input_responses.")
        assert 'day: the value is not one of "monday" or "friday"' in said
        await eventually(lambda: computer.calls.held()["open_elicitations"] == 0)


@SERVERS
async def test_a_handshake_client_whose_user_does_not_answer_gets_an_error_when_the_computer_stops_waiting(
    nats_url: str, server: str
) -> None:
    withdrawn = asyncio.Event()

    async def think(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        try:
            await asyncio.Event().wait()
        finally:
            withdrawn.set()
        return FRIDAY

    async with box(nats_url, server, "legacy", think, question_s=2.0) as (bridge, computer), within(30):
        said = await bridge.text("book")
        assert said.startswith("!the tool 'book' needs an answer")
        await withdrawn.wait()
        await eventually(lambda: computer.calls.held()["open_elicitations"] == 0)
        await eventually(lambda: computer.calls.held()["tool_tasks"] == 0)


@SERVERS
@ERAS
async def test_the_cancel_of_a_call_ends_its_question(nats_url: str, server: str, era: str) -> None:
    asked, withdrawn = asyncio.Event(), asyncio.Event()

    async def think(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            withdrawn.set()
        return FRIDAY

    async with box(nats_url, server, era, think, question_s=5.0) as (bridge, computer):
        calling = asyncio.create_task(bridge.client.call_tool("book", {}))
        async with asyncio.timeout(30):
            await asked.wait()
            calling.cancel()
            await withdrawn.wait()
        await eventually(lambda: computer.calls.held()["open_elicitations"] == 0)
        await eventually(lambda: computer.calls.held()["tool_tasks"] == 0)


async def test_a_handshake_client_that_vanishes_with_an_open_elicitation_blocks_nobody_elses(
    nats_url: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    servers = {"eliciting": configs.stdio("eliciting", "--era", "2025", log=log)}
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(gateway_world(nats_url))
        computer = await stack.enter_async_context(native_computer(world, "office", "box", servers))
        service = await stack.enter_async_context(mcp_service(world.url))
        client = await stack.enter_async_context(office_client(service.office(), "legacy", User(FRIDAY)))
        async with aiohttp.ClientSession(headers=HEADERS) as http:
            async with http.post(service.office(), json=INITIALIZE) as answer:
                session = {"Mcp-Session-Id": answer.headers["Mcp-Session-Id"]}
            async with http.post(service.office(), json=INITIALIZED, headers=session) as answer:
                assert answer.status == 202
            async with http.post(service.office(), json=BOOK, headers=session) as answer, asyncio.timeout(30):
                async for line in answer.content:
                    if b"elicitation/create" in line:
                        break
                other = await client.text("book", table=5)
                assert "another call of this MCP server runs or waits for its user's answer" in other
                answer.close()
        await eventually(lambda: log.exists() and "cancelled book" in log.read_text())
        await eventually(lambda: computer.calls.held()["tool_tasks"] == 0)
        assert await client.text("book", table=5) == "book {'table': 5}: accept {'day': 'friday'}"


async def test_a_handshake_client_over_http_whose_user_does_not_answer_gets_an_error_when_the_computer_stops_waiting(
    nats_url: str,
) -> None:
    async def think(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        await asyncio.Event().wait()
        return FRIDAY

    servers = {"eliciting": configs.stdio("eliciting", "--era", "2025")}
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(gateway_world(nats_url))
        computer = await stack.enter_async_context(native_computer(world, "office", "box", servers, question_s=2.0))
        service = await stack.enter_async_context(mcp_service(world.url))
        async with office_client(service.office(), "legacy", think) as client, within(30):
            assert (await client.text("book")).startswith("!the tool 'book' needs an answer")
        await eventually(lambda: computer.calls.held()["open_elicitations"] == 0)
