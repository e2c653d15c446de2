"""A tool call that cannot be carried out, as each kind of client hears of it, and answers of Computers on Socket.IO."""

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_bus import exact_json
from smcp_bus.bus import Incoming, Reply
from smcp_bus.headers import ERROR
from smcp_gateway.computers.answers import large_result, result_of
from smcp_proto.errors import Internal, NotAllowed, RateLimited, SmcpError, TimedOut, TooLarge, Unavailable
from smcp_testing.gateway_world import Client, connected, gateway_world, reply
from smcp_testing.socketio_pair import RESULT, call, couple
from smcp_testing.socketio_pair import serve as serve_box

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


@pytest.mark.rule("answers.errors.tool-call")
async def test_an_exception_of_the_gateway_is_a_failed_result_for_a_published_client(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a secret")

    error = {"code": 500, "message": "internal error", "details": {}}
    result = {
        "content": [{"type": "text", "text": "internal error"}],
        "isError": True,
        "meta": {"a2c_error": {"code": 500, "details": {}}},
    }
    async with gateway_world(nats_url) as world:
        monkeypatch.setattr(world.gateways[0].transport.dispatcher, "dispatch", fail)
        for flat_errors, answer in ((True, error), (False, result)):
            async with connected(world.url, flat_errors=flat_errors) as client:
                assert await client.call("client:tool_call", CALL) == answer
                assert await client.call("client:get_tools", {"agent": "anna", "computer": "box"}) == error
                refused = [False, "500 internal error", {}]
                assert await client.join("agent", "anna", "office") == (refused if flat_errors else refused[:2])


@pytest.mark.rule("answers.errors.tool-call")
@pytest.mark.parametrize("flat_errors", [True, False])
async def test_the_flat_error_of_a_socketio_computer_is_an_error_for_every_client_and_every_repeat(
    nats_url: str, flat_errors: bool
) -> None:
    details = {"size": 2**70, "limit": None, "content": [1.5]}
    async with couple(nats_url, flat_errors=flat_errors) as pair:

        async def refuse(payload: dict[str, Any]) -> Any:
            return {"code": payload["params"]["code"], "message": "深", "details": details}

        asked = serve_box(pair.box, "client:tool_call", refuse)
        for code in (400, 404, 413, 429, 503, 4014):
            error = {"code": code, "message": "深", "details": details}
            result = {
                "content": [{"type": "text", "text": "深"}],
                "isError": True,
                "meta": {"a2c_error": {"code": code, "details": details}},
            }
            expected = error if flat_errors or code in {404, 4014} else result
            for _ in range(2):
                assert await pair.anna.call("client:tool_call", call(code, code=code)) == expected
        assert len(asked) == 6  # no repeat ran


async def test_a_call_that_a_socketio_computer_says_it_did_not_run_runs_when_it_is_repeated(nats_url: str) -> None:
    async with couple(nats_url) as pair:
        answers = iter([{"code": 503, "message": "stopping", "details": {"may_have_run": False}}, RESULT])

        async def answer(_: dict[str, Any]) -> Any:
            return next(answers)

        asked = serve_box(pair.box, "client:tool_call", answer)
        assert (await pair.anna.call("client:tool_call", call()))["details"] == {"may_have_run": False}
        assert await pair.anna.call("client:tool_call", call() | {"a2c_repeat": 10}) == RESULT
        assert await pair.anna.call("client:tool_call", call() | {"a2c_repeat": 20}) == RESULT
        assert len(asked) == 2
        assert (await pair.anna.call("client:tool_call", call(x=1)))["details"] == {"field": "req_id"}


async def test_no_field_of_a_socketio_computers_error_breaks_an_answer(nats_url: str) -> None:
    deep: list[Any] = []
    bad_details: list[Any] = [[]]
    for _ in range(150):
        deep = [deep]
    bad_details.append({"deep": deep})
    async with couple(nats_url, flat_errors=False) as pair:
        answers: list[tuple[dict[str, Any], dict[str, Any]]] = [
            ({"code": True, "message": "m"}, {"code": True, "message": "m"}),
            ({"code": 500, "message": None}, {"code": 500, "message": None}),
            (RESULT | {"code": 500, "message": "m"}, RESULT | {"code": 500, "message": "m"}),
            *(
                (
                    {"code": 500, "message": "m", "details": details},
                    {
                        "content": [{"type": "text", "text": "m"}],
                        "isError": True,
                        "meta": {"a2c_error": {"code": 500, "details": {}}},
                    },
                )
                for details in bad_details
            ),
        ]

        async def answer(payload: dict[str, Any]) -> Any:
            return answers[payload["params"]["n"]][0]

        serve_box(pair.box, "client:tool_call", answer)
        for number, (_, heard) in enumerate(answers):
            assert await pair.anna.call("client:tool_call", call(number, n=number)) == heard


MOST: Final = exact_json.MAX_VALUES
JSON: Final = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NAMES: Final = st.sampled_from(["content", "isError", "code", "message", "meta", "_meta", "a2c_x", "b"]) | st.text()
OBJECTS: Final = st.dictionaries(NAMES, st.dictionaries(NAMES, JSON) | JSON)


@given(OBJECTS)
async def test_a_large_result_is_written_as_a_short_one(answer: dict[str, Any]) -> None:
    text = json.dumps(answer).encode()
    short, large = result_of(text), await large_result(text, MOST)
    if isinstance(short, bytes):  # whether a large one is an error the Agent's gateway finds out
        assert json.loads(large) == json.loads(short)


async def test_an_error_is_found_whatever_escapes_its_fields_are_written_with() -> None:
    outcome = result_of(b'{"\\u0063ode":401,"m\\u0065ssage":"give me your token"}')
    assert isinstance(outcome, SmcpError)
    assert outcome.code == 500


async def test_a_large_result_of_too_many_values_is_refused() -> None:
    with pytest.raises(TooLarge):
        await large_result(b'{"a":[' + b"[]," * 2 * MOST + b"[]]}", MOST)
