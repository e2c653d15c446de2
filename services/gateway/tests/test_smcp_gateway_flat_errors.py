"""A tool call that cannot be carried out, as clients hear of it that read flat errors, and as all others do."""

import json
from typing import Any, Final

import pytest

from smcp_bus.bus import Incoming, Reply
from smcp_bus.headers import ERROR
from smcp_proto.errors import Internal, NotAllowed, RateLimited, SmcpError, TimedOut, Unavailable
from smcp_testing.gateway_world import Client, connected, gateway_world, reply

CALL: dict[str, Any] = {
    "agent": "anna", "req_id": "1", "computer": "box", "tool_name": "t", "params": {}, "timeout": 5,
}  # fmt: skip
LARGEST = 64 * 1024
RAISED: Final[dict[str, SmcpError]] = {
    type(error).__name__: error
    for error in (
        NotAllowed("not for you"), TimedOut("too late"), RateLimited("too often", details={"retry_after_s": 1}),
        Internal("a fault"), Unavailable("not now", details={"may_have_run": True}),
    )
}  # fmt: skip
"""What the Computer answers, by the tool that is called."""


async def serve(verb: str, incoming: Incoming) -> Reply:
    if error := RAISED.get(json.loads(incoming.body)["tool_name"]):
        return Reply(error.body().model_dump_json().encode(), {ERROR: str(int(error.code))})
    return reply({"content": [{"type": "text", "text": "x" * LARGEST}]})


async def refusals(client: Client) -> dict[int, Any]:
    """What it hears, by the code that is meant."""
    in_no_office = await client.call("client:tool_call", CALL)
    assert await client.join("agent", "anna", "office") == [True, None]
    return {
        4103: in_no_office,
        400: await client.call("client:tool_call", CALL | {"timeout": 0}),
        413: await client.call("client:tool_call", CALL),
        404: await client.call("client:tool_call", CALL | {"computer": "nobody"}),
        **{
            int(error.code): await client.call("client:tool_call", CALL | {"tool_name": tool, "req_id": tool})
            for tool, error in RAISED.items()
        },
    }


@pytest.mark.rule("answers.errors.tool-call")
async def test_a_client_that_does_not_say_that_it_reads_flat_errors_gets_a_failed_result(nats_url: str) -> None:
    async with gateway_world(nats_url) as world, world.computer("office", "box", serve):
        async with connected(world.url, auth={"max_message": LARGEST}) as client:
            flat = await refusals(client)
            assert {code: answer["code"] for code, answer in flat.items()} == {code: code for code in flat}
        async with connected(world.url, auth={"max_message": LARGEST}, flat_errors=False) as client:
            answers = await refusals(client)
            assert answers.pop(404) == flat[404]  # the published Agent reads it
            for code, answer in answers.items():
                error = {"code": code, "details": flat[code]["details"]}
                text = {"type": "text", "text": flat[code]["message"]}
                assert answer == {"content": [text], "isError": True, "meta": {"a2c_error": error}}
            other = await client.call("client:get_tools", {"agent": "anna", "computer": "box"})
            assert other["code"] == 400  # no tool call
