"""`call_tool(on_input=…)` where an answer goes wrong: the call that asked does not wait for it any longer."""

from typing import Any

import pytest

from smcp_agent import InputAnswer, InputRequest, SmcpAgent
from smcp_agent.errors import BadReply, Malformed
from smcp_testing.fake_gateway import FakeGateway, fake_gateway
from smcp_testing.waiting import eventually

FORM = {"method": "elicitation/create", "params": {"message": "Which day?", "requestedSchema": {"type": "object"}}}
ASKED = {
    "content": [{"type": "text", "text": "the tool 'book' asks: Which day?"}],
    "isError": True,
    "meta": {"a2c_input_required": {"requests": {"q": FORM}, "state": "s"}},
}
BOOKED = {"content": [{"type": "text", "text": "booked"}], "isError": False}
WRONG = {"code": 400, "message": "input_responses.q: wrong", "details": {"field": "input_responses.q"}}


def agent_at(gateway: FakeGateway) -> SmcpAgent:
    return SmcpAgent(gateway.url, office="office", name="bot")


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


async def test_a_call_that_got_its_answer_is_not_cancelled() -> None:
    async with fake_gateway() as gateway:
        async with agent_at(gateway) as agent:
            eliciting(gateway)
            assert (await agent.call_tool("red", "book", on_input=accept)).text == "booked"
        assert cancelled(gateway) == []


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
