"""How Computers are: states of MCP servers, configuration, templates; and what a tool's metadata say."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from smcp_agent import SmcpAgent, auto_apply, tags, tool_meta
from smcp_agent.cli.main import app
from smcp_proto.schemas import SMCPTool, ToolMeta
from smcp_testing.agent_command import run
from smcp_testing.fake_gateway import FakeGateway, fake_gateway, tool
from smcp_testing.showing_computer import computer_at

JsonObject = dict[str, Any]
READY: JsonObject = {"name": "clock", "state": "ready", "reason": "", "since": 1.5, "restarts": 0, "tools": 0}
FAILED: JsonObject = {**READY, "name": "git", "state": "failed", "reason": "no such program: gti", "restarts": 2}


def says_its_status(gateway: FakeGateway, *servers: JsonObject, **more: str) -> None:
    async def answer(data: JsonObject) -> Any:
        if data["computer"] not in gateway.computers:
            return {"code": 404, "message": "no such Computer in this office", "details": {"computer": "?"}}
        return {"servers": list(servers), "req_id": data["req_id"], **more}

    gateway.answers["client:get_status"] = answer


async def test_an_empty_list_of_tools_says_why() -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = []
        says_its_status(gateway, READY, FAILED, config_problem="not JSON: line 3")
        why = (
            "clock is ready; git is failed: no such program: gti; "
            "its configuration file is not in use: not JSON: line 3"
        )
        assert await run(gateway, "tools", "red") == (0, b"", f"No tools: {why}.\n")
        _, out, _ = await run(gateway, "tools", "red", "--json")
        assert json.loads(out) == {"computer": "red", "tools": [], "why": why}
        async with SmcpAgent(gateway.url, office="office", name="bot") as agent:
            assert await agent.why_no_tools("red") == why
            says_its_status(gateway, FAILED, {**READY, "tools": 3})
            assert await agent.why_no_tools("red") == ""
            says_its_status(gateway)
            assert await agent.why_no_tools("red") == "it has no MCP servers"


async def test_a_computer_that_does_not_know_its_status_lists_no_tools_all_the_same() -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = []

        async def unknown(data: JsonObject) -> Any:
            return {"code": 503, "message": "this Computer does not know it", "details": {}}

        gateway.answers["client:get_status"] = unknown
        assert await run(gateway, "tools", "red") == (0, b"", "No tools.\n")


async def test_a_time_that_no_calendar_has_is_not_shown() -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = []
        says_its_status(gateway, {**READY, "since": 1e300})
        code, out, err = await run(gateway, "status")
        assert (code, "red/clock" in out.decode(), err) == (0, True, "")


async def test_status_shows_the_servers_of_all_computers_and_who_does_not_say() -> None:
    async with fake_gateway() as gateway:
        gateway.computers = {"red": [], "blue": []}
        says_its_status(gateway, READY, FAILED)
        code, out, err = await run(gateway, "status")
        assert (code, err) == (0, "")
        assert all(each in out.decode() for each in ("red/clock", "blue/git", "failed", "no such program: gti", "1970"))
        known = gateway.answers["client:get_status"]

        async def only_red(data: JsonObject) -> Any:
            late = {"code": 408, "message": "no answer in time", "details": {}}
            return await known(data) if data["computer"] == "red" else late

        gateway.answers["client:get_status"] = only_red
        code, out, err = await run(gateway, "status")
        assert (code, err) == (0, "blue: error 408: no answer in time\n")
        assert b"red/git" in out

        async def refused(data: JsonObject) -> Any:
            return {"code": 403, "message": "the key or token is not for this Computer", "details": {}}

        gateway.answers["client:get_status"] = refused
        _, _, err = await run(gateway, "status")
        assert "blue: error 403: the key or token is not for" in err
        gateway.answers["client:get_status"] = only_red
        code, out, _ = await run(gateway, "status", "red", "--json")
        assert (code, json.loads(out)) == (0, {"computers": [{"computer": "red", "servers": [READY, FAILED]}]})
        code, out, err = await run(gateway, "status", "blue")
        assert (code, out, err) == (1, b"", "error 408: no answer in time\n")


async def test_config_templates_and_complete_show_what_the_computer_answers() -> None:
    async with fake_gateway() as gateway:
        red = computer_at(gateway)
        code, out, _ = await run(gateway, "config", "red", "--json")
        assert (code, json.loads(out)) == (0, {"computer": "red", "inputs": None, "servers": {}})
        template = red.shelf.templates()[0]["uriTemplate"]
        code, out, _ = await run(gateway, "templates", "red")
        assert code == 0
        assert template in out.decode()
        code, out, _ = await run(gateway, "complete", "red", template, "doc_ref", "con")
        assert (code, out) == (0, b"contract-a1\n")
        chosen = ("--chosen", "doc_ref=rpt-2026", "--json")
        code, out, _ = await run(gateway, "complete", "red", template, "page_index", *chosen)
        assert code == 0
        assert json.loads(out)["completion"]["values"][:2] == ["0", "1"]
        assert red.seen("client:completion/complete")[-1]["payload"]["params"]["context"] == {
            "arguments": {"doc_ref": "rpt-2026"}
        }


def test_a_chosen_argument_without_a_value_is_wrong_usage() -> None:
    result = CliRunner().invoke(app, ["complete", "red", "x://{a}/{b}", "b", "--chosen", "a"])
    assert result.exit_code == 2
    assert "--chosen" in result.stderr


async def test_options_of_the_office_may_stand_behind_the_command() -> None:
    async with fake_gateway() as gateway:
        gateway.computers["red"] = []
        code, out, _ = await run(gateway, "list", "--json", "--office=lab", "--name", "me")
        assert (code, json.loads(out)["office_id"]) == (0, "lab")
        joined = gateway.seen("server:join_office")[-1]
        assert (joined["office_id"], joined["name"]) == ("lab", "me")
        code, out, _ = await run(gateway, "call", "red", "--timeout", "7", "echo", "--office", "lab", "--", "--name")
        assert code == 2, "what stands behind -- is an argument"


@pytest.mark.parametrize("written", [None, "", "no JSON", '{"tags": 1}', "[]"])
def test_metadata_that_are_missing_or_unreadable_say_nothing(written: str | None) -> None:
    meta = {} if written is None else {"a2c_tool_meta": written}
    found = SMCPTool.model_validate({**tool("t"), "meta": meta})
    assert (tool_meta(found), tags(found), auto_apply(found)) == (ToolMeta(), (), None)


async def test_a_model_gets_the_tools_with_a_tag() -> None:
    async with fake_gateway() as gateway:
        said = json.dumps({"auto_apply": True, "alias": None, "tags": ["browser"], "ret_object_mapper": None})
        gateway.computers["red"] = [{**tool("open"), "meta": {"a2c_tool_meta": said}}, tool("other")]
        async with SmcpAgent(gateway.url, office="office", name="bot") as agent:
            assert {each.name: auto_apply(each) for each in await agent.tools("red")} == {"open": True, "other": None}
            chosen = await agent.openai_tools("responses", tags=["browser"])
            assert [each["name"] for each in chosen] == ["open"]
