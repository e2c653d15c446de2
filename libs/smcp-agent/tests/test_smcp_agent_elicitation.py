"""`call_tool(on_input=…)` at a Computer that does not keep to the bounds of elicitation."""

from typing import Any

import pytest

from smcp_agent import InputAnswer, InputRequest, SmcpAgent
from smcp_agent.errors import BadReply
from smcp_testing.fake_gateway import fake_gateway
from smcp_testing.waiting import eventually

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
