"""Results of MCP servers, as they go on to Agents."""

from typing import Any

import pytest

from smcp_agent.results import call_result
from smcp_proto.tool_results import with_meta as to_wire

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
