"""What a token allows an Agent at Computers on Socket.IO, which check nothing themselves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from smcp_testing import issuer
from smcp_testing.gateway_world import MIB, Client, connected, gateway_world
from smcp_testing.issuer import shared_token
from smcp_testing.socketio_pair import OFFICE, RESULT, serve

SECRET = "a shared secret of the tests, long enough"
READS = {"MCP_TOOL_ANNOTATION": '{"readOnlyHint": true}'}
TOOLS: list[dict[str, Any]] = [
    {"name": "read_a", "description": "", "params_schema": {}, "return_schema": None, "meta": READS},
    {"name": "read_b", "description": "", "params_schema": {}, "return_schema": None},
    {"name": "drop", "description": "", "params_schema": {}, "return_schema": None, "meta": READS},
]


def auth(subject: str, **more: Any) -> dict[str, str]:
    return {"token": shared_token(SECRET, sub=subject, smcp={"offices": ["*"], **more})}


@asynccontextmanager
async def office(
    nats_url: str, *, max_message: int = 4 * MIB, **allowed: Any
) -> AsyncIterator[tuple[Client, dict[str, list[dict[str, Any]]]]]:
    """An Agent with these rights on another replica than its Computers `box` and `other`; and what those were asked."""
    settings = issuer.settings(auth_secret=SECRET)
    asked: dict[str, list[dict[str, Any]]] = {}
    listed = list(TOOLS)
    async with AsyncExitStack() as opened:
        world = await opened.enter_async_context(gateway_world(nats_url, gateways=2, settings=settings))
        for name in ("box", "other"):
            client = await opened.enter_async_context(connected(world.gateways[1].url, auth=auth(name)))

            async def tools(request: dict[str, Any]) -> Any:
                await asyncio.sleep(0)
                more = [{"name": "large", "description": "x" * MIB}] if "large" in request else []
                return {"tools": listed + more, "req_id": request["req_id"]}

            async def config(_: dict[str, Any]) -> Any:
                return {"servers": {"files": {"tool_meta": {"drop": {}, "read_a": {}}, "forbidden_tools": ["rm"]}}}

            async def run(_: dict[str, Any]) -> Any:
                return RESULT

            async def resources(request: dict[str, Any], name: str = name) -> Any:
                result = {"resources": [{"uri": f"file:///{name}", "name": name}]}
                return {**request, "payload": {"jsonrpc": "2.0", "id": request["payload"]["id"], "result": result}}

            asked[f"{name}: tools"] = serve(client, "client:get_tools", tools)
            serve(client, "client:get_config", config)
            serve(client, "client:resources/list", resources)

            async def renamed(request: dict[str, Any], client: Client = client, name: str = name) -> Any:
                listed.append({**TOOLS[0], "name": "read_new", "description": request.get("description", "")})
                assert await client.call("server:update_tool_list", {"computer": name}) is None
                return {}

            serve(client, "client:rename", renamed)
            asked[name] = serve(client, "client:tool_call", run)
            assert await client.join("computer", name, OFFICE) == [True, None]
        anna = await opened.enter_async_context(
            connected(world.url, auth={**auth("anna", **allowed), "max_message": max_message})
        )
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        yield anna, asked


def ask(computer: str = "box", **more: Any) -> dict[str, Any]:
    return {"agent": "anna", "req_id": more.get("tool_name", "q"), "computer": computer, **more}


def call(tool: str, computer: str = "box") -> dict[str, Any]:
    return ask(computer, tool_name=tool, params={}, timeout=30)


def refusal(answer: Any) -> tuple[int, dict[str, Any]]:
    return answer["code"], answer["details"]


@pytest.mark.rule("answers.who.rights", "answers.who.rights.listed")
@pytest.mark.parametrize(
    ("allowed", "names"),
    [
        ({"tools": ["read_*"]}, ["read_a", "read_b"]),
        ({"read_only": True}, ["read_a", "drop"]),
        ({"tools": ["read_*"], "read_only": True}, ["read_a"]),
    ],
)
async def test_a_tool_that_the_token_is_not_for_is_not_listed_and_403_when_called(
    nats_url: str, allowed: dict[str, Any], names: list[str]
) -> None:
    async with office(nats_url, **allowed) as (anna, asked):
        listed = await anna.call("client:get_tools", ask())
        assert [tool["name"] for tool in listed["tools"]] == names
        for tool in ("read_a", "read_b", "drop", "read_alias", "files__read_a"):
            answer = await anna.call("client:tool_call", call(tool))
            if tool in names:
                assert answer == RESULT
            else:
                assert refusal(answer) == (403, {"field": "tool_name"})
        assert [request["tool_name"] for request in asked["box"]] == names
        assert not [request for request in asked["box"] if "a2c_caller" in request]
        if "tools" in allowed:
            server = (await anna.call("client:get_config", ask()))["servers"]["files"]
            assert (list(server["tool_meta"]), server["forbidden_tools"]) == ([], [])


async def test_a_list_that_is_larger_than_its_agent_takes_is_413_before_it_is_read(nats_url: str) -> None:
    async with office(nats_url, max_message=MIB, tools=["read_a"]) as (anna, _):
        listed = await anna.call("client:get_tools", ask(large=True))
        assert (listed["code"], listed["details"]["limit"]) == (413, MIB)


@pytest.mark.rule("answers.who.rights", "answers.who.rights.listed")
async def test_a_computer_that_the_token_is_not_for_is_403_for_every_event_and_in_no_list(nats_url: str) -> None:
    async with office(nats_url, computers=["b*"]) as (anna, asked):
        envelope = {"roomId": OFFICE, "payload": {"jsonrpc": "2.0", "id": 1, "method": "resources/list"}}
        page = await anna.call("client:resources/list", envelope)
        assert [item["name"] for item in page["payload"]["result"]["resources"]] == ["box"]
        assert "nextCursor" not in page["payload"]["result"]
        for event in ("get_tools", "get_config", "get_desktop", "get_finder", "get_status", "get_resources", "later"):
            for computer in ("other", "nobody"):
                answer = await anna.call(f"client:{event}", ask(computer))
                assert refusal(answer) == (403, {"field": "computer"}), event
        assert refusal(await anna.call("client:tool_call", call("read_a", "other"))) == (403, {"field": "computer"})
        answer = await anna.call("client:resources/list", {**envelope, "computerId": "other"})
        assert refusal(answer) == (403, {"field": "computerId"})
        assert await anna.call("client:tool_call", call("read_a")) == RESULT
        assert asked["other"] == []


async def test_a_computer_that_is_not_in_the_office_is_named_for_every_event(nats_url: str) -> None:
    envelope = {"roomId": OFFICE, "payload": {"jsonrpc": "2.0", "id": 1, "method": "resources/list"}}
    async with office(nats_url) as (anna, _):
        for event in ("get_tools", "get_config", "get_desktop", "get_finder", "get_status", "later"):
            assert (await anna.call(f"client:{event}", ask("bxo")))["message"].endswith(": 'bxo'"), event
        for answer in (
            await anna.call("client:tool_call", call("read_a", "Otehr")),
            await anna.call("client:resources/list", {**envelope, "computerId": "Otehr"}),
        ):
            assert answer["message"] == "no such Computer in this office: 'Otehr'"
            assert refusal(answer) == (404, {"computer": "Otehr"})


@pytest.mark.rule("answers.who.rights")
@pytest.mark.parametrize("patterns", [["*"], ["*drop"], None])
async def test_an_agent_calls_no_tool_for_a_user_that_it_may_not_call_itself(
    nats_url: str, patterns: list[str] | None
) -> None:
    """Its pattern matches a name that the Computer takes, and not the name under which the tool is listed."""
    async with office(nats_url, delegates=True, tools=["files__*"]) as (service, asked):
        user = {"identity": "a" * 32, "subject": "otto"} | ({} if patterns is None else {"tools": patterns})
        answer = await service.call("client:tool_call", call("files__drop") | {"a2c_on_behalf": user})
        assert refusal(answer) == (403, {"field": "tool_name"})
        assert asked["box"] == []


async def test_a_computer_is_asked_for_its_tools_once_until_it_says_that_they_changed(nats_url: str) -> None:
    async with office(nats_url, tools=["read_*"], read_only=True) as (anna, asked):
        for number in range(3):
            assert await anna.call("client:tool_call", call("read_a") | {"req_id": str(number)}) == RESULT
            assert refusal(await anna.call("client:tool_call", call("read_b"))) == (403, {"field": "tool_name"})
        assert len(asked["box: tools"]) == 1
        await anna.call("client:rename", ask())
        assert await anna.call("client:tool_call", call("read_new")) == RESULT
        assert await anna.call("client:tool_call", call("read_a") | {"req_id": "again"}) == RESULT
        assert len(asked["box: tools"]) == 2


async def test_a_list_above_1_mib_is_not_kept_by_the_gateway(nats_url: str) -> None:
    async with office(nats_url, tools=["read_*"]) as (anna, asked):
        for _ in range(2):
            await anna.call("client:rename", ask(description="x" * (MIB // 2)))
        for number in range(2):
            assert await anna.call("client:tool_call", call("read_new") | {"req_id": str(number)}) == RESULT
        assert len(asked["box: tools"]) == 2
