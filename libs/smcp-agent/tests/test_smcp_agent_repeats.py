"""A call whose connection breaks, or whose answer is lost: it is repeated, or its error says that it may have run."""

import asyncio
from typing import Any

import pytest

from smcp_agent import JoinRefused, SmcpError, may_have_run, rpc
from smcp_agent.errors import Closed, Unavailable
from smcp_testing.fake_gateway import FakeGateway, agent_at, answered_the_second_time, fake_gateway
from smcp_testing.waiting import eventually

JsonObject = dict[str, Any]


def failed_attempts(caplog: pytest.LogCaptureFixture) -> int:
    """How many times an agent looked for a gateway in vain."""
    return sum("not connected: " in record.getMessage() for record in caplog.records)


async def test_a_call_in_flight_is_repeated_after_the_restart_of_the_only_gateway(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", logger="smcp_agent.connecting.link")
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        answered_the_second_time(gateway)
        call = asyncio.create_task(agent.call_tool("red", "slow", timeout=60))
        await eventually(lambda: gateway.seen("client:tool_call"))
        await gateway.stop()
        await eventually(lambda: failed_attempts(caplog) >= 3)
        assert not call.done()
        await gateway.start()
        assert (await call).text == "done"
        first, repeat = gateway.seen("client:tool_call")
        assert "a2c_repeat" not in first
        assert type(repeat["a2c_repeat"]) is int
        assert repeat["timeout"] <= first["timeout"]


async def test_an_outage_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="smcp_agent.connecting.link")
    async with fake_gateway() as gateway, agent_at(gateway):
        await gateway.stop()
        await eventually(lambda: failed_attempts(caplog) >= 3)
        shown = [record for record in caplog.records if record.levelname != "DEBUG"]
        assert sum("not connected: " in record.getMessage() for record in shown) == 1
        await gateway.start()


MAY_HAVE_RUN = {"code": 503, "message": "the connection broke", "details": {"may_have_run": True}}
NOT_THERE = {"code": 503, "message": "the Computer is not available now", "details": {"may_have_run": False}}
CUT_OFF = {"code": 503, "message": "not available now", "details": {"may_have_run": False, "cut_off": True}}
REFUSED = {"code": 503, "message": "not known", "details": {"may_have_run": True, "unknown_repeat": True}}
DIED = {"code": 503, "message": "the Computer died", "details": {"may_have_run": True, "gone": True}}
LEFT = {"code": 404, "message": "there is no such Computer", "details": {"computer": "red"}}


def answers_in_turn(gateway: FakeGateway, *answers: JsonObject) -> None:
    async def answer(data: JsonObject) -> JsonObject:
        return answers[len(gateway.seen("client:tool_call")) - 1]

    gateway.answers["client:tool_call"] = answer


async def test_a_call_is_repeated_after_a_503_that_says_that_it_may_have_run() -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        answers_in_turn(gateway, MAY_HAVE_RUN, MAY_HAVE_RUN, NOT_THERE, CUT_OFF, {"content": [], "isError": False})
        result = await agent.call_tool("red", "pay", req_id="r1", timeout=30)
        assert not result.is_error
        calls = gateway.seen("client:tool_call")
        assert {data["req_id"] for data in calls} == {"r1"}
        assert "a2c_repeat" not in calls[0]
        ages = [data["a2c_repeat"] for data in calls[1:]]
        assert ages == sorted(ages)
        assert ages[0] >= 50, "it waited, and counts from the first try"


async def test_the_age_of_a_repeat_counts_the_time_in_which_the_host_was_suspended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        now = rpc.clock

        async def answer(data: JsonObject) -> JsonObject:
            monkeypatch.setattr(rpc, "clock", lambda: now() + 600)
            return {"content": []} if "a2c_repeat" in data else MAY_HAVE_RUN

        gateway.answers["client:tool_call"] = answer
        await agent.call_tool("red", "pay")
        assert gateway.seen("client:tool_call")[1]["a2c_repeat"] >= 600_000


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([NOT_THERE], "not available now"),
        ([DIED], "the Computer died"),
        ([MAY_HAVE_RUN, REFUSED], "not known"),
        ([MAY_HAVE_RUN, NOT_THERE, LEFT], "the connection broke"),
        ([MAY_HAVE_RUN, {"code": 400, "message": "params: no", "details": {}}], "params: no"),
    ],
)
async def test_a_call_is_not_repeated_after_an_answer_that_is_final(answers: list[JsonObject], message: str) -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        answers_in_turn(gateway, *answers)
        with pytest.raises(SmcpError, match=message) as caught:
            await agent.call_tool("red", "pay", timeout=30)
        assert may_have_run(caught.value) is (answers != [NOT_THERE])
        assert len(gateway.seen("client:tool_call")) == len(answers)


async def test_a_refused_repeat_has_what_happened_to_the_first_try_as_its_cause() -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        answers_in_turn(gateway, MAY_HAVE_RUN, REFUSED)
        with pytest.raises(SmcpError, match="not known") as caught:
            await agent.call_tool("red", "pay", timeout=30)
        assert str(caught.value.__cause__) == "the connection broke"


async def test_the_repeats_of_a_call_end_with_its_own_time() -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:

        async def answer(data: JsonObject) -> JsonObject:
            return MAY_HAVE_RUN

        gateway.answers["client:tool_call"] = answer
        with pytest.raises(Unavailable, match="the connection broke"):
            await agent.call_tool("red", "pay", timeout=2)
        assert 2 <= len(gateway.seen("client:tool_call")) <= 20


async def test_an_error_after_a_refused_rejoin_says_whether_the_call_may_have_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("smcp_agent.connecting.link.REFUSED_PATIENCE_S", 0.2)
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        gateway.answers["client:tool_call"] = gateway.never
        sent = asyncio.create_task(agent.call_tool("red", "pay", timeout=30))
        await eventually(lambda: gateway.seen("client:tool_call"))
        gateway.refusal = "another Agent came"
        gateway.cut()
        with pytest.raises(JoinRefused, match="another Agent came") as caught:
            await sent
        assert may_have_run(caught.value)
        with pytest.raises(JoinRefused) as caught:
            await agent.call_tool("red", "pay", timeout=30)
        assert not may_have_run(caught.value)


async def test_a_repeat_refused_by_a_stopping_gateway_may_have_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smcp_agent.rpc.GRACE_S", 0.0)
    async with fake_gateway() as gateway, agent_at(gateway) as agent:

        async def answer(data: JsonObject) -> Any:
            if not data.get("a2c_repeat"):
                gateway.cut()
                await gateway.never(data)
            return {"code": 503, "message": "connect again", "details": {"may_have_run": False, "moving": True}}

        gateway.answers["client:tool_call"] = answer
        with pytest.raises(Unavailable, match="connect again") as caught:
            await agent.call_tool("red", "pay", timeout=2)
        assert may_have_run(caught.value)
        assert ["a2c_repeat" in data for data in gateway.seen("client:tool_call")] == [False, True]


async def test_a_call_that_was_sent_before_its_agent_was_closed_may_have_run() -> None:
    async with fake_gateway() as gateway:
        async with agent_at(gateway) as agent:
            gateway.answers["client:tool_call"] = gateway.never
            sent = asyncio.create_task(agent.call_tool("red", "pay", timeout=30))
            await eventually(lambda: gateway.seen("client:tool_call"))
            gateway.cut()
        with pytest.raises(Closed) as caught:
            await sent
        assert may_have_run(caught.value)
        with pytest.raises(Closed) as caught:
            await agent.call_tool("red", "pay", timeout=30)
        assert not may_have_run(caught.value)
