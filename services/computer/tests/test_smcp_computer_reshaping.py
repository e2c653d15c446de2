"""Results of MCP servers, as they go on to Agents."""

import asyncio
import json
import re
from typing import Any

import pytest

from smcp_agent.results import call_result
from smcp_computer.config.file import parse_config
from smcp_computer.config.lint import ConfigError
from smcp_computer.reshaping import MAX_BYTES, NotReshaped, Results, mapped
from smcp_proto.tool_results import with_meta as to_wire
from smcp_testing.computer_office import world
from smcp_testing.mcp_servers import configs

OURS = {"a2c_timeout": True, "a2c_cancelled": True, "a2c_forbidden": True, "a2c_result_expired": True}


@pytest.mark.rule("answers.calls.result.a2c-keys")
@pytest.mark.parametrize(
    ("said", "meta"),
    [
        ({"_meta": {**OURS, "x": 1}}, {"x": 1}),
        ({"meta": {**OURS, "x": 1}}, {"x": 1}),
        ({"meta": {**OURS, "x": 1, "y": 1}, "_meta": {**OURS, "x": 2}}, {"x": 2, "y": 1}),
        ({"meta": OURS, "_meta": None}, {}),
    ],
)
def test_an_mcp_server_cannot_set_the_computers_result_meta(said: dict[str, Any], meta: dict[str, Any]) -> None:
    wire = to_wire({"content": [], "isError": True, **said})
    assert wire == {"content": [], "isError": True, "meta": meta}
    result = call_result(wire, req_id="r", trace_id="t", duration_s=0)
    assert {result.timed_out, result.cancelled, result.forbidden, result.expired} == {False}


@pytest.fixture
def results() -> Results:
    return Results(run_s=60)


def returned(value: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": json.dumps(value)}], "structuredContent": value, **more}


async def reshaped(results: Results, result: dict[str, Any], **settings: Any) -> dict[str, Any]:
    given = {"mapper": None, "vrl": None, "replace": False, "tool": "t", "params": {}, **settings}
    return await results.reshaped(result, **given)


@pytest.mark.rule("computer.manager.call.mapper", "answers.tools.results.order", "answers.tools.results.vrl")
async def test_the_mapper_is_first_then_the_script_and_the_content_stays(results: Results) -> None:
    result = returned({"a": 1}, meta={"mine": 1})
    made = await reshaped(results, result, mapper={"a": "b"}, vrl='. = {"c": .structuredContent.b}')
    assert made == {**result, "meta": {"mine": 1, "a2c_vrl_transformed": '{"c":1}'}}


@pytest.mark.rule("answers.tools.results.replace")
async def test_the_outcome_replaces_the_content_where_it_is_set(results: Results) -> None:
    made = await reshaped(results, returned({"a": 1}), mapper={"a": "b"}, replace=True)
    assert made == {"content": [{"type": "text", "text": '{"b":1}'}], "structuredContent": {"b": 1}}
    listed = {"content": [{"type": "text", "text": '[{"a": 1}]'}], "isError": False}
    made = await reshaped(results, listed, mapper={"a": "b"}, replace=True)
    assert made == {"content": [{"type": "text", "text": '[{"b":1}]'}], "isError": False}
    script = ".content[0].text = upcase(string!(.content[0].text))\ndel(.structuredContent)"
    made = await reshaped(results, returned({"a": 1}), vrl=script, replace=True)
    assert made == {"content": [{"type": "text", "text": '{"A": 1}'}]}


@pytest.mark.parametrize(
    "result",
    [
        returned({"a": 1}, isError=True),
        {"content": [{"type": "text", "text": "no JSON"}]},
        {"content": [{"type": "text", "text": "1"}]},
        {"content": [{"type": "text", "text": "{}"}, {"type": "text", "text": "{}"}]},
        {"content": [{"type": "image", "data": "", "mimeType": "image/png"}]},
        {"content": []},
    ],
)
async def test_a_result_without_an_object_and_a_failed_one_are_not_mapped(
    result: dict[str, Any], results: Results
) -> None:
    assert await reshaped(results, result, mapper={"a": "b"}, replace=True) == result


def test_mapping_changes_nothing_of_what_the_server_sent() -> None:
    value = {"a": {"b": {"c": 1}}, "d": [{"e": 1}]}
    before = json.dumps(value)
    assert mapped(value, {"a.b.c": "x.y", "d": {"e": "f"}}) == {"a": {"b": {}}, "x": {"y": 1}, "d": [{"f": 1}]}
    assert json.dumps(value) == before


async def test_a_script_that_fails_is_told_without_the_content(results: Results) -> None:
    failures = {
        ".x = to_float!(.structuredContent.secret)": 'the script failed: function call error for "to_float" at (5:41)',
        "abort": "the script failed: aborted",
        '.x = get_env_var!("PATH")': 'the script failed: function call error for "get_env_var" at (5:25)',
    }
    for script, why in failures.items():
        with pytest.raises(NotReshaped) as raised:
            await reshaped(results, returned({"secret": "s3cret"}), vrl=script)
        assert str(raised.value) == why
    assert (await reshaped(results, returned({}), vrl=". = 1"))["meta"] == {"a2c_vrl_transformed": "1"}


async def test_a_script_that_takes_too_long_is_ended() -> None:
    pool = Results(run_s=0.1)
    nested = "for_each(array!(.l)) -> |_, v| { for_each(array!(.l)) -> |_, v| { x = sha3(string!(.t)) } }"
    with pytest.raises(NotReshaped, match=r"did not end within 0\.1 s"):
        await pool.run(nested, {"t": "a" * 10_000, "l": [0] * 10_000})


async def test_a_script_that_gets_or_gives_too_much_fails_and_the_next_one_runs() -> None:
    pool = Results(run_s=60, max_bytes=100_000)
    with pytest.raises(NotReshaped, match="more than 100000 bytes"):
        await pool.run(".", {"t": "a" * 100_000})
    with pytest.raises(NotReshaped, match="gave too much"):
        await pool.run(". = [.t, .t, .t, .t]", {"t": "a" * 30_000})
    assert await pool.run(". = 1", {}) == 1


@pytest.mark.parametrize(("doublings", "memory"), [(31, 400_000_000), (24, 1_000_000_000)], ids=["memory", "output"])
async def test_a_script_that_takes_too_much_memory_or_gives_too_much_fails_and_the_next_one_runs(
    doublings: int, memory: int
) -> None:
    script = (
        "s = string!(.t)\nfor_each(array!(.l)) -> |_, v| { s = s + s }\n. = if length(s) > 20000000 { 1 } else { s }"
    )
    pool = Results(run_s=60, memory=memory)
    with pytest.raises(NotReshaped, match=r"took too much memory|gave too much|the script failed"):
        await pool.run(script, {"t": "a", "l": [0] * doublings})
    assert await pool.run(". = 1", {}) == 1


async def test_a_regular_expression_that_backtracks_elsewhere_and_a_million_items_do_no_harm() -> None:
    pool = Results(run_s=60)
    assert await pool.run(". = match(string!(.t), r'^(a+)+$')", {"t": "a" * 100_000 + "b"}) is False
    count = "x = 0\nfor_each(array!(.l)) -> |_, v| { x = x + 1 }\n. = x"
    assert await pool.run(count, {"l": [0] * 1_000_000}) == 1_000_000


async def test_others_are_answered_while_a_result_of_several_megabytes_is_mapped(results: Results) -> None:
    order: list[str] = []

    async def another_call() -> None:
        order.append("another call")

    large = returned({"items": [{"a": number} for number in range(100_000)]})
    task = asyncio.create_task(another_call())
    made = await reshaped(results, large, mapper={"items": {"a": "b"}})
    order.append("mapped")
    assert order == ["another call", "mapped"]
    assert made["meta"]["a2c_vrl_transformed"].startswith('{"items":[{"b":0},{"b":1},')
    await task


async def test_a_result_that_is_too_large_to_be_mapped_is_told(results: Results) -> None:
    with pytest.raises(NotReshaped, match="more than 4194304 bytes"):
        await reshaped(results, returned({"a": "x" * MAX_BYTES}), mapper={"a": None})


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        ({"vrl": ".a = 1\n.b = "}, "mcpServers.box.vrl: is not valid VRL: line 2, column 5: syntax error"),
        ({"vrl": ".a = " + "[" * 3000 + "]" * 3000}, "mcpServers.box.vrl: is too large, or nested too deeply"),
        ({"vrl": "foo"}, "mcpServers.box.vrl: is not valid VRL: line 1, column 1: call to undefined variable"),
        (
            {"tool_meta": {"t": {"ret_object_mapper": {"a": {"b": 1}}}}},
            "mcpServers.box.tool_meta.t.ret_object_mapper.a.b: must be the field's new name, null, or an object",
        ),
        (
            {"default_tool_meta": {"ret_object_mapper": {"a": "b..c"}}},
            "mcpServers.box.default_tool_meta.ret_object_mapper.a: must be the field's new name, null, or an object",
        ),
    ],
)
def test_a_broken_mapper_or_script_is_an_error_of_the_file(server: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        parse_config(json.dumps({"mcpServers": {"box": {"command": "x", **server}}}))


async def test_a_result_reaches_its_agent_reshaped_or_marked(nats_url: str) -> None:
    mapper = {"add": {"ret_object_mapper": {"result": "sum"}}}
    plain = configs.stdio(tool_meta=mapper, forbidden_tools=["echo"])
    scripted = configs.stdio(vrl='. = {"n": to_int!(.parameters.text)}', forbidden_tools=["add"])
    async with world(nats_url, {"vrl_s": 60}, a=plain, b=scripted) as here:
        assert (await here.call("add", a=1, b=2))["meta"]["a2c_vrl_transformed"] == '{"sum":3}'
        assert (await here.call("echo", req_id="2", text="7"))["meta"]["a2c_vrl_transformed"] == '{"n":7}'
        failed = await here.call("echo", req_id="3", text="seven")
        assert failed["meta"]["a2c_vrl_failed"] is True
        assert failed["content"] == [{"type": "text", "text": "seven"}]
