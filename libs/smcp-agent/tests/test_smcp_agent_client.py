import asyncio
from typing import Any, cast

import pytest

from smcp_agent import (
    Closed,
    ComputerEntered,
    ComputerLeft,
    ConfigChanged,
    Event,
    JoinRefused,
    NoAnswer,
    NotFound,
    Notified,
    SmcpAgent,
    TimedOut,
    ToolsChanged,
    may_have_run,
)
from smcp_agent.errors import BadReply, Malformed, Unavailable
from smcp_testing.fake_gateway import agent_at, fake_gateway, tool
from smcp_testing.waiting import Stopwatch, eventually

JsonObject = dict[str, Any]


def pending(agent: SmcpAgent) -> int:
    """What waits for an ack, in the SDK's table and in python-socketio's."""
    connection = agent._link.connection
    assert connection is not None
    return len(connection._waiting)


@pytest.mark.rule("events.flow.call.1", "computer.call.1")
async def test_a_call_has_the_form_of_the_protocol_and_a_typed_result() -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        result = await agent.call_tool("red", "echo", {"x": "你好"}, timeout=7, req_id="r1")
        assert gateway.seen("client:tool_call") == [
            {
                "agent": "bot",
                "req_id": "r1",
                "computer": "red",
                "tool_name": "echo",
                "params": {"x": "你好"},
                "timeout": 7,
            }
        ]
        assert result.text == "echo"
        assert result.req_id == "r1"
        assert len((await agent.call_tool("red", "echo")).trace_id) == 32


async def test_a_call_without_a_req_id_gets_one_that_is_its_trace_id() -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        first, second = await agent.call_tool("red", "echo"), await agent.call_tool("red", "echo")
        assert first.trace_id == first.req_id
        assert first.req_id != second.req_id


async def test_a_flat_error_is_raised_as_its_class_and_a_failing_tool_is_a_result() -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        replies: list[JsonObject] = [
            {"code": 404, "message": "no such Computer", "details": {"computer": "red"}},
            {"code": 503, "message": "not available now", "details": {"may_have_run": False}},
            {"content": [{"type": "text", "text": "boom"}], "isError": True},
        ]

        async def answer(data: JsonObject) -> Any:
            return replies.pop(0)

        gateway.answers["client:tool_call"] = answer
        with pytest.raises(NotFound, match="no such Computer"):
            await agent.call_tool("red", "echo")
        with pytest.raises(Unavailable) as caught:
            await agent.call_tool("red", "echo")
        assert caught.value.details == {"may_have_run": False}
        result = await agent.call_tool("red", "echo")
        assert result.is_error
        assert result.text == "boom"
        assert len(gateway.seen("client:tool_call")) == 3, "an answer that is final is not asked for again"


async def test_a_malformed_reply_is_a_bad_reply() -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:

        async def answer(data: JsonObject) -> Any:
            return "what?"

        gateway.answers["client:tool_call"] = answer
        with pytest.raises(BadReply):
            await agent.call_tool("red", "echo")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"computer": ""}, "computer"),
        ({"computer": "x" * 10_000}, "computer"),
        ({"tool": ""}, "tool_name"),
        ({"timeout": None}, "timeout"),
        ({"params": ["x"]}, "params"),
        ({"params": "{}"}, "params"),
        ({"req_id": ""}, "req_id"),
    ],
)
async def test_an_invalid_request_is_refused_locally_naming_the_field(arguments: JsonObject, field: str) -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        with pytest.raises(Malformed) as caught:
            await agent.call_tool(**{"computer": "red", "tool": "echo", **arguments})
        assert caught.value.details["field"] == field
        assert gateway.seen("client:tool_call") == []


async def test_a_timeout_has_whole_seconds_on_the_wire_and_a_wrong_one_is_refused() -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        for timeout, sent in ((7.0, 7), (0.5, 1), (3599.5, 3600), (3, 3)):
            await agent.call_tool("red", "echo", timeout=timeout)
            request = gateway.seen("client:tool_call")[-1]
            assert (request["timeout"], type(request["timeout"])) == (sent, int)
        for wrong in (0, -1.5, 3600.1, float("nan"), float("inf"), True, "5"):
            with pytest.raises(Malformed, match=r"^timeout: seconds, more than 0 and at most 3600$"):
                await agent.call_tool("red", "echo", timeout=wrong)  # type: ignore[arg-type]


async def test_a_call_is_cancelled_at_a_time_between_two_seconds() -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        gateway.answers["client:tool_call"] = gateway.never
        with pytest.raises(TimedOut, match=r"in time") as caught:
            await agent.call_tool("red", "echo", timeout=0.3)
        assert may_have_run(caught.value)
        await eventually(lambda: gateway.seen("server:tool_call_cancel"))


async def test_an_agent_is_opened_and_closed_without_a_block() -> None:
    async with fake_gateway() as gateway:
        agent = await agent_at(gateway).open()
        assert (await agent.call_tool("red", "echo")).text == "echo"
        with pytest.raises(Malformed, match="computer"):
            await agent.tools(cast("str", 5))
        with pytest.raises(Closed, match="already opened"):
            await agent.open()
        await agent.close()
        await agent.close()
        assert len(gateway.seen("server:leave_office")) == 1
        with pytest.raises(Closed, match=r"`open\(\)`"):
            await agent.call_tool("red", "echo")
        gateway.refusal = "full"
        refused = agent_at(gateway)
        with pytest.raises(JoinRefused):
            await refused.open()
        await refused.close()


async def test_a_close_that_is_cancelled_while_a_cancel_waits_still_leaves_and_disconnects() -> None:
    async with fake_gateway() as gateway:
        gateway.answers["server:tool_call_cancel"] = gateway.never
        agent = await agent_at(gateway).open()
        agent.cancel_call("r1")
        await eventually(lambda: gateway.seen("server:tool_call_cancel"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await agent.close()
        assert not agent.connected
        assert gateway.seen("server:leave_office")
        await eventually(lambda: gateway.sessions == [])


async def test_parameters_that_are_no_json_leave_the_connection_alone() -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        stream = agent.events()
        for bad in (float("nan"), b"bytes", "\ud800"):
            with pytest.raises(Malformed):
                await agent.call_tool("red", "echo", {"x": bad})
        assert pending(agent) == 0
        assert (await agent.call_tool("red", "echo")).text == "echo"
        assert stream.waiting == 0


async def test_a_reply_of_20_mb_arrives_and_max_message_is_sent_at_connect() -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:

        async def answer(data: JsonObject) -> Any:
            return {"content": [{"type": "text", "text": "x" * 20_000_000}]}

        gateway.answers["client:tool_call"] = answer
        result = await agent.call_tool("red", "big")
        assert len(result.text) == 20_000_000
        assert gateway.auths == [{"max_message": 36 * 1024 * 1024, "flat_errors": True}]


async def test_max_values_is_sent_at_connect() -> None:
    async with fake_gateway() as gateway, agent_at(gateway, max_values=1000, max_message=2000):
        assert gateway.auths == [{"max_message": 2000, "max_values": 1000, "flat_errors": True}]


@pytest.mark.rule("answers.calls.timeout.sdk", "answers.calls.timeout.all-cancel")
async def test_after_the_time_out_the_sdk_gives_up_cancels_and_keeps_nothing() -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        gateway.answers["client:tool_call"] = gateway.never
        watch = Stopwatch()
        calls = [agent.call_tool("red", "slow", timeout=1, req_id=f"r{number}") for number in range(50)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(outcome, NoAnswer) for outcome in outcomes)
        assert watch.took > 2.9
        assert watch.undisturbed < 10
        await eventually(lambda: len(gateway.seen("server:tool_call_cancel")) == 50)
        assert {"agent": "bot", "req_id": "r7"} in gateway.seen("server:tool_call_cancel")
        await eventually(lambda: pending(agent) == 0)


async def test_cancelling_the_awaiting_task_cancels_the_call() -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        gateway.answers["client:tool_call"] = gateway.never
        call = asyncio.create_task(agent.call_tool("red", "slow", req_id="r1"))
        await eventually(lambda: gateway.seen("client:tool_call"))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await eventually(lambda: gateway.seen("server:tool_call_cancel") == [{"agent": "bot", "req_id": "r1"}])
        await eventually(lambda: pending(agent) == 0)


async def test_a_cancel_that_is_refused_for_a_passing_reason_is_sent_again() -> None:
    refusals: list[Any] = [
        {"code": 503, "message": "no registry answers", "details": {}},
        {"code": 429, "message": "this office has reached its quota", "details": {"quota": "calls_per_s"}},
        {"code": 403, "message": "not allowed", "details": {}},
    ]

    async def refuse(_: Any) -> Any:
        return refusals.pop(0)

    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        gateway.answers |= {"client:tool_call": gateway.never, "server:tool_call_cancel": refuse}
        call = asyncio.create_task(agent.call_tool("red", "slow", req_id="r1"))
        await eventually(lambda: gateway.seen("client:tool_call"))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await eventually(lambda: gateway.seen("server:tool_call_cancel") == 3 * [{"agent": "bot", "req_id": "r1"}])
        await eventually(lambda: pending(agent) == 0)


async def test_a_cancel_arrives_also_when_the_agent_is_closed_right_after_it() -> None:
    async with fake_gateway() as gateway:
        gateway.answers["client:tool_call"] = gateway.never

        async def use() -> None:
            async with agent_at(gateway) as agent:
                await agent.call_tool("red", "slow", req_id="r1")

        using = asyncio.create_task(use())
        await eventually(lambda: gateway.seen("client:tool_call"))
        using.cancel()
        with pytest.raises(asyncio.CancelledError):
            await using
        assert gateway.seen("server:tool_call_cancel") == [{"agent": "bot", "req_id": "r1"}]


@pytest.mark.rule(
    "events.{classes.notify.optional,notify.enter_office.advice,notify.update_config.advice}",
    "events.{notify.update_tool_list.advice,notify.update_desktop.heard,flow.discovery.3}",
    "events.{flow.discovery.7,flow.config.2,flow.config.3,flow.desktop.4,should.agent.enter}",
    "events.{should.agent.leave,should.agent.update_config,should.agent.update_tool_list}",
)
async def test_notifications_become_events_and_keep_the_tools_up_to_date() -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        stream = agent.events()
        heard: list[Event] = []
        stop = agent.on_event(heard.append)

        await gateway.enter("red", [tool("echo")])
        assert await anext(stream) == ComputerEntered("red")
        changed = await anext(stream)
        assert isinstance(changed, ToolsChanged)
        assert [each.name for each in changed.tools] == ["echo"]
        assert await agent.tools("red") == changed.tools

        gateway.computers["red"] = [tool("echo"), tool("stop")]
        await gateway.notify("notify:update_tool_list", computer="red")
        changed = await anext(stream)
        assert isinstance(changed, ToolsChanged)
        assert [each.name for each in changed.tools] == ["echo", "stop"]

        gateway.computers["red"] = []
        await gateway.notify("notify:update_config", computer="red")
        assert await anext(stream) == ConfigChanged("red")
        assert await anext(stream) == ToolsChanged("red", ())

        await gateway.notify("notify:update_weather", computer="red")
        assert await anext(stream) == Notified("notify:update_weather", {"computer": "red"})

        stop()
        await gateway.leave("red")
        assert await anext(stream) == ComputerLeft("red")
        assert agent.computers() == []
        with pytest.raises(NotFound):
            await agent.tools("red")
        assert heard[0] == ComputerEntered("red")
        assert ComputerLeft("red") not in heard


async def test_events_end_when_the_agent_is_closed() -> None:
    async with fake_gateway() as gateway:
        async with agent_at(gateway) as agent:
            stream = agent.events()
            await gateway.enter("red", [])
            await eventually(lambda: agent.computers() == ["red"])
        assert ComputerEntered("red") in [event async for event in stream]
        assert [event async for event in agent.events()] == []


@pytest.mark.rule("events.get_config.whole", "events.notify.update_config.advice")
async def test_room_configuration_and_tools_can_be_requested() -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("echo")]
        async with agent_at(gateway) as agent:
            room = {session.name: session.role for session in await agent.list_room()}
            assert room == {"red": "computer", "bot": "agent"}
            assert (await agent.get_config("red")).servers == {}
            gateway.computers["red"] = [tool("stop")]
            assert [each.name for each in await agent.get_tools("red")] == ["stop"]
            with pytest.raises(NotFound):
                await agent.get_tools("blue")
            with pytest.raises(NotFound):
                await agent.tools("blue")


async def test_tools_that_were_there_before_are_no_change() -> None:
    async with fake_gateway() as gateway:
        gateway.computers = {"red": [tool("echo")], "blue": [tool("echo")]}
        async with agent_at(gateway) as agent:
            stream = agent.events()
            assert [await agent.tools(name) for name in ("red", "blue")] == [await agent.get_tools("red")] * 2
            await gateway.notify("notify:mark")
            assert await anext(stream) == Notified("notify:mark", {})


async def test_who_listened_before_the_agent_was_opened_hears_of_each_computer_and_its_tools() -> None:
    async with fake_gateway() as gateway:
        gateway.computers = {"red": [tool("echo")]}
        agent = agent_at(gateway)
        stream = agent.events()
        async with agent:
            assert await anext(stream) == ComputerEntered("red")
            assert isinstance(await anext(stream), ToolsChanged)
