"""Results that the Computer's side says in a tool's place."""

from typing import Any

import pytest

from smcp_proto.schemas import CallToolResult
from smcp_proto.tool_results import asked_for, cancelled, expired, failed, timed_out, with_meta


def said(result: dict[str, Any]) -> str:
    """The one text of a result of a tool that failed."""
    CallToolResult.model_validate(result)
    (block,) = result["content"]
    assert block.keys() == {"type", "text"}
    assert block["type"] == "text"
    assert result["isError"] is True
    assert isinstance(block["text"], str)
    return block["text"]


def test_a_failed_tool_is_a_result_whose_text_says_why() -> None:
    result = failed("the server 'git' went away")
    assert said(result) == "the server 'git' went away"
    assert result.keys() == {"content", "isError"}  # nothing for programs where there is nothing to say


def test_a_failed_tools_reason_is_in_the_meta() -> None:
    result = failed("no", a2c_timeout=True, a2c_not_confirmed=True)
    assert result.keys() == {"content", "isError", "meta"}
    assert result["meta"] == {"a2c_timeout": True, "a2c_not_confirmed": True}


def test_a_tool_that_was_stopped_at_its_time_out_is_marked_and_named_with_its_time() -> None:
    result = timed_out("git_log", 4.5)
    assert result["meta"] == {"a2c_timeout": True}
    assert "'git_log'" in said(result)
    assert said(result).endswith(" 5 s")


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.0, "1 s"), (0.9, "1 s"), (1.0, "1 s"), (1.8, "2 s"), (2.0, "2 s"), (3599.5, "3600 s")]
)
def test_a_time_out_message_gives_the_agents_whole_seconds(seconds: float, words: str) -> None:
    assert asked_for(seconds) == words


def test_a_call_that_was_cancelled_is_marked_and_named_where_its_tool_is_known() -> None:
    assert cancelled("git_log")["meta"] == cancelled()["meta"] == {"a2c_cancelled": True}
    assert said(cancelled("git_log")) == "the call of 'git_log' was cancelled"
    assert said(cancelled()) == "the call was cancelled"


def test_a_repeat_of_an_expired_result_is_marked_as_not_run_again() -> None:
    result = expired()
    assert result["meta"] == {"a2c_result_expired": True}
    assert said(result).endswith("it was not run again")


@pytest.mark.parametrize(
    ("result", "ours", "wire"),
    [
        ({"isError": False}, False, {"isError": False}),
        ({"_meta": {"x": 1, "a2c_x": 1}, "n": [1]}, False, {"n": [1], "meta": {"x": 1}}),
        ({"_meta": {"x": 1, "a2c_x": 1}}, True, {"meta": {"x": 1}}),
        ({"meta": {"x": 1, "a2c_x": 1}}, False, {"meta": {"x": 1}}),
        ({"meta": {"x": 1, "a2c_x": 1}}, True, {"meta": {"x": 1, "a2c_x": 1}}),
        ({"meta": {"x": 1, "y": 1}, "_meta": {"y": 2, "z": 3}}, True, {"meta": {"x": 1, "y": 2, "z": 3}}),
        ({"_meta": None}, False, {}),
        ({"meta": "x", "_meta": {}}, True, {"meta": {}}),
        ({"meta": "x", "_meta": [1]}, False, {"meta": "x"}),
        ({"a2c_x": 1}, False, {"a2c_x": 1}),
    ],
)
def test_an_mcp_servers_underscore_meta_becomes_meta_without_our_marks(
    result: dict[str, Any], ours: bool, wire: dict[str, Any]
) -> None:
    before = {key: dict(value) if isinstance(value, dict) else value for key, value in result.items()}
    assert with_meta(result, ours=ours) == wire
    assert result == before
    if not ours:
        assert with_meta(result) == wire
