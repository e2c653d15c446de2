"""The examples of the guide about reshaping results."""

import json
from typing import Any, Final

import pytest

from smcp_computer.reshaping import TRANSFORMED, Results, mapper_problems, vrl_problem
from tests.pages.markdown import ROOT, blocks

GUIDE: Final = ROOT / "docs" / "guides" / "reshape-results.md"
EXAMPLES: Final = [json.loads(block.text) for block in blocks(GUIDE) if block.language == "json"]


@pytest.fixture
def results() -> Results:
    return Results(run_s=60)


@pytest.mark.rule("data-structures.{ToolMeta.ret_object_mapper.meaning,BaseMCPServerConfig.vrl.meaning}")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: ",".join(example.get("mapper", ["vrl"])))
async def test_an_example_of_the_guide_comes_out_as_it_says(example: dict[str, Any], results: Results) -> None:
    mapper, vrl, returned = example.get("mapper"), example.get("vrl"), example["returned"]
    assert not list(mapper_problems(mapper or {}, "ret_object_mapper"))
    assert vrl is None or vrl_problem(vrl) is None
    result = {"content": [{"type": "text", "text": json.dumps(returned)}], "isError": False}
    if isinstance(returned, dict):
        result["structuredContent"] = returned
    before = json.dumps(result)
    params = {"query": "socks"}
    made = await results.reshaped(result, mapper=mapper, vrl=vrl, replace=False, tool="search", params=params)
    assert json.loads(made["meta"][TRANSFORMED]) == example["outcome"]
    assert json.dumps({key: made[key] for key in result}) == before
