import asyncio
from typing import Any

import pytest

from smcp_agent import (
    ConnectionLost,
    Disconnected,
    JoinRefused,
    Reconnected,
    RejoinRefused,
    SmcpAgent,
    Unavailable,
    may_have_run,
)
from smcp_agent.errors import BadReply, Malformed, NotAllowed, SmcpError
from smcp_testing.fake_gateway import FakeGateway, fake_gateway
from smcp_testing.waiting import eventually

JsonObject = dict[str, Any]


async def enter(gateway: FakeGateway) -> None:
    async with SmcpAgent(gateway.url, office="office", name="bot"):
        pass


@pytest.mark.parametrize(
    ("ack", "error"),
    [
        ([False, "full"], JoinRefused),
        ([False, None], JoinRefused),
        ([False, "403 the office has an Agent already"], JoinRefused),
        ([False, "503 no registry answered"], Unavailable),
        ([False, "400 name: too long"], Malformed),
        ([False, "99 bottles"], JoinRefused),
        ([False, "503 no registry answered", {"may_have_run": True}], Unavailable),
        ([False, "403 taken", "by whom?"], JoinRefused),
        ({"code": 403, "message": "no", "details": {}}, NotAllowed),
        ("yes", BadReply),
        (None, BadReply),
    ],
)
async def test_a_refused_first_join_closes_its_socket(ack: object, error: type[SmcpError]) -> None:
    async with fake_gateway() as gateway:

        async def answer(data: JsonObject) -> Any:
            return ack

        gateway.answers["server:join_office"] = answer
        with pytest.raises(error) as caught:
            await enter(gateway)
        assert type(caught.value) is error
        await eventually(lambda: gateway.sessions == [])


@pytest.mark.rule("answers.acks.join.why")
async def test_the_reason_of_a_refused_join_is_shown_without_its_code() -> None:
    async with fake_gateway() as gateway:
        gateway.refusal = "503 no registry answered"
        with pytest.raises(Unavailable, match="now: no registry answered") as caught:
            await enter(gateway)
        assert caught.value.details == {"why": "no registry answered"}


async def test_the_details_of_a_refused_join_are_those_of_its_error() -> None:
    async with fake_gateway() as gateway:
        gateway.refusal, gateway.details = "403 taken", {"holder": "anna", "since": "2026-01-31T12:00:00Z"}
        with pytest.raises(JoinRefused) as caught:
            await enter(gateway)
        assert caught.value.details == {"why": "taken", **gateway.details}


async def test_a_join_that_may_have_run_is_no_tool_that_may_have_run() -> None:
    async with fake_gateway() as gateway:
        gateway.refusal, gateway.details = "503 no registry answered", {"may_have_run": True}
        with pytest.raises(Unavailable) as caught:
            await enter(gateway)
        assert not may_have_run(caught.value)


async def test_an_ack_with_two_arguments_is_a_list() -> None:
    async with fake_gateway() as gateway:

        async def answer(data: JsonObject) -> Any:
            return True, None

        gateway.answers["server:join_office"] = answer
        await enter(gateway)


async def test_a_connection_that_breaks_during_the_first_join_raises_connection_lost() -> None:
    async with fake_gateway() as gateway:

        async def answer(data: JsonObject) -> Any:
            gateway.cut()

        gateway.answers["server:join_office"] = answer
        with pytest.raises(ConnectionLost) as caught:
            await enter(gateway)
        assert not caught.value.may_have_run


async def test_a_room_that_cannot_be_listed_at_first_is_asked_for_again() -> None:
    async with fake_gateway() as gateway:

        async def answer(data: JsonObject) -> Any:
            if len(gateway.seen("server:list_room")) < 3:
                return {"code": 503, "message": "not now", "details": {}}
            return {"sessions": [], "req_id": data["req_id"]}

        gateway.answers["server:list_room"] = answer
        await enter(gateway)
        assert len(gateway.seen("server:list_room")) == 3


async def test_a_room_that_cannot_be_listed_in_time_is_the_servers_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smcp_agent.office.FIRST_LIST_S", 0.3)
    async with fake_gateway() as gateway:

        async def answer(data: JsonObject) -> Any:
            return {"code": 503, "message": "not now", "details": {}}

        gateway.answers["server:list_room"] = answer
        with pytest.raises(Unavailable, match="not now"):
            await enter(gateway)
        await eventually(lambda: gateway.sessions == [])


async def test_a_rejoin_refused_with_an_unknown_code_fails_calls_with_that_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("smcp_agent.connecting.link.REFUSED_PATIENCE_S", 0.2)
    async with fake_gateway() as gateway, SmcpAgent(gateway.url, office="office", name="bot") as agent:
        stream = agent.events()

        async def later(_: JsonObject) -> Any:
            return {"code": 4711, "message": "full moon", "details": {"until": "dawn"}}

        gateway.answers["server:join_office"] = later
        gateway.cut()
        assert isinstance(await anext(stream), Disconnected)
        assert await anext(stream) == RejoinRefused("full moon")
        for _ in range(2):
            with pytest.raises(SmcpError, match="full moon") as caught:
                await agent.call_tool("red", "echo")
            assert (caught.value.code, caught.value.details) == (4711, {"until": "dawn"})
        del gateway.answers["server:join_office"]
        assert await anext(stream) == Reconnected(gateway.url)


async def test_entering_can_be_cancelled_and_leaves_no_socket() -> None:
    async with fake_gateway() as gateway:
        gateway.answers["server:join_office"] = gateway.never
        entering = asyncio.create_task(enter(gateway))
        await eventually(lambda: gateway.seen("server:join_office"))
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        await eventually(lambda: gateway.sessions == [])


async def test_a_defect_in_a_background_task_ends_the_agent_and_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    async with fake_gateway() as gateway:
        with pytest.raises(ZeroDivisionError):
            async with SmcpAgent(gateway.url, office="office", name="bot") as agent:
                monkeypatch.setattr(agent._room, "on_lost", broken)
                gateway.cut()
                await eventually(lambda: agent._link.failed)
