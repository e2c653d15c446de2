"""`call_tool(on_input=…)` where an answer goes wrong: the call that asked does not wait for it any longer."""

import asyncio
from typing import Any

import pytest

from smcp_agent import InputAnswer, InputRequest, SmcpAgent
from smcp_agent.errors import BadReply, Malformed
from smcp_testing.fake_gateway import FakeGateway, agent_at, fake_gateway, tool
from smcp_testing.waiting import eventually, within

FORM = {"method": "elicitation/create", "params": {"message": "Which day?", "requestedSchema": {"type": "object"}}}
ASKED = {
    "content": [{"type": "text", "text": "the tool 'book' asks: Which day?"}],
    "isError": True,
    "meta": {"a2c_input_required": {"requests": {"q": FORM}, "state": "s"}},
}
BOOKED = {"content": [{"type": "text", "text": "booked"}], "isError": False}
WRONG = {"code": 400, "message": "input_responses.q: wrong", "details": {"field": "input_responses.q"}}


def eliciting(gateway: FakeGateway, answered: dict[str, Any] = BOOKED) -> None:
    async def answer(data: dict[str, Any]) -> Any:
        return answered if "input_state" in data else ASKED

    gateway.answers["client:tool_call"] = answer


async def accept(request: InputRequest) -> InputAnswer:
    return request.accept({"day": "friday"})


def cancelled(gateway: FakeGateway) -> list[str]:
    return [each["req_id"] for each in gateway.seen("server:tool_call_cancel")]


async def test_an_answer_that_the_computer_refuses_cancels_the_call_that_asked() -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        eliciting(gateway, WRONG)
        with pytest.raises(Malformed, match=r"input_responses\.q"):
            await agent.call_tool("red", "book", on_input=accept, req_id="first")
        await eventually(lambda: cancelled(gateway) == ["first"])


class Sleepy:
    """A user who does not answer."""

    def __init__(self) -> None:
        self.stopped = asyncio.Event()

    async def __call__(self, request: InputRequest) -> InputAnswer:
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped.set()
        return request.accept()


def expiring(gateway: FakeGateway, expires_in_s: object) -> None:
    async def answer(data: dict[str, Any]) -> Any:
        required = {"requests": {"q": FORM}, "state": "s", "expires_in_s": expires_in_s}
        return {**ASKED, "meta": {"a2c_input_required": required}}

    gateway.answers["client:tool_call"] = answer


async def test_a_call_waits_for_its_user_only_as_long_as_the_computer() -> None:
    user = Sleepy()
    async with fake_gateway() as gateway, agent_at(gateway) as agent, within(30):
        expiring(gateway, 0.1)
        result = await agent.call_tool("red", "book", on_input=user, req_id="first")
        assert (result.is_error, result.text.splitlines()[-1]) == (
            True,
            "Nobody answered, and the call was cancelled.",
        )
        await user.stopped.wait()
        await eventually(lambda: cancelled(gateway) == ["first"])


@pytest.mark.parametrize("wrong", [0, -1, 3601, "60", None])
async def test_a_time_for_answers_that_cannot_be_is_a_bad_reply(wrong: object) -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        expiring(gateway, wrong)
        with pytest.raises(BadReply, match="expires_in_s"):
            await agent.call_tool("red", "book", on_input=accept)


async def test_a_program_can_answer_in_a_later_request_or_cancel_the_call() -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        eliciting(gateway)
        asked = await agent.call_once("red", "book", {"table": 4}, req_id="first")
        assert (asked.input_required, asked.input_requests, asked.input_state) == (True, {"q": FORM}, "s")
        assert cancelled(gateway) == []
        answers = {"q": {"action": "accept", "content": {"day": "friday"}}}
        done = await agent.call_once("red", "book", {"table": 4}, input_state="s", input_responses=answers)
        assert done.text == "booked"
        sent = gateway.seen("client:tool_call")[-1]
        assert (sent["input_state"], sent["input_responses"], sent["params"]) == ("s", answers, {"table": 4})
        agent.cancel_call(asked.req_id)
        await eventually(lambda: cancelled(gateway) == ["first"])


async def test_a_call_that_got_its_answer_is_not_cancelled() -> None:
    async with fake_gateway() as gateway:
        async with agent_at(gateway) as agent:
            eliciting(gateway)
            assert (await agent.call_tool("red", "book", on_input=accept)).text == "booked"
        assert cancelled(gateway) == []


async def test_an_agent_answers_all_its_calls_with_its_own_on_input() -> None:
    async with (
        fake_gateway() as gateway,
        SmcpAgent(gateway.url, office="office", name="bot", on_input=accept) as agent,
    ):
        eliciting(gateway)
        assert (await agent.call_tool("red", "book")).text == "booked"


async def test_the_loops_for_models_answer_with_on_input() -> None:
    chat = {"id": "1", "type": "function", "function": {"name": "book", "arguments": "{}"}}
    use = {"id": "1", "type": "tool_use", "name": "book", "input": {}}
    async with fake_gateway() as gateway:
        gateway.computers = {"red": [tool("book")]}
        async with agent_at(gateway) as agent:
            eliciting(gateway)
            assert ((await agent.run_openai_tool_calls([chat], on_input=accept))[0])["content"] == "booked"
            assert [each["content"] for each in await agent.run_openai_tool_calls([chat], on_input=accept)] == [
                "booked"
            ]
            booked = [{"type": "text", "text": "booked"}]
            assert ((await agent.run_anthropic_tool_uses([use], on_input=accept))[0])["content"] == booked
            assert [each["content"] for each in await agent.run_anthropic_tool_uses([use], on_input=accept)] == [booked]


async def test_what_on_input_raises_ends_the_other_calls_of_an_answer() -> None:
    async def nobody(request: InputRequest) -> InputAnswer:
        raise LookupError("nobody there")

    async def answer(data: dict[str, Any]) -> Any:
        return ASKED if data["tool_name"] == "book" else await gateway.never(data)

    calls = [
        {"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}} for name in ("sleep", "book")
    ]
    async with fake_gateway() as gateway:
        gateway.computers = {"red": [tool("book"), tool("sleep")]}
        gateway.answers["client:tool_call"] = answer
        async with agent_at(gateway) as agent:
            with pytest.raises(LookupError, match="nobody there"):
                await agent.run_openai_tool_calls(calls, on_input=nobody)
            await eventually(lambda: len(cancelled(gateway)) == 2)


async def test_what_on_input_raises_is_raised_and_cancels_the_call() -> None:
    def plain(request: InputRequest) -> Any:
        return request.decline()

    async def text(request: InputRequest) -> Any:
        return "friday"

    async def slow(request: InputRequest) -> Any:
        raise TimeoutError("its own")

    wrong: list[tuple[Any, type[Exception]]] = [(plain, TypeError), (text, AttributeError), (slow, TimeoutError)]
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        eliciting(gateway)
        for on_input, kind in wrong:
            with pytest.raises(kind):
                await agent.call_tool("red", "book", on_input=on_input)
        await eventually(lambda: len(cancelled(gateway)) == len(wrong))


async def test_without_on_input_the_result_says_what_was_asked_and_that_the_call_was_cancelled() -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        eliciting(gateway)
        result = await agent.call_tool("red", "book", req_id="first")
        assert (result.is_error, result.input_required) == (True, True)
        assert result.text.splitlines() == [
            "the tool 'book' asks: Which day?",
            "Nobody answered, and the call was cancelled.",
        ]
        assert [each["text"] for each in result.raw["content"]] == result.text.splitlines(), "for the MCP bridge"
        await eventually(lambda: cancelled(gateway) == ["first"])


MOST = 33
"""A Computer's approval request, and 32 elicitations."""


@pytest.mark.parametrize("times", [MOST, MOST + 1])
async def test_a_computer_that_elicits_without_end_is_refused_and_its_call_cancelled(times: int) -> None:
    heard: list[InputRequest] = []

    async def on_input(request: InputRequest) -> InputAnswer:
        heard.append(request)
        return request.accept()

    async with fake_gateway() as gateway, SmcpAgent(gateway.url, office="office", name="bot") as agent:

        async def answer(data: dict[str, Any]) -> Any:
            sent = len(gateway.seen("client:tool_call"))
            if sent > times:
                return {"content": [{"type": "text", "text": "done"}], "isError": False}
            requests = {"q": {"method": "elicitation/create", "params": {"message": "Sure?"}}}
            asked = {"requests": requests, "state": str(sent)}
            return {"content": [], "isError": True, "meta": {"a2c_input_required": asked}}

        gateway.answers["client:tool_call"] = answer
        if times == MOST:
            assert (await agent.call_tool("red", "dig", on_input=on_input)).text == "done"
            assert gateway.seen("server:tool_call_cancel") == []
        else:
            with pytest.raises(BadReply, match=r"the Computer 'red' elicited more than 33 times in a call of 'dig'"):
                await agent.call_tool("red", "dig", on_input=on_input)
            await eventually(lambda: len(gateway.seen("server:tool_call_cancel")) == 1)
            (cancelled,) = gateway.seen("server:tool_call_cancel")
            assert cancelled["req_id"] == gateway.seen("client:tool_call")[-1]["req_id"]
        assert len(heard) == MOST
