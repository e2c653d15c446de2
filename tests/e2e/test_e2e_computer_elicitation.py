"""Elicitation: what MCP servers of both eras ask during a call reaches the Agent, and its answers reach them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from smcp_agent import InputAnswer, InputRequest, SmcpAgent
from smcp_computer.computer import Computer
from smcp_computer.terminal import Terminal
from smcp_testing.computer_world import native_computer
from smcp_testing.gateway_world import Client, World, connected, gateway_world
from smcp_testing.mcp_servers import configs
from smcp_testing.terminal_user import terminal_user
from smcp_testing.waiting import eventually

ERAS = pytest.mark.parametrize("era", ["2025", "2026"])
BOOK = {"table": 4}


@asynccontextmanager
async def box(
    nats_url: str, era: str, log: Path | None = None, **settings: Any
) -> AsyncIterator[tuple[World, Computer]]:
    """A Computer over two gateways, with a server that elicits."""
    servers = {"eliciting": configs.stdio("eliciting", "--era", era, log=log)}
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(gateway_world(nats_url, gateways=2))
        computer = await stack.enter_async_context(native_computer(world, "office", "box", servers, **settings))
        yield world, computer


def answering(
    answer: Callable[[InputRequest], InputAnswer],
) -> tuple[list[InputRequest], Callable[[InputRequest], Awaitable[InputAnswer]]]:
    heard: list[InputRequest] = []

    async def on_input(request: InputRequest) -> InputAnswer:
        heard.append(request)
        return answer(request)

    return heard, on_input


async def call(client: Client, tool: str = "book", req_id: str = "1", **fields: Any) -> Any:
    data = {"agent": "anna", "req_id": req_id, "computer": "box", "tool_name": tool, "params": BOOK, "timeout": 30}
    return await client.call("client:tool_call", data | fields)


def answer_to(asked: Any, **answer: Any) -> dict[str, Any]:
    """The fields of the request that answers, the same for each elicitation."""
    required = asked["meta"]["a2c_input_required"]
    return {"input_state": required["state"], "input_responses": dict.fromkeys(required["requests"], answer)}


FRIDAY = {"action": "accept", "content": {"day": "friday"}}


@pytest.mark.rule("answers.calls.elicitation.form")
@ERAS
async def test_an_agent_answers_forms_and_urls_and_declines(nats_url: str, era: str) -> None:
    async with (
        box(nats_url, era) as (world, _),
        SmcpAgent([each.url for each in world.gateways], office="office", name="anna") as agent,
    ):
        heard, on_input = answering(lambda request: request.accept({"day": "friday"}))
        result = await agent.call_tool("box", "book", BOOK, on_input=on_input)
        assert result.text == "book {'table': 4}: accept {'day': 'friday'}"
        assert [(each.message, each.tool, each.params, each.url) for each in heard] == [
            ("Which day (1)?", "book", BOOK, None)
        ]
        assert heard[0].schema is not None
        assert heard[0].schema["required"] == ["day"]
        heard, on_input = answering(lambda request: request.accept())
        assert (await agent.call_tool("box", "pay", on_input=on_input)).text == "pay {}: accept"
        assert (heard[0].url, heard[0].schema) == ("https://pay.example/1", None)
        heard, on_input = answering(lambda request: request.decline())
        assert (await agent.call_tool("box", "book", BOOK, on_input=on_input)).text.endswith(": decline")
        heard, on_input = answering(lambda request: request.accept({"day": "monday", "guests": 2}))
        for name, params in (("insist", {"times": 3}), ("crowd", {"at_once": 3})):
            heard.clear()
            result = await agent.call_tool("box", name, params, on_input=on_input)
            assert result.text.count("accept {'day': 'monday', 'guests': 2}") >= 1
            assert not result.is_error
            assert len(heard) == 3


@ERAS
async def test_without_on_input_the_model_reads_what_was_asked_and_the_tool_is_cancelled(
    nats_url: str, era: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with (
        box(nats_url, era, log) as (world, computer),
        SmcpAgent(world.url, office="office", name="anna") as agent,
    ):
        result = await agent.call_tool("box", "book", BOOK)
        assert result.is_error
        assert result.input_required
        assert "Which day (1)? (fields: day, guests)" in result.text
        await eventually(lambda: computer.calls.held()["open_elicitations"] == 0)
        await eventually(lambda: computer.calls.held()["tool_tasks"] == 0)
        if era == "2025":
            await eventually(lambda: log.exists() and "cancelled book" in log.read_text())


@ERAS
async def test_an_error_of_on_input_is_raised_and_ends_the_elicitation(nats_url: str, era: str) -> None:
    async def on_input(request: InputRequest) -> InputAnswer:
        raise LookupError("nobody there")

    async with box(nats_url, era) as (world, computer), SmcpAgent(world.url, office="office", name="anna") as agent:
        with pytest.raises(LookupError, match="nobody there"):
            await agent.call_tool("box", "book", BOOK, on_input=on_input)
        await eventually(lambda: computer.calls.held()["tool_tasks"] == 0)


@pytest.mark.rule("answers.calls.elicitation.state", "answers.calls.elicitation.fit")
@ERAS
async def test_a_state_is_of_one_agent_tool_and_arguments_and_is_used_once(nats_url: str, era: str) -> None:
    async with box(nats_url, era) as (world, _):
        first, second = world.gateways
        async with connected(first.url) as anna:
            await anna.join("agent", "anna", "office")
            asked = await call(anna)
            assert asked["isError"] is True
            good = answer_to(asked, **FRIDAY)
            wrong = [
                ("input_state", {**good, "input_state": "forged"}),
                ("input_state", {**good, "tool_name": "pay"}),
                ("params", {**good, "params": {"table": 5}}),
                ("input_state", {"input_responses": good["input_responses"]}),
                ("input_responses", {"input_state": good["input_state"]}),
                ("input_responses", {**good, "input_responses": ["friday"]}),
                ("input_responses.", {**good, "input_responses": {}}),
                ("input_responses.other", {**good, "input_responses": {**good["input_responses"], "other": FRIDAY}}),
                (".action", answer_to(asked, action="perhaps")),
                (".content.day", answer_to(asked, action="accept", content={"day": "sunday"})),
                (".content", answer_to(asked, action="accept", content={})),
                (".content.guests", answer_to(asked, action="accept", content={"day": "friday", "guests": "two"})),
            ]
            for number, (field, fields) in enumerate(wrong):
                refused = await call(anna, req_id=f"wrong-{number}", **fields)
                assert refused["code"] == 400, refused
                assert field in refused["details"]["field"], refused
            # none of them used it up
            booked = await call(anna, req_id="good", **good)
            assert booked["content"][0]["text"] == "book {'table': 4}: accept {'day': 'friday'}"
            assert await call(anna, req_id="good", **good) == booked
            replayed = await call(anna, req_id="again", **good)
            assert (replayed["code"], replayed["details"]["field"]) == (400, "input_state")
            asked, elsewhere = await call(anna, req_id="of anna"), await call(anna, req_id="elsewhere")
            assert await anna.call("server:leave_office", {"office_id": "office"}) == [True, None]
        async with connected(second.url) as bert:
            assert await bert.join("agent", "bert", "office") == [True, None]
            stolen = await call(bert, agent="bert", req_id="of bert", **answer_to(asked, **FRIDAY))
            assert (stolen["code"], stolen["details"]["field"]) == (400, "input_state")
            assert await bert.call("server:leave_office", {"office_id": "office"}) == [True, None]
        async with connected(second.url) as anna:
            assert await anna.join("agent", "anna", "office") == [True, None]
            booked = await call(anna, req_id="by the other gateway", **answer_to(elsewhere, **FRIDAY))
            assert booked["content"][0]["text"] == "book {'table': 4}: accept {'day': 'friday'}"


@pytest.mark.rule("answers.calls.elicitation.dropped")
@ERAS
async def test_an_elicitation_that_is_cancelled_or_too_old_ends_its_call_at_the_server(
    nats_url: str, era: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with (
        box(nats_url, era, log, question_s=2.0) as (world, computer),
        connected(world.url) as anna,
    ):
        await anna.join("agent", "anna", "office")
        for req_id in ("cancelled", "too old"):
            asked = await call(anna, req_id=req_id)
            if req_id == "cancelled":
                await anna.call("server:tool_call_cancel", {"agent": "anna", "req_id": req_id})
            await eventually(lambda: computer.calls.held()["open_elicitations"] == 0)
            late = await call(anna, req_id=f"answer to {req_id}", **answer_to(asked, **FRIDAY))
            assert (late["code"], late["details"]["field"]) == (400, "input_state")
            await eventually(lambda: computer.calls.held()["tool_tasks"] == 0)
        if era == "2025":
            await eventually(lambda: log.read_text().count("cancelled book") == 2)


@ERAS
async def test_a_call_that_elicits_without_end_or_what_is_deprecated_is_refused_in_words(
    nats_url: str, era: str
) -> None:
    heard, on_input = answering(lambda request: request.accept({"day": "friday"}))
    async with box(nats_url, era) as (world, _), SmcpAgent(world.url, office="office", name="anna") as agent:
        result = await agent.call_tool("box", "insist", {"times": 100}, on_input=on_input)
        assert "sent more than 32 elicitations in one call" in result.text
        assert len(heard) == 32
        result = await agent.call_tool("box", "crowd", {"at_once": 1000}, on_input=on_input)
        assert "sent more than 32 elicitations in one call" in result.text
        result = await agent.call_tool("box", "think", on_input=on_input)
        assert result.is_error or era == "2025"
        assert "not support" in result.text


async def test_elicitation_is_refused_while_different_calls_run_on_one_connection(
    nats_url: str, tmp_path: Path
) -> None:
    asked: list[InputRequest] = []
    resume = asyncio.Event()

    async def on_input(request: InputRequest) -> InputAnswer:
        asked.append(request)
        await resume.wait()
        return request.accept({"day": str(request.params["day"])})

    async with box(nats_url, "2025") as (world, _), SmcpAgent(world.url, office="office", name="anna") as agent:
        calls = [
            asyncio.create_task(agent.call_tool("box", "book", {"day": "friday"}, on_input=on_input)) for _ in range(3)
        ]
        await eventually(lambda: len(asked) == len(calls))
        for tool, params in (("pay", {}), ("book", {"day": "monday"})):
            other = await agent.call_tool("box", tool, params, on_input=on_input)
            assert "MCP 2025 does not say which of the calls asks" in other.text
        resume.set()
        for each in calls:
            assert (await each).text == "book {'day': 'friday'}: accept {'day': 'friday'}"


async def test_the_agents_user_approves_a_call_once_with_its_arguments(nats_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    servers = {"tools": configs.stdio(log=log, tool_meta={"add": {"auto_apply": True}})}
    async with (
        gateway_world(nats_url, gateways=2) as world,
        native_computer(world, "office", "box", servers, confirm="agent") as computer,
    ):
        async with SmcpAgent(world.url, office="office", name="anna") as agent:
            assert (await agent.call_tool("box", "add", {"a": 1, "b": 2})).text == "3"
            unheard = await agent.call_tool("box", "append", {"mark": "unheard"})
            assert unheard.input_required
            assert "wants to run 'append' of 'tools' with {\"mark\": \"unheard\"}" in unheard.text
            heard, on_input = answering(lambda request: request.decline())
            declined = await agent.call_tool("box", "append", {"mark": "declined"}, on_input=on_input)
            assert "was declined by the Agent's user" in declined.text
            assert heard[0].is_approval
            heard, on_input = answering(lambda request: request.accept())
            assert (await agent.call_tool("box", "append", {"mark": "approved"}, on_input=on_input)).text == "approved"
            assert len(heard) == 1
        async with connected(world.gateways[1].url) as anna:
            await anna.join("agent", "anna", "office")
            asked = await call(anna, "append", params={"mark": "raw"})
            yes = answer_to(asked, action="accept")
            other = await call(anna, "append", "other", params={"mark": "other"}, **yes)
            assert (other["code"], other["details"]["field"]) == (400, "params")
            done = await call(anna, "append", "done", params={"mark": "raw"}, **yes)
            assert done["content"][0]["text"] == "raw"
            again = await call(anna, "append", "again", params={"mark": "raw"}, **yes)
            assert (again["code"], again["details"]["field"]) == (400, "input_state")
        assert log.read_text().splitlines() == ["approved", "raw"]
        assert (computer.confirmation.answers["yes"], computer.confirmation.answers["no"]) == (2, 1)


@ERAS
async def test_the_user_of_the_computer_answers_at_its_terminal(nats_url: str, era: str) -> None:
    servers = {"eliciting": configs.stdio("eliciting", "--era", era)}
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(gateway_world(nats_url))
        user = await stack.enter_async_context(terminal_user())
        terminal = Terminal(user.device)
        computer = native_computer(
            world, "office", "box", servers, terminal=terminal, elicit="terminal", confirm="allow"
        )
        await stack.enter_async_context(computer)
        agent = await stack.enter_async_context(SmcpAgent(world.url, office="office", name="anna"))
        calling = asyncio.create_task(agent.call_tool("box", "book", BOOK))
        for seen, typed in (
            ("The tool 'book' of 'eliciting' asks: Which day (1)?", ""),
            ("Answer it?", "y\n"),
            ("day: ", "sunday\n"),
            ("guests: ", "2\n"),
            ("Fill it in again?", "\n"),
            ("day: ", "friday\n"),
            ("guests: ", "2\n"),
        ):
            await user.sees(seen)
            user.types(typed)
        assert (await calling).text == "book {'table': 4}: accept {'day': 'friday', 'guests': 2}"
        calling = asyncio.create_task(agent.call_tool("box", "pay"))
        await user.sees("It wants you to open https://pay.example/1")
        await user.sees("Open it?")
        user.types("n\n")
        assert (await calling).text == "pay {}: decline"


async def test_without_a_terminal_the_tool_says_so(nats_url: str) -> None:
    async with (
        box(nats_url, "2026", elicit="terminal") as (world, _),
        SmcpAgent(world.url, office="office", name="anna") as agent,
    ):
        result = await agent.call_tool("box", "book", BOOK)
        assert result.text == "the tool 'book' asks at this Computer's terminal (SMCP_ELICIT), but there is no terminal"


async def test_a_call_elicits_again_after_an_answer_and_is_cancelled_by_its_latest_request(
    nats_url: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    twice = {"params": {"times": 2}}
    async with box(nats_url, "2025", log) as (world, computer), connected(world.url) as anna:
        await anna.join("agent", "anna", "office")
        first = await call(anna, "insist", "1", **twice)
        second = await call(anna, "insist", "2", **twice, **answer_to(first, **FRIDAY))
        assert second["meta"]["a2c_input_required"]["state"] != first["meta"]["a2c_input_required"]["state"]
        done = await call(anna, "insist", "3", **twice, **answer_to(second, **FRIDAY))
        assert done["content"][0]["text"] == "insist {'times': 2}: accept {'day': 'friday'}"
        first = await call(anna, "insist", "4", **twice)
        second = await call(anna, "insist", "5", **twice, **answer_to(first, **FRIDAY))
        await anna.call("server:tool_call_cancel", {"agent": "anna", "req_id": "5"})
        await eventually(lambda: "cancelled insist" in log.read_text())
        assert computer.calls.held()["open_elicitations"] == 0


async def test_an_answer_for_a_server_that_died_returns_an_error(nats_url: str) -> None:
    async with box(nats_url, "2025") as (world, computer), connected(world.url) as anna:
        await anna.join("agent", "anna", "office")
        asked = await call(anna)
        await call(anna, "die", "2", params={})
        await eventually(lambda: computer.calls.held()["tool_tasks"] == 0)
        told = await call(anna, req_id="3", **answer_to(asked, **FRIDAY))
        assert told["isError"] is True
        assert told["content"][0]["text"] == "MCP server 'eliciting' went away before it answered"
        assert computer.calls.held()["open_elicitations"] == 0


@ERAS
async def test_servers_over_http_elicit(nats_url: str, era: Any) -> None:
    heard, on_input = answering(lambda request: request.accept({"day": "friday"}))
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(configs.http_eliciting(era))
        servers = {"eliciting": configs.http("streamable", server.url)}
        world = await stack.enter_async_context(gateway_world(nats_url))
        computer = await stack.enter_async_context(native_computer(world, "office", "box", servers))
        agent = await stack.enter_async_context(SmcpAgent(world.url, office="office", name="anna"))
        result = await agent.call_tool("box", "book", BOOK, on_input=on_input)
        assert result.text == "book {'table': 4}: accept {'day': 'friday'}"
        result = await agent.call_tool("box", "crowd", {"at_once": 3}, on_input=on_input)
        assert result.text.count("accept") == 3
        assert len(heard) == 4
        assert (await agent.call_tool("box", "book", BOOK)).input_required
        await eventually(lambda: computer.calls.held()["tool_tasks"] == 0)


@pytest.mark.parametrize("agrees", [True, False])
async def test_a_2025_server_that_wants_a_page_to_be_opened_first_is_called_again_when_the_user_agreed(
    nats_url: str, agrees: bool
) -> None:
    heard, on_input = answering(lambda request: request.accept() if agrees else request.decline())
    async with box(nats_url, "2025") as (world, _), SmcpAgent(world.url, office="office", name="anna") as agent:
        result = await agent.call_tool("box", "gate", BOOK, on_input=on_input)
        assert [(each.message, each.url) for each in heard] == [("Sign in", "https://gate.example/1")]
        declined = "the tool 'gate' was not run: its user did not agree to open a page for it"
        assert result.text == ("gate {'table': 4}: open" if agrees else declined)


async def test_an_unanswered_elicitation_keeps_other_calls_from_eliciting(nats_url: str) -> None:
    _, on_input = answering(lambda request: request.accept({"day": "friday"}))
    async with box(nats_url, "2025") as (world, computer), SmcpAgent(world.url, office="office", name="anna") as agent:
        asked = await agent.call_once("box", "book", BOOK)
        other = await agent.call_tool("box", "book", {"table": 5}, on_input=on_input)
        assert "elicitation refused: another call of this MCP server runs or waits" in other.text
        agent.cancel_call(asked.req_id)
        await eventually(lambda: computer.calls.held()["open_elicitations"] == 0)
        await eventually(lambda: computer.calls.held()["tool_tasks"] == 0)
        other = await agent.call_tool("box", "book", {"table": 5}, on_input=on_input)
        assert other.text == "book {'table': 5}: accept {'day': 'friday'}"
