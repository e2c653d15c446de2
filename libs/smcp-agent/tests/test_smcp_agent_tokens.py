"""Authentication of the Agent SDK at a real gateway."""

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from smcp_agent import (
    CallResult,
    Disconnected,
    Event,
    NotAuthenticated,
    RateLimited,
    Reconnected,
    RejoinRefused,
    SmcpAgent,
    SmcpError,
    TokenUnavailable,
)
from smcp_agent.connecting.link import delay
from smcp_agent.errors import Malformed
from smcp_auth import api_keys as key_file
from smcp_auth.api_keys import new_key
from smcp_testing import issuer
from smcp_testing.computer_world import native_computer
from smcp_testing.gateway_world import gateway_world
from smcp_testing.issuer import shared_token
from smcp_testing.mcp_servers.configs import stdio
from smcp_testing.waiting import eventually

SECRET = "a shared secret of the tests, long enough"
SETTINGS = issuer.settings(auth_secret=SECRET)
VALID_S = 5.0
"""Of a token that is to expire in a session: to connect and to join took up to a second on a busy machine."""


async def test_a_token_lets_the_agent_in_and_a_wrong_one_is_a_typed_error(nats_url: str) -> None:
    async with gateway_world(nats_url, settings=SETTINGS) as world:
        async with SmcpAgent(world.url, office="office", name="anna", token=shared_token(SECRET)) as anna:
            assert [session.name for session in await anna.list_room()] == ["anna"]
        for token, why in (
            (None, "token is needed"),
            ("wrong", "not accepted"),
            (shared_token(SECRET, exp=1), "expired"),
        ):
            with pytest.raises(NotAuthenticated, match=why):
                async with SmcpAgent(world.url, office="office", name="anna", token=token):
                    raise AssertionError("it was let in")


async def test_an_address_shut_out_by_a_gateway_gets_rate_limited_with_a_pause(nats_url: str) -> None:
    async with gateway_world(nats_url, registry=False, settings=SETTINGS) as world:

        async def connect() -> None:
            async with SmcpAgent(world.url, office="office", name="anna", token="wrong"):
                raise AssertionError("it was let in")

        for _ in range(20):
            with pytest.raises(NotAuthenticated):
                await connect()
        with pytest.raises(RateLimited) as refused:
            while True:  # one more is allowed every 3 s, and the 20 may take longer
                with suppress(NotAuthenticated):
                    await connect()
        assert 1 <= refused.value.details["retry_after_s"] <= 60


async def test_a_seat_outside_of_the_tokens_grant_is_refused(nats_url: str) -> None:
    token = shared_token(SECRET, smcp={"offices": ["lab"], "roles": ["agent"]})
    async with gateway_world(nats_url, settings=SETTINGS) as world:
        with pytest.raises(SmcpError, match="not for this office"):
            async with SmcpAgent(world.url, office="kitchen", name="anna", token=token):
                raise AssertionError("it was let in")


async def test_an_expired_token_is_replaced_and_the_call_runs_once(nats_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    given: list[str] = []

    async def fresh() -> str:
        given.append(shared_token(SECRET, exp=time.time() + (VALID_S if not given else 600)))
        return given[-1]

    async with (
        gateway_world(nats_url, settings=SETTINGS) as world,
        native_computer(world, "office", "box", {"toolbox": stdio(log=log)}),
        SmcpAgent(world.url, office="office", name="anna", token=fresh) as anna,
    ):
        events: list[Event] = []
        anna.on_event(events.append)
        result = await anna.call_tool("box", "sleep", {"seconds": VALID_S + 1, "mark": "over the end"}, timeout=30)
        assert isinstance(result, CallResult)
        assert result.text == f"slept {VALID_S + 1}"
        assert len(given) == 2

        def moves() -> list[type[Event]]:
            return [type(event) for event in events if isinstance(event, Disconnected | Reconnected)]

        await eventually(lambda: moves() == [Disconnected, Reconnected])  # it is told once the room is listed
        assert log.read_text().splitlines().count("sleep over the end") == 1


async def test_an_agent_with_a_removed_key_reports_it_and_retries_slowly(nats_url: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key, entry = new_key(subject="anna", offices=["*"], roles=["agent"], names=["*"])
    key_file.add(path, entry)
    asked: list[float] = []

    async def stubborn() -> str:
        asked.append(asyncio.get_running_loop().time())
        return key

    async with (
        gateway_world(nats_url, settings={"auth_keys": path}) as world,
        SmcpAgent(world.url, office="office", name="anna", token=stubborn) as anna,
    ):
        told: list[Event] = []
        anna.on_event(told.append)
        key_file.remove(path, entry.id)
        await eventually(lambda: any(isinstance(event, RejoinRefused) for event in told))
        with pytest.raises(NotAuthenticated):
            await anna.list_room()
        key_file.add(path, entry)  # put back: it comes back by itself
        await eventually(lambda: anna.connected, timeout=30)
        assert [session.name for session in await anna.list_room()] == ["anna"]
        first, refused, again, *_ = asked
        assert again - refused >= 8
        assert first < refused


async def test_a_token_function_that_fails_is_a_typed_error_with_its_cause(nats_url: str) -> None:
    async def broken() -> str:
        raise RuntimeError("the secret of somebody")

    async def endless() -> str:
        await asyncio.sleep(60)
        return ""

    async with gateway_world(nats_url, registry=False, settings=SETTINGS) as world:
        for fetch in (broken, endless):
            with pytest.raises(TokenUnavailable) as failed:
                async with SmcpAgent(world.url, office="office", name="anna", token=fetch, connect_timeout=0.3):
                    raise AssertionError("it was let in")
            assert isinstance(failed.value.__cause__, RuntimeError | TimeoutError)
            assert "secret" not in str(failed.value)


@pytest.mark.parametrize("token", [lambda: "a token", 5, Path("token")])
async def test_a_token_that_is_neither_text_nor_an_async_function_cannot_be_fetched(token: Any) -> None:
    with pytest.raises(TokenUnavailable, match="the token could not be fetched: TypeError"):
        async with SmcpAgent("http://127.0.0.1:1", office="office", name="anna", token=token):
            raise AssertionError("it was let in")


@pytest.mark.parametrize("token", ["", "a b", "a\r\nX-Evil: 1", "深", "x" * 9000])
def test_a_token_that_cannot_be_sent_is_refused_at_once_and_not_quoted(token: str) -> None:
    with pytest.raises(Malformed) as refused:
        SmcpAgent("http://127.0.0.1:1", office="office", name="anna", token=token)
    assert refused.value.details == {"field": "token"}
    assert not token or token not in refused.value.message


def test_a_refused_token_is_tried_again_after_a_while_and_another_failure_at_once() -> None:
    assert 8 <= delay(NotAuthenticated("no")) <= 10
    assert delay(TokenUnavailable("no")) == 0


def test_a_pause_that_the_gateway_asks_for_is_kept() -> None:
    assert 30 <= delay(RateLimited("wait", details={"retry_after_s": 30})) <= 37.5
    assert 10 <= delay(RateLimited("wait")) <= 12.5
