"""What a key or token allows at Computers, as gateways check it and as they tell it."""

import json
import time
from functools import partial
from typing import Any

import pytest

from smcp_bus import callers, subjects
from smcp_bus.callers import Caller, Rights, check_listed, read_only_hints, without_tools
from smcp_bus.subjects import route
from smcp_proto.errors import NotAllowed
from smcp_proto.schemas.tools import OnBehalf
from smcp_testing.waiting import steps

READS, WRITES = '{"readOnlyHint": true}', '{"readOnlyHint": false}'


def tool(name: str, annotation: Any = None) -> dict[str, Any]:
    return {"name": name, "description": "", "meta": {} if annotation is None else {"MCP_TOOL_ANNOTATION": annotation}}


TOOLS = [tool("read_a", READS), tool("read_b", WRITES), tool("read_c"), tool("drop", READS), tool("read_d", "{")]


@pytest.mark.parametrize(
    ("allowed", "names"),
    [
        ({}, ["read_a", "read_b", "read_c", "drop", "read_d"]),
        ({"tools": ("read_*",)}, ["read_a", "read_b", "read_c", "read_d"]),
        ({"read_only": True}, ["read_a", "drop"]),
        ({"tools": ("read_?", "x"), "read_only": True}, ["read_a"]),
    ],
)
async def test_a_list_has_the_tools_that_may_be_called(allowed: dict[str, Any], names: list[str]) -> None:
    given = Rights(holder="anna", **allowed)
    body = json.dumps({"tools": TOOLS, "req_id": "r"}).encode()
    answer = json.loads(await without_tools(given, "client:get_tools", body))
    assert [each["name"] for each in answer["tools"]] == names
    assert answer["req_id"] == "r"
    hints = await read_only_hints(body)
    for each in TOOLS:
        if each["name"] in names:
            check_listed(given, hints, each["name"])
        else:
            with pytest.raises(NotAllowed) as refused:
                check_listed(given, hints, each["name"])
            assert refused.value.details == {"field": "tool_name"}


@pytest.mark.parametrize("pad", ["", "x" * 300], ids=["short tools", "long tools"])
async def test_a_large_list_of_tools_holds_the_loop_for_short_steps(pad: str) -> None:
    body = json.dumps({"tools": [{"name": f"tool{number}", "d": pad} for number in range(20_000)]}).encode()
    given = Rights(holder="anna", tools=tuple(f"get_{number}_*" for number in range(20)))
    began = time.thread_time()
    sum(given.may_name(tool["name"]) for tool in json.loads(body)["tools"])
    at_once = time.thread_time() - began
    for read in (partial(without_tools, given, "client:get_tools"), read_only_hints):
        took = [steps(read(body))[1] for _ in range(3)]
        assert max(map(min, zip(*took, strict=True))) < at_once / 3


@pytest.mark.parametrize("listed", [TOOLS, [], None, [5, {"name": 5}]])
async def test_a_tool_that_is_not_listed_may_not_be_called(listed: Any) -> None:
    hints = await read_only_hints(json.dumps({"tools": listed}).encode())
    with pytest.raises(NotAllowed):
        check_listed(Rights(holder="anna", tools=("*", "x")), hints, "box__read_a")


@pytest.mark.parametrize("allowed", [{"tools": ("read_*",)}, {"read_only": True}])
async def test_a_configuration_names_no_tools_to_who_may_not_call_all_of_them(allowed: dict[str, Any]) -> None:
    """It has their original names, and rights are for the names that are listed."""
    server = {"type": "stdio", "tool_meta": {"drop": {"alias": "read_all"}}, "forbidden_tools": ["rm", "read_x"]}
    body = json.dumps({"servers": {"box": server, "other": {"type": "sse"}}}).encode()
    shown = json.loads(await without_tools(Rights(holder="a", **allowed), "client:get_config", body))["servers"]
    assert shown == {"box": {"type": "stdio", "tool_meta": {}, "forbidden_tools": []}, "other": {"type": "sse"}}


@pytest.mark.parametrize("user", [{}, {"tools": ["*"]}, {"tools": ["d*", "read_a"]}])
async def test_a_call_for_a_user_is_limited_by_both_lists_of_tools(user: dict[str, Any]) -> None:
    own = Rights(holder="service", tools=("read_*",))
    at_gateway = Caller(role="agent", rights=own.narrowed(OnBehalf(identity="a" * 32, subject="otto", **user)))
    both = callers.from_headers(callers.to_headers(at_gateway), "lab").rights
    assert both is not None
    assert both.restricts_tools
    hints = await read_only_hints(json.dumps({"tools": TOOLS}).encode())
    check_listed(both, hints, "read_a")
    with pytest.raises(NotAllowed):
        check_listed(both, hints, "drop")


@pytest.mark.parametrize("key", ["own key", None])
def test_rights_arrive_at_a_computer_by_header_and_field_as_they_were(key: str | None) -> None:
    given = Rights(holder="anna 深", computers=("box",), tools=("read_*",), read_only=True)
    at_gateway = Caller(role="agent", office="lab", name="anna", session="s", subject="f00", rights=given)
    headers = callers.to_headers(at_gateway)
    assert all(value.isascii() for value in headers.values())
    told = callers.from_headers(headers, "lab")
    assert told == Caller(
        role="agent", office="lab", subject="f00", rights=given.model_copy(update={"computers": ("*",)})
    )
    traced = {"traceparent": "of the gateway", "tracestate": "smcp=7"}
    said = {"agent": "anna", "a2c_caller": "forged", "traceparent": "of the Agent"}
    request = callers.with_caller(said, told, key, traced)
    assert request["traceparent"] == "of the gateway"
    assert callers.with_caller(said, told, key)["traceparent"] == "of the Agent"
    if key is None:
        assert request["a2c_caller"] == "forged", "a Computer without a key is told nothing, and believes nothing"
        assert callers.with_caller({"agent": "anna"}, told, key, traced) == {"agent": "anna"}
    believed = (told, traced) if key else (Caller(role="agent", office="lab"), {})
    assert callers.from_request(request, "lab", "own key") == believed


@pytest.mark.parametrize("text", ["", "{", "[]", '{"tools": ["*"]}', '{"holder": "a", "tools": "*"}'])
def test_rights_that_cannot_be_read_allow_nothing(text: str) -> None:
    _, caller = route(subjects.client("lab", "box", "tool_call"), {"Smcp-Rights": text})
    read = caller.rights
    assert read is not None
    assert not read.may_ask("box")
    assert not read.may_name("add")
    assert read.restricts_tools
