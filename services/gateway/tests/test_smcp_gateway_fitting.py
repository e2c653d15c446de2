"""The limit of an Agent is passed to the Computer, which fits desktops and catalogs into it instead of a 413."""

from typing import Any

import pytest

from smcp_bus.bus import Incoming, Reply
from smcp_bus.headers import REPLY_LIMIT
from smcp_computer.mcp.sdk_adapter import CallSpan
from smcp_testing.computer_world import native_computer
from smcp_testing.gateway_world import MIB, connected, gateway_world, reply
from smcp_testing.mcp_servers import configs

OFFICE = "office"


def asked(**fields: Any) -> dict[str, Any]:
    return {"agent": "anna", "req_id": "r1", "computer": "box", **fields}


@pytest.mark.rule("answers.desktop.large")
async def test_the_computer_is_told_the_clients_reply_limit_and_a_reply_of_that_size_arrives(nats_url: str) -> None:
    async def serve(verb: str, incoming: Incoming) -> Reply:
        limit = incoming.headers.get(REPLY_LIMIT)
        return reply(None) if limit is None else Reply(b'"' + b"x" * (int(limit) - 2) + b'"')

    async with gateway_world(nats_url) as world, world.computer(OFFICE, "box", serve):
        for auth, takes in ((None, 4 * MIB), ({"max_message": MIB}, MIB)):
            async with connected(world.url, auth=auth) as anna:
                await anna.join("agent", "anna", OFFICE)
                for event in ("client:get_desktop", "client:get_finder"):
                    assert len(await anna.call(event, asked())) == takes - 64 - 1 - 2
                assert await anna.call("client:get_tools", asked()) is None
                assert await anna.call("server:leave_office", {"office_id": OFFICE}) == [True, None]


@pytest.mark.rule("answers.desktop.large")
async def test_a_client_with_a_limit_of_four_mib_gets_the_windows_that_fit(nats_url: str) -> None:
    servers = {"one": configs.context("2026", windows=2, host="h")}
    async with (
        gateway_world(nats_url) as world,
        native_computer(world, OFFICE, "box", servers, read_s=20.0) as computer,
        connected(world.url) as anna,
    ):
        await anna.join("agent", "anna", OFFICE)
        tools = computer.fleet.supervisors["one"]
        for number in (2, 3):
            uri = f"window://h/{number}"
            put = {"uri": uri, "contents": [{"uri": uri, "text": "x" * number * MIB}]}
            assert not (await tools.calls.run("put", put, timeout=30, span=CallSpan({}))).get("isError")
        answer = await anna.call("client:get_desktop", asked(), timeout=30)
        shown = [text.partition("\n\n")[0] for text in answer["desktops"]]
        assert shown == ["window://h/0", "window://h/1", "window://h/2"]
