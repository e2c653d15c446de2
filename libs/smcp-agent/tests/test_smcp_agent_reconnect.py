import asyncio
from typing import Any

import pytest
from aiohttp import WSCloseCode

from smcp_agent import (
    ComputerEntered,
    ComputerLeft,
    ConnectionLost,
    Disconnected,
    JoinRefused,
    NotFound,
    Reconnected,
    RejoinRefused,
    SmcpAgent,
    SmcpError,
    ToolsChanged,
    may_have_run,
)
from smcp_agent.errors import NotInOffice, Unavailable
from smcp_proto.errors import NOTHING_BEGUN
from smcp_testing.fake_gateway import agent_at, answered_the_second_time, fake_gateway, tool
from smcp_testing.waiting import eventually

JsonObject = dict[str, Any]


@pytest.mark.rule("answers.rooms.repair")
async def test_after_a_lost_connection_the_agent_rejoins_and_publishes_missed_changes() -> None:
    async with fake_gateway() as gateway:
        gateway.computers = {"red": [tool("echo")], "blue": []}
        async with agent_at(gateway) as agent:
            await agent.tools("red")
            await agent.tools("blue")
            stream = agent.events()
            gateway.computers = {"red": [tool("stop")], "green": []}
            gateway.cut()
            events = [await anext(stream) for _ in range(6)]
            assert isinstance(events[0], Disconnected)
            assert events[1:4] == [ComputerLeft("blue"), ComputerEntered("green"), Reconnected(gateway.url)]
            assert {event.computer for event in events[4:] if isinstance(event, ToolsChanged)} == {"red", "green"}
            assert agent.computers() == ["green", "red"]
            assert [each.name for each in await agent.tools("red")] == ["stop"]


@pytest.mark.rule("answers.rooms.sdk-returns")
async def test_an_agent_sent_away_returns_to_its_only_url() -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        stream = agent.events()
        await gateway.send_away()
        assert isinstance(await anext(stream), Disconnected)
        assert await anext(stream) == Reconnected(gateway.url)
        assert len(gateway.seen("server:join_office")) == 2


@pytest.mark.rule("computer.reconnect.forever")
async def test_a_gateway_that_is_away_for_a_while_is_waited_for() -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        stream = agent.events()
        await gateway.stop()
        assert isinstance(await anext(stream), Disconnected)
        call = asyncio.create_task(agent.call_tool("red", "echo"))
        await gateway.start()
        assert await anext(stream) == Reconnected(gateway.url)
        assert (await call).text == "echo"
        (data,) = gateway.seen("client:tool_call")
        assert "a2c_repeat" not in data, "it was never sent before"


async def test_an_agent_with_several_urls_fails_over_to_another() -> None:
    async with fake_gateway() as first, fake_gateway() as second:
        async with SmcpAgent([first.url, second.url], office="office", name="bot") as agent:
            stream = agent.events()
            await first.stop()
            assert isinstance(await anext(stream), Disconnected)
            assert await anext(stream) == Reconnected(second.url)
            await first.start()


async def test_an_agent_sent_away_by_a_running_gateway_tries_another_url_first() -> None:
    async with fake_gateway() as first, fake_gateway() as second:
        async with SmcpAgent([first.url, second.url], office="office", name="bot") as agent:
            stream = agent.events()
            first.close_sockets(NOTHING_BEGUN)
            assert isinstance(await anext(stream), Disconnected)
            assert await anext(stream) == Reconnected(second.url)
            assert len(first.seen("server:join_office")) == 1


async def test_an_interrupted_call_is_repeated_with_its_req_id_and_remaining_time() -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        answered_the_second_time(gateway)
        call = asyncio.create_task(agent.call_tool("red", "slow", {"x": 1}, timeout=30, req_id="r1"))
        await eventually(lambda: gateway.seen("client:tool_call"))
        gateway.cut()
        assert (await call).text == "done"
        first, second = gateway.seen("client:tool_call")
        assert first["timeout"] == 30
        assert second["timeout"] <= 30
        assert {**first, "timeout": 0, "a2c_repeat": second["a2c_repeat"]} == {**second, "timeout": 0}
        assert "a2c_repeat" not in first
        assert gateway.seen("server:tool_call_cancel") == []


@pytest.mark.parametrize(("code", "marked"), [(NOTHING_BEGUN, False), (WSCloseCode.SERVICE_RESTART, True)])
async def test_a_call_that_a_gateway_did_not_begin_is_sent_again_as_new(code: int, marked: bool) -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        answered_the_second_time(gateway)
        call = asyncio.create_task(agent.call_tool("red", "slow", req_id="r1"))
        await eventually(lambda: gateway.seen("client:tool_call"))
        gateway.close_sockets(code)
        assert (await call).text == "done"
        assert ["a2c_repeat" in data for data in gateway.seen("client:tool_call")] == [False, marked]


@pytest.mark.rule("answers.calls.not-repeated")
async def test_a_call_whose_connection_is_not_back_in_time_may_have_run() -> None:
    async with fake_gateway() as gateway:
        async with agent_at(gateway) as agent:
            gateway.answers["client:tool_call"] = gateway.never
            sent = asyncio.create_task(agent.call_tool("red", "slow", timeout=1))
            await eventually(lambda: gateway.seen("client:tool_call"))
            await gateway.stop()
            await eventually(lambda: not agent.connected)
            unsent = asyncio.create_task(agent.call_tool("red", "slow", timeout=1))
            with pytest.raises(ConnectionLost) as caught:
                await sent
            assert caught.value.may_have_run
            with pytest.raises(ConnectionLost) as caught:
                await unsent
            assert not caught.value.may_have_run
        await gateway.start()


@pytest.mark.parametrize(
    ("code", "details"), [(503, {"may_have_run": True}), (404, {"computer": "red"}), (503, {"may_have_run": False})]
)
async def test_a_refused_repeat_may_have_run_at_the_first_try(code: int, details: JsonObject) -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:

        async def answer(data: JsonObject) -> Any:
            if not data.get("a2c_repeat"):
                gateway.cut()
                await gateway.never(data)
            return {"code": code, "message": "not here", "details": details}

        gateway.answers["client:tool_call"] = answer
        with pytest.raises(SmcpError) as caught:
            await agent.call_tool("red", "slow", timeout=3)
        assert may_have_run(caught.value)
        assert caught.value.code == code


async def test_only_tool_calls_are_marked_as_repeats() -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:

        async def answer(data: JsonObject) -> Any:
            if len(gateway.seen("client:get_config")) == 1:
                gateway.cut()
                await gateway.never(data)
            return {"code": 404, "message": "no such Computer", "details": {}}

        gateway.answers["client:get_config"] = answer
        with pytest.raises(NotFound) as caught:
            await agent.get_config("red")
        assert not may_have_run(caught.value)
        assert not any("a2c_repeat" in data for data in gateway.seen("client:get_config"))


async def test_a_refused_rejoin_is_tried_again() -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        stream = agent.events()
        gateway.refusal = "an Agent is in the office"
        gateway.cut()
        await eventually(lambda: len(gateway.seen("server:join_office")) >= 3)
        gateway.refusal = None
        assert isinstance(await anext(stream), Disconnected)
        assert await anext(stream) == Reconnected(gateway.url)
        assert len(gateway.sessions) == 1, "it asks again on the same connection"


async def test_a_rejoin_that_stays_refused_fails_calls_and_is_tried_forever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("smcp_agent.connecting.link.REFUSED_PATIENCE_S", 0.2)
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        stream = agent.events()
        gateway.refusal = "another Agent came"
        gateway.cut()
        assert isinstance(await anext(stream), Disconnected)
        assert await anext(stream) == RejoinRefused("another Agent came")
        with pytest.raises(JoinRefused, match="another Agent came"):
            await agent.call_tool("red", "echo")
        gateway.refusal = None
        assert await anext(stream) == Reconnected(gateway.url)
        assert (await agent.call_tool("red", "echo")).text == "echo"


async def test_after_4103_the_agent_joins_again_and_repeats_the_call() -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:

        async def answer(data: JsonObject) -> Any:
            if len(gateway.seen("server:join_office")) == 1:
                return {"code": 4103, "message": "not a member of the office", "details": {}}
            return {"content": []}

        gateway.answers["client:tool_call"] = answer
        assert not (await agent.call_tool("red", "echo", req_id="r1")).is_error
        calls = gateway.seen("client:tool_call")
        assert [data["req_id"] for data in calls] == ["r1", "r1"]
        assert not any("a2c_repeat" in data for data in calls), "what was refused did not run"


@pytest.mark.parametrize(("cuts", "answered"), [(True, True), (False, False)])
async def test_an_agent_joins_again_after_each_connection_but_not_twice_in_a_row(cuts: bool, answered: bool) -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:

        async def answer(data: JsonObject) -> Any:
            match len(gateway.seen("client:tool_call")):
                case 2 if cuts:
                    gateway.cut()
                case 4:
                    return {"content": []}
            return {"code": 4103, "message": "not a member of the office", "details": {}}

        gateway.answers["client:tool_call"] = answer
        if answered:
            assert not (await agent.call_tool("red", "echo")).is_error
        else:
            with pytest.raises(NotInOffice):
                await agent.call_tool("red", "echo")
        assert len(gateway.seen("client:tool_call")) == (4 if answered else 2)


@pytest.mark.rule("answers.rooms.moving.turns")
async def test_a_call_refused_by_a_stopping_gateway_is_sent_to_the_next_one() -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        released = asyncio.Event()
        refused = asyncio.Event()

        async def answer(data: JsonObject) -> Any:
            if data["req_id"] == "long":
                await released.wait()
            elif len(gateway.seen("server:join_office")) == 1:
                refused.set()
                return {"code": 503, "message": "connect again", "details": {"may_have_run": False, "moving": True}}
            return {"content": []}

        gateway.answers["client:tool_call"] = answer
        running = asyncio.create_task(agent.call_tool("red", "echo", req_id="long"))
        await eventually(lambda: gateway.seen("client:tool_call"))
        waiting = asyncio.create_task(agent.call_tool("red", "echo", req_id="new"))
        await asyncio.wait_for(refused.wait(), 30)
        released.set()  # what runs goes on over the old connection, and ends there
        assert not (await running).is_error
        assert not waiting.done()
        await gateway.send_away()
        assert not (await waiting).is_error
        calls = gateway.seen("client:tool_call")
        assert [data["req_id"] for data in calls] == ["long", "new", "new"]
        assert not any("a2c_repeat" in data for data in calls), "what was refused did not run"


async def test_a_stopping_gateway_that_keeps_the_connection_is_an_error_at_the_timeout() -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:

        async def answer(data: JsonObject) -> Any:
            return {"code": 503, "message": "connect again", "details": {"may_have_run": False, "moving": True}}

        gateway.answers["client:tool_call"] = answer
        with pytest.raises(Unavailable, match="connect again"):
            await agent.call_tool("red", "echo", timeout=1)
        assert len(gateway.seen("client:tool_call")) == 1


async def test_a_list_of_the_room_that_fails_after_a_rejoin_is_asked_for_again() -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = []
        async with agent_at(gateway) as agent:
            failures = 2

            async def answer(data: JsonObject) -> Any:
                nonlocal failures
                if failures:
                    failures -= 1
                    return {"code": 503, "message": "not now", "details": {}}
                del gateway.answers["server:list_room"]
                return {"sessions": [], "req_id": data["req_id"]}

            gateway.answers["server:list_room"] = answer
            stream = agent.events()
            gateway.cut()
            events = [await anext(stream)]
            while not isinstance(events[-1], Reconnected):
                events.append(await anext(stream))
            assert failures == 0
            assert agent.computers() == []


async def test_an_agent_can_be_closed_while_it_is_trying_to_come_back() -> None:
    async with fake_gateway() as gateway:
        async with agent_at(gateway) as agent:
            await gateway.stop()
            await eventually(lambda: not agent.connected)
        assert [event async for event in agent.events()] == []
        await gateway.start()
