"""Who calls: what a Computer does for one holder of a token is not another's, whatever name that one takes."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from smcp_computer.config.file import parse_config
from smcp_computer.gateway import open_gateway_computer
from smcp_computer.settings import ComputerSettings
from smcp_testing import issuer
from smcp_testing.computer_world import native_computer
from smcp_testing.gateway_world import Client, World, connected
from smcp_testing.issuer import shared_token
from smcp_testing.leaving_gateway import in_time, two_gateways
from smcp_testing.mcp_servers import configs
from smcp_testing.waiting import eventually

OFFICE, NAME = "office", "box"
SECRET = "a shared secret of the tests, long enough"
LOCKED = issuer.settings(auth_secret=SECRET)


@asynccontextmanager
async def holder(world: World, subject: str, *, name: str = "anna", **claims: Any) -> AsyncIterator[Client]:
    """The holder of a token for that subject, in the office as an Agent of that name."""
    async with connected(world.url, auth={"token": shared_token(SECRET, sub=subject, **claims)}) as client:
        assert await client.join("agent", name, OFFICE) == [True, None]
        yield client
        await client.call("server:leave_office", {"office_id": OFFICE})


def request(**more: Any) -> dict[str, Any]:
    return {"agent": "anna", "req_id": "r1", "computer": NAME, "timeout": 30, **more}


@pytest.mark.rule("answers.calls.dedup.subject", "answers.who.caller")
@pytest.mark.parametrize("how", ["nats", "gateway"])
async def test_a_kept_result_is_not_given_to_another_subject_that_takes_the_name(
    nats_url: str, tmp_path: Path, how: str
) -> None:
    log = tmp_path / "log"
    servers = {"tools": configs.stdio(log=log)}
    asked = request(tool_name="append", params={"mark": "secret"})
    async with AsyncExitStack() as opened:
        staying, leaving, leave = await opened.enter_async_context(two_gateways(nats_url, settings=LOCKED))
        if how == "nats":
            await opened.enter_async_context(native_computer(staying, OFFICE, NAME, servers))
        else:
            settings = ComputerSettings(
                gateway_url=f"{leaving.url},{staying.url}", config=Path("unused"), office=OFFICE, name=NAME
            )
            computer = await opened.enter_async_context(
                open_gateway_computer(
                    settings,
                    token=shared_token(SECRET, sub="holder of box"),
                    config=parse_config(json.dumps({"servers": servers})),
                    environ={},
                )
            )
            await asyncio.wait_for(computer.wait_ready(), 60)
        async with holder(staying, "anna") as anna:
            answer = await anna.call("client:tool_call", asked)
            assert answer["content"][0]["text"] == "secret"
        if how == "gateway":  # from now on nobody but the Computer itself knows of the call
            await in_time(leave(), 30)
            await eventually(lambda: computer.membership.problem is None)
        async with holder(staying, "mallory") as mallory:
            for forged in ({}, {"a2c_caller": {"key": "", "subject": "anna"}}):
                stolen = await mallory.call("client:tool_call", asked | forged)
                assert (stolen["code"], stolen["details"]) == (400, {"field": "req_id"})
                assert "secret" not in json.dumps(stolen)
        async with holder(staying, "anna", exp=10**10) as anna:  # another token of the same subject
            assert await anna.call("client:tool_call", asked) == answer
        assert log.read_text().splitlines() == ["secret"]
