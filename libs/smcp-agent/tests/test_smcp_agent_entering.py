"""Entering an office, and its failures."""

from typing import Any

import pytest

from smcp_agent import (
    CannotConnect,
    Closed,
    JoinRefused,
    SmcpAgent,
)
from smcp_agent.errors import Malformed, NotAuthenticated
from smcp_testing.fake_gateway import FakeGateway, fake_gateway, tool
from smcp_testing.waiting import eventually


def agent_at(gateway: FakeGateway, **options: Any) -> SmcpAgent:
    return SmcpAgent(gateway.url, office="office", name="bot", **options)


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


async def test_a_refused_join_is_raised_with_its_reason_and_closes_the_socket() -> None:
    async with fake_gateway() as gateway:
        gateway.refusal = "another Agent is in the office"
        with pytest.raises(JoinRefused, match="another Agent is in the office") as caught:
            async with agent_at(gateway):
                pytest.fail("it was let in")
        assert caught.value.details == {"why": "another Agent is in the office"}
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
    [("max_message", "x"), ("max_message", 0), ("connect_timeout", "x"), ("transports", []), ("headers", 5)],
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


async def test_a_gateway_that_speaks_no_websocket_is_reached_by_polling() -> None:
    async with fake_gateway(transports=["polling"], ping_timeout=1) as gateway:
        gateway.computers["red"] = [tool("echo")]
        async with agent_at(gateway) as agent:
            assert (await agent.call_tool("red", "echo")).text == "echo"
