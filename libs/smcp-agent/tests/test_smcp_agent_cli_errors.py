"""Error messages and exit codes of `smcp-agent`."""

import json
import re
from typing import Any

import pytest
from typer.testing import CliRunner

from smcp_agent.cli.main import app
from smcp_testing.agent_command import ended, line, start
from smcp_testing.fake_gateway import FakeGateway, answered_the_second_time, fake_gateway, tool
from smcp_testing.waiting import eventually

JsonObject = dict[str, Any]


async def run(gateway: FakeGateway, *arguments: str, columns: int = 120) -> tuple[int | None, str, str]:
    """Exit code, standard output, standard error."""
    code, out, err = await ended(await start(gateway, *arguments, columns=columns, forked=True))
    return code, out.decode(), err


async def unavailable(data: JsonObject) -> Any:
    return {"code": 503, "message": "not now", "details": {}}


async def not_found(data: JsonObject) -> Any:
    return {"code": 404, "message": "no such Computer", "details": {}}


async def test_an_error_ends_with_1_and_is_json_for_programs() -> None:
    async with fake_gateway() as gateway:
        gateway.answers["client:tool_call"] = unavailable
        code, out, err = await run(gateway, "call", "red", "echo")
        assert (code, out) == (1, "")
        assert "error 503: not now" in err
        code, out, _ = await run(gateway, "--json", "call", "red", "echo")
        assert code == 1
        req_id = gateway.seen("client:tool_call")[-1]["req_id"]
        assert json.loads(out) == {
            "code": 503, "message": "not now", "details": {}, "req_id": req_id, "trace_id": req_id,
        }  # fmt: skip


@pytest.mark.parametrize(("given", "is_sent"), [(("text=x",), False), (("--params", '{"text": "x"}'), True)])
async def test_a_failed_call_names_its_trace_only_if_it_was_sent(given: tuple[str, ...], is_sent: bool) -> None:
    async with fake_gateway() as gateway:
        gateway.answers["client:get_tools"] = gateway.answers["client:tool_call"] = not_found
        code, _, err = await run(gateway, "call", "nobody", "echo", *given)
        assert (code, "smcp trace" in err, bool(gateway.seen("client:tool_call"))) == (1, is_sent, is_sent)
        _, out, _ = await run(gateway, "--json", "call", "nobody", "echo", *given)
        assert ("trace_id" in json.loads(out)) is is_sent


async def test_a_taken_seat_is_an_error_that_says_when_it_is_free_again() -> None:
    async with fake_gateway() as gateway:

        async def refuse(data: JsonObject) -> Any:
            return [False, "403 the office already has an Agent: 'smcp-mcp'", {"holder": "smcp-mcp", "since": "2026"}]

        gateway.answers["server:join_office"] = refuse
        code, _, err = await run(gateway, "list")
        assert code == 1
        assert "'smcp-mcp'" in err
        assert "some minutes after its last request" in err


async def test_an_office_that_a_token_does_not_allow_names_the_option_for_another() -> None:
    async with fake_gateway() as gateway:

        async def refuse(data: JsonObject) -> Any:
            return [False, "403 the key or token is not for this office", {"field": "office_id"}]

        gateway.answers["server:join_office"] = refuse
        code, _, err = await run(gateway, "list")
        assert (code, err.splitlines()[1:]) == (1, ["--office (SMCP_OFFICE) says which office."])


@pytest.mark.parametrize("query", [["desktop"], ["tools"], ["status"], ["resources"], ["call"]])
async def test_an_unknown_computer_is_refused_with_what_is_probably_wrong(query: list[str]) -> None:
    async def answer(data: JsonObject) -> Any:
        return {"code": 404, "message": "no such Computer", "details": {"computer": "rde"}}

    async with fake_gateway() as gateway:
        gateway.answers |= dict.fromkeys(
            (
                "client:get_desktop",
                "client:get_tools",
                "client:get_status",
                "client:resources/list",
                "client:tool_call",
            ),
            answer,
        )
        asked = [*query, "rde", *(["echo"] if query == ["call"] else [])]
        code, _, err = await run(gateway, *asked)
        assert code == 1
        assert "error 404: no such Computer; no Computer is in it: is the office's name right?" in err.splitlines()
        gateway.computers["red"] = []
        code, _, err = await run(gateway, *asked)
        assert code == 1
        assert "error 404: no such Computer; did you mean 'red'?" in err.splitlines()


async def test_a_forbidden_tool_gets_no_other_hint() -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("read_file")]

        async def answer(data: JsonObject) -> Any:
            text = {"type": "text", "text": "the tool 'write_file' is forbidden on this Computer"}
            return {"content": [text], "isError": True, "meta": {"a2c_forbidden": True}}

        gateway.answers["client:tool_call"] = answer
        code, out, err = await run(gateway, "call", "red", "write_file")
        assert (code, out) == (1, "the tool 'write_file' is forbidden on this Computer\n")
        assert re.fullmatch(r"the call failed\n\d+\.\d{3} s; smcp trace [0-9a-f]{32}\n", err)


async def test_a_call_that_nobody_confirmed_in_time_is_not_said_to_have_been_stopped() -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("echo")]

        async def answer(data: JsonObject) -> Any:
            text = {"type": "text", "text": "the tool 'echo' was not run"}
            return {"content": [text], "isError": True, "meta": {"a2c_timeout": True, "a2c_not_confirmed": True}}

        gateway.answers["client:tool_call"] = answer
        _, out, err = await run(gateway, "call", "red", "echo")
        assert (out, err.splitlines()[0]) == ("the tool 'echo' was not run\n", "the call timed out")


async def test_a_call_that_needs_an_answer_says_who_can_give_it() -> None:
    form = {"method": "elicitation/create", "params": {"message": "Run it?", "requestedSchema": {}}}
    asked = {"requests": {"a2c_approval": form}, "state": "s", "expires_in_s": 60}

    async def answer(data: JsonObject) -> Any:
        return {"content": [], "isError": True, "meta": {"a2c_input_required": asked}}

    async with fake_gateway() as gateway:
        gateway.answers["client:tool_call"] = answer
        code, out, err = await run(gateway, "call", "red", "echo")
        assert (code, out) == (1, "Nobody answered, and the call was cancelled.\n")
        assert "smcp-agent call cannot answer" in err
        assert "SMCP_CONFIRM=ask" in err


async def test_a_call_whose_connection_is_lost_says_so_and_goes_on() -> None:
    async with fake_gateway() as gateway:
        answered_the_second_time(gateway)
        process = await start(gateway, "call", "red", "echo", forked=True)
        await eventually(lambda: gateway.seen("client:tool_call"))
        await gateway.stop()
        assert re.fullmatch(r"The connection is lost \(.+\); retrying \.\.\.\n", await line(process.stderr))
        await gateway.start()
        code, out, err = await ended(process)
        assert (code, out, "lost" in err) == (0, b"done\n", False)


async def test_a_missing_parameter_is_named_as_one_and_not_as_an_option_that_nobody_used() -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("echo")]

        async def answer(data: JsonObject) -> Any:
            return {"code": 400, "message": 'params: "b" is a required property', "details": {"field": "params"}}

        gateway.answers["client:tool_call"] = answer
        code, _, err = await run(gateway, "call", "red", "echo", "a=1")
        assert code == 2
        assert err.startswith('error 400: params: "b" is a required property\n')


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["call", "red", "echo", "--params", "{x"], "--params"),
        (["call", "red", "echo", "--params", "[1]"], "--params"),
        (["call", "red", "echo", "--params", "[" * 100_000], "--params"),
        (["call", "red", "echo", "--timeout", "0"], "--timeout"),
        (["call", "red", "echo", "--timeout", "soon"], "--timeout"),
        (["call", "red", "echo", "--timeout", "nan"], "--timeout"),
        (["call", "red"], "TOOL"),
        (["desktop", "red", "--size", "-1"], "--size"),
        (["fly"], "fly"),
        ([], "Usage"),
        (["--office", "", "list"], "office"),
        (["--url", "nowhere", "list"], "url"),
        (["--name", "x" * 200, "list"], "name"),
        (["--name", "", "list"], "name"),
    ],
)
def test_wrong_usage_ends_with_2_and_names_the_option(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["--office", "office", "--url", "http://127.0.0.1:1", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


async def test_no_gateway_ends_with_1_and_says_what_to_do() -> None:
    async with fake_gateway() as gateway:
        url = gateway.url
    gateway = FakeGateway()
    code, out, err = await run(gateway, "--url", url, "call", "red", "echo")
    assert (code, out) == (1, "")
    assert "Connection refused" in err
    assert "smcp up" in err
    assert "trace" not in err


async def test_a_join_refused_for_now_is_unavailable_and_not_join_refused() -> None:
    async with fake_gateway() as gateway:
        gateway.refusal = "503 no registry answered"
        code, _, err = await run(gateway, "list")
        assert code == 1
        assert "error 503" in err
        assert "no registry answered" in err
