"""Who calls: what a Computer does for one holder of a token is not another's, and what `allow` and rights keep back."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from smcp_agent import Event, NotAllowed, NotFound, ResourcesChanged, SmcpAgent, ToolsChanged
from smcp_agent.errors import Malformed
from smcp_bus import subjects
from smcp_computer.computer import Computer
from smcp_computer.config.file import parse_config
from smcp_computer.gateway import open_gateway_computer
from smcp_computer.settings import ComputerSettings
from smcp_testing import issuer
from smcp_testing.computer_world import native_computer
from smcp_testing.gateway_world import Client, World, connected, gateway_world
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


@pytest.mark.parametrize("how", ["nats", "gateway"])
async def test_a_cancel_by_one_subject_does_not_keep_a_call_of_another_one_from_running(
    nats_url: str, how: str
) -> None:
    asked = request(tool_name="append", params={"mark": "secret"})
    async with office(nats_url, how, {"tools": configs.stdio()}) as (world, computer):
        async with holder(world, "anna") as anna:
            assert await anna.call("server:tool_call_cancel", {"agent": "anna", "req_id": "r1"}) is None
            await eventually(lambda: computer.owner.held()["kept_cancels"] == 1)
            assert (await anna.call("client:tool_call", asked))["meta"]["a2c_cancelled"]
        async with holder(world, "mallory") as mallory:
            assert (await mallory.call("client:tool_call", asked))["content"][0]["text"] == "secret"


def agent(world: World, subject: str, **allowed: Any) -> SmcpAgent:
    token = shared_token(SECRET, sub=subject, smcp={"offices": ["*"], **allowed})
    return SmcpAgent(world.url, office=OFFICE, name=subject, token=token)


@asynccontextmanager
async def office(nats_url: str, how: str, servers: dict[str, Any]) -> AsyncIterator[tuple[World, Computer]]:
    """A gateway that asks for tokens, and the Computer over NATS or over that gateway."""
    async with gateway_world(nats_url, settings=LOCKED) as world:
        if how == "nats":
            async with native_computer(world, OFFICE, NAME, servers) as computer:
                yield world, computer
        else:
            settings = ComputerSettings(gateway_url=world.url, config=Path("unused"), office=OFFICE, name=NAME)
            token, config = shared_token(SECRET, sub="holder of box"), parse_config(json.dumps({"servers": servers}))
            async with open_gateway_computer(settings, token=token, config=config, environ={}) as computer:
                await asyncio.wait_for(computer.wait_ready(), 60)
                yield world, computer


@asynccontextmanager
async def refused(field: str) -> AsyncIterator[None]:
    with pytest.raises(NotAllowed, match="this Computer does not let you use that MCP server") as error:
        yield
    assert error.value.details == {"field": field}


DESK = configs.context("2026", windows=1, documents=1, host="h")


@pytest.mark.rule("answers.who.allow")
@pytest.mark.parametrize("how", ["nats", "gateway"])
async def test_a_server_whose_allow_has_no_place_for_a_subject_is_not_there_for_it(nats_url: str, how: str) -> None:
    servers = {
        "tools": configs.stdio(),
        "desk": {**DESK, "allow": {"subjects": ["b*"]}},
        "away": configs.stdio(allow={"offices": ["another"]}, disabled=True),
    }
    async with office(nats_url, how, servers) as (world, _):
        async with agent(world, "bert") as bert:
            assert {"echo", "reads"} <= {tool.name for tool in await bert.tools(NAME)}
            assert (await bert.call_tool(NAME, "reads")).is_error is False
            assert len((await bert.get_desktop(NAME))["desktops"]) == 1
            (document,) = (await bert.get_finder(NAME))["documents"]
            assert set((await bert.get_config(NAME)).servers) == {"tools", "desk"}
            assert await bert.read_resource(NAME, document["uri"])
        async with agent(world, "anna") as anna:
            listed = {tool.name for tool in await anna.tools(NAME)}
            assert "echo" in listed
            assert "reads" not in listed
            assert (await anna.call_tool(NAME, "echo", {"text": "mine"})).text == "mine"
            for name in ("reads", "desk__reads"):
                async with refused("tool_name"):
                    await anna.call_tool(NAME, name)
            assert (await anna.get_desktop(NAME))["desktops"] == []
            assert (await anna.get_finder(NAME))["documents"] == []
            assert set((await anna.get_config(NAME)).servers) == {"tools"}
            assert {server.name for server in (await anna.get_status(NAME)).servers} == {"tools"}
            assert (await anna.list_resources(NAME))["resources"] == []
            with pytest.raises(NotFound):
                await anna.read_resource(NAME, document["uri"])
            with pytest.raises(NotFound, match=r"no MCP server 'dsek'$"):
                await anna.read_resource(NAME, document["uri"], server="dsek")
            for ask in (anna.read_resource, anna.subscribe_resource):
                async with refused("serverId"):
                    await ask(NAME, document["uri"], server="desk")


async def test_what_the_whole_office_hears_does_not_name_a_server_with_allow(nats_url: str) -> None:
    servers = {"tools": configs.stdio(), "desk": {**DESK, "allow": {"subjects": ["b*"]}}}
    async with office(nats_url, "nats", servers) as (world, computer), agent(world, "anna") as anna:
        heard: list[Event] = []
        anna.on_event(heard.append)
        said = [each.model_dump_json() for each in await anna.list_room()]
        computer.fleet.restart("desk")
        await eventually(lambda: any(isinstance(each, ResourcesChanged) for each in heard))
        assert not [each for each in [*said, *map(str, heard)] if "desk" in each]


async def test_a_call_of_an_unknown_tool_names_the_one_that_may_be_meant(nats_url: str) -> None:
    async with office(nats_url, "gateway", {"tools": configs.stdio()}) as (world, _), agent(world, "bert") as caller:
        for name, said in (("ehco", "; did you mean 'echo'?"), ("tools__nothing", "")):
            result = await caller.call_tool(NAME, name)
            assert (result.is_error, result.text) == (True, f"this Computer has no tool {name!r}{said}")


async def test_a_tool_that_does_not_run_is_a_result_and_what_is_wrong_with_the_call_is_raised(nats_url: str) -> None:
    servers = {"tools": configs.stdio(forbidden_tools=["add"])}
    async with office(nats_url, "nats", servers) as (world, _), agent(world, "bert") as caller:
        for name in ("nothing", "add", "fail"):
            assert (await caller.call_tool(NAME, name)).is_error, name
        with pytest.raises(Malformed):
            await caller.call_tool(NAME, "echo", {"text": 7})
        with pytest.raises(NotFound):
            await caller.call_tool("nobody", "echo")


async def test_the_error_about_an_unknown_tool_names_no_server_that_is_hidden_from_its_caller(nats_url: str) -> None:
    tools, ends = configs.stdio(), {"command": "true", "allow": {"subjects": ["b*"]}}
    async with (
        office(nats_url, "nats", {"tools": tools}) as (world, computer),
        agent(world, "anna") as anna,
    ):
        computer.fleet.apply(parse_config(json.dumps({"servers": {"tools": tools, "desk": ends}})))
        await eventually(computer.fleet.supervisors["desk"].settled.is_set)
        assert (await anna.call_tool(NAME, "nothing")).text == "this Computer has no tool 'nothing'"
        await anna.close()
        async with agent(world, "bert") as bert:
            assert "; not ready: 'desk' (" in (await bert.call_tool(NAME, "nothing")).text


@pytest.mark.rule("answers.who.allow")
async def test_a_forbidden_tool_of_a_server_that_is_hidden_from_a_caller_is_unknown_to_it(nats_url: str) -> None:
    desk = {**DESK, "allow": {"subjects": ["b*"]}, "forbidden_tools": ["reads", "add"]}
    servers = {"desk": desk, "tools": configs.stdio(forbidden_tools=["add"])}
    async with office(nats_url, "nats", servers) as (world, _):
        async with agent(world, "bert") as bert:
            for name in ("reads", "desk__reads", "add"):
                assert (await bert.call_tool(NAME, name)).forbidden
        async with agent(world, "anna") as anna:
            for name in ("reads", "desk__reads", "desk__nothing"):
                result = await anna.call_tool(NAME, name)
                assert (result.text, result.forbidden) == (f"this Computer has no tool {name!r}", False)
            assert (await anna.call_tool(NAME, "add")).forbidden


@pytest.mark.rule("answers.who.allow")
async def test_what_an_older_gateway_asks_for_gets_only_servers_without_allow(nats_url: str) -> None:
    servers = {"tools": configs.stdio(), "desk": {**DESK, "allow": {"subjects": ["*"]}}}
    async with office(nats_url, "nats", servers) as (world, _), world.bus("older gateway") as bus:

        async def ask(verb: str, **more: Any) -> Any:
            body = json.dumps(request(**more)).encode()
            return json.loads((await bus.request(subjects.client(OFFICE, NAME, verb), body, timeout=30)).body)

        names = {tool["name"] for tool in (await ask("get_tools"))["tools"]}
        assert "echo" in names
        assert "reads" not in names
        answer = await ask("tool_call", tool_name="reads", params={})
        assert (answer["code"], answer["details"]) == (403, {"field": "tool_name"})


@pytest.mark.rule("answers.who.rights")
@pytest.mark.parametrize("how", ["nats", "gateway"])
async def test_a_read_only_token_calls_no_tool_by_another_name_and_says_why(nats_url: str, how: str) -> None:
    servers = {"read_x": configs.stdio()}
    async with (
        office(nats_url, how, servers) as (world, _),
        agent(world, "anna", tools=["add", "echo", "read_*"], read_only=True) as anna,
    ):
        assert [tool.name for tool in await anna.tools(NAME)] == ["add"]
        assert [server.tools for server in (await anna.get_status(NAME)).servers] == [1]
        assert (await anna.call_tool(NAME, "add", {"a": 40, "b": 2})).structured_content == {"result": 42}
        with pytest.raises(NotAllowed, match="tools that only read"):
            await anna.call_tool(NAME, "echo", {"text": "x"})
        for other in ("read_x__sleep", "sleep"):  # the pattern means names as they are listed
            with pytest.raises(NotAllowed, match=r"the key or token (is|allows only)"):
                await anna.call_tool(NAME, other, {"seconds": 0})


@pytest.mark.rule("answers.who.rights")
@pytest.mark.parametrize("how", ["nats", "gateway"])
async def test_a_user_with_more_rights_does_not_widen_those_of_the_agent_that_calls_for_him(
    nats_url: str, how: str
) -> None:
    """A pattern of the Agent matches the name that is called, and not the name under which the tool is listed."""
    own = {"offices": ["*"], "delegates": True, "tools": ["tools__*"]}
    asked = request(tool_name="tools__append", params={"mark": "x"})
    async with (
        office(nats_url, how, {"tools": configs.stdio()}) as (world, computer),
        holder(world, "service", smcp=own) as service,
    ):
        for patterns in (["*"], ["append", "tools__*"]):
            user = {"identity": "a" * 32, "subject": "otto", "tools": patterns}
            answer = await service.call("client:tool_call", asked | {"a2c_on_behalf": user})
            assert (answer["code"], answer["details"]) == (403, {"field": "tool_name"})
        assert computer.owner.held()["kept_results"] == 0


async def test_a_changed_allow_is_announced_and_ends_subscriptions(nats_url: str) -> None:
    async with office(nats_url, "nats", {"desk": DESK}) as (world, computer), agent(world, "anna") as anna:
        (document,) = (await anna.get_finder(NAME))["documents"]
        await anna.subscribe_resource(NAME, document["uri"])
        heard: list[Event] = []
        anna.on_event(heard.append)
        closed = {"desk": {**DESK, "allow": {"subjects": ["bert"]}}}
        assert not computer.apply(parse_config(json.dumps({"servers": closed}))).started
        await eventually(lambda: any(isinstance(event, ToolsChanged) for event in heard))
        assert list(await anna.tools(NAME)) == []
        assert computer.resources.subscriptions.agents == frozenset()


@pytest.mark.rule("answers.who.allow")
async def test_a_call_that_waited_for_a_server_to_start_is_checked_then(nats_url: str) -> None:
    tools = configs.stdio()
    async with office(nats_url, "nats", {"tools": tools}) as (world, computer), agent(world, "anna") as anna:
        late = configs.stdio(allow={"subjects": ["bert"]})
        computer.apply(parse_config(json.dumps({"servers": {"tools": tools, "late": late}})))
        async with refused("tool_name"):
            await anna.call_tool(NAME, "late__echo", {"text": "x"})


async def test_an_approval_request_names_the_user_for_whom_the_agent_calls(nats_url: str) -> None:
    asked = request(tool_name="append", params={"mark": "x"})
    user = {"identity": "a" * 32, "subject": "otto"}
    async with (
        gateway_world(nats_url, settings=LOCKED) as world,
        native_computer(world, OFFICE, NAME, {"tools": configs.stdio()}, confirm="agent"),
        holder(world, "service", smcp={"offices": ["*"], "delegates": True}) as service,
    ):
        for more, who in (({"a2c_on_behalf": user}, "The user 'otto'"), ({"req_id": "r2"}, "The Agent 'anna'")):
            answer = await service.call("client:tool_call", asked | more)
            (approval,) = answer["meta"]["a2c_input_required"]["requests"].values()
            assert approval["params"]["message"].startswith(f"{who} wants to run 'append' of 'tools' with ")
