import asyncio
from typing import Any

import pytest

from smcp_agent import (
    CannotConnect,
    Closed,
    ConnectionLost,
    Disconnected,
    JoinRefused,
    Reconnected,
    RejoinRefused,
    SmcpAgent,
    Unavailable,
    may_have_run,
)
from smcp_agent.errors import BadReply, Malformed, NotAllowed, NotAuthenticated, SmcpError
from smcp_testing.fake_gateway import FakeGateway, agent_at, fake_gateway, tool
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
        ([False, "403 the office already has an Agent"], JoinRefused),
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
                monkeypatch.setattr(agent._office, "on_lost", broken)
                gateway.cut()
                await eventually(lambda: agent._link.failure)


async def test_entering_joins_the_office_and_leaving_leaves_it() -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("echo")]
        async with agent_at(gateway) as agent:
            assert gateway.seen("server:join_office") == [{"role": "agent", "name": "bot", "office_id": "office"}]
            assert agent.computers() == ["red"]
            assert [each.name for each in await agent.tools("red")] == ["echo"]
        assert not agent.connected
        assert gateway.seen("server:leave_office") == [{"office_id": "office"}]
        await eventually(lambda: gateway.sessions == [])


async def test_a_refused_connection_is_raised_as_the_servers_error() -> None:
    async with fake_gateway() as gateway:
        gateway.connect_error = {"code": 401, "message": "no token"}
        with pytest.raises(NotAuthenticated, match="no token"):
            async with agent_at(gateway):
                pytest.fail("it was let in")


async def test_the_error_for_unreachable_urls_has_a_reason_for_each() -> None:
    async with fake_gateway() as gateway:
        url = gateway.url
    agent = SmcpAgent([url, "http://127.0.0.1:1"], office="office", name="bot")
    with pytest.raises(CannotConnect) as caught:
        async with agent:
            pytest.fail("it connected")
    assert caught.value.details["urls"] == {url: "Connection refused", "http://127.0.0.1:1": "Connection refused"}


async def test_the_first_url_that_works_is_used() -> None:
    async with fake_gateway() as gateway:
        async with SmcpAgent(["http://127.0.0.1:1", gateway.url], office="office", name="bot") as agent:
            assert agent.connected


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://host", "http://", "http://host:x", None, 5, [None], b"x"])
def test_a_url_that_cannot_be_right_is_refused_at_once(url: Any) -> None:
    with pytest.raises(Malformed) as caught:
        SmcpAgent(url, office="office", name="bot")
    assert caught.value.details["field"] == "url"


@pytest.mark.parametrize(("office", "name", "field"), [("", "bot", "office_id"), ("office", "a\nb", "name")])
def test_an_invalid_agent_name_is_refused_before_connecting(office: str, name: str, field: str) -> None:
    with pytest.raises(Malformed) as caught:
        SmcpAgent("http://127.0.0.1:1", office=office, name=name)
    assert caught.value.details["field"] == field


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_message", "x"), ("max_message", 0), ("max_values", 0), ("connect_timeout", "x"), ("headers", 5)],
)
def test_an_option_that_cannot_be_right_is_refused_at_once(field: str, value: Any) -> None:
    with pytest.raises(Malformed) as caught:
        SmcpAgent("http://127.0.0.1:1", office="office", name="bot", **{field: value})
    assert caught.value.details["field"] == field


async def test_an_agent_outside_of_its_async_with_raises_closed() -> None:
    async with fake_gateway() as gateway:
        agent = agent_at(gateway)
        with pytest.raises(Closed):
            await agent.call_tool("red", "echo")
        async with agent:
            pass
        with pytest.raises(Closed):
            await agent.call_tool("red", "echo")
        with pytest.raises(Closed):
            await agent.__aenter__()


async def test_an_exception_of_the_application_leaves_the_async_with_unchanged() -> None:
    async with fake_gateway() as gateway:
        with pytest.raises(ZeroDivisionError):
            async with agent_at(gateway):
                raise ZeroDivisionError
