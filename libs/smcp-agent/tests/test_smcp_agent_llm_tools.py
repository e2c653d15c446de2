import re
import time
from hashlib import sha256
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from smcp_agent.llm import NamedTool, anthropic_tool, name_tools, openai_tool
from smcp_proto.schemas import SMCPTool

LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}")

TEXT = st.one_of(
    st.sampled_from(["a", "b", "a__b", "echo", "a__echo", "客厅", "x" * 64, "x" * 65, "a.b", "a b", "a_b"]),
    st.text(min_size=1, max_size=80),
)
ROOMS = st.dictionaries(TEXT, st.lists(TEXT, max_size=6, unique=True), max_size=5)


def tool(name: str, description: str = "does it", schema: dict[str, Any] | None = None) -> SMCPTool:
    return SMCPTool(name=name, description=description, params_schema=schema or {})


def named(**computers: list[str]) -> dict[tuple[str, str], str]:
    tools = {computer: [tool(name) for name in listed] for computer, listed in computers.items()}
    return {(each.computer, each.tool.name): each.name for each in name_tools(tools)}


@given(ROOMS, st.randoms())
def test_names_are_legal_and_unique_and_do_not_depend_on_the_order(
    rooms: dict[str, list[str]], random: st.DataObject
) -> None:
    found = named(**rooms)
    assert set(found) == {(computer, each) for computer, tools in rooms.items() for each in tools}
    assert all(LEGAL.fullmatch(name) for name in found.values())
    assert len(set(found.values())) == len(found)
    backwards = {computer: list(reversed(tools)) for computer, tools in reversed(list(rooms.items()))}
    assert named(**backwards) == found


@given(ROOMS)
def test_a_legal_name_that_only_one_computer_has_is_kept(rooms: dict[str, list[str]]) -> None:
    found = named(**rooms)
    for (computer, name), given_name in found.items():
        if "__" in name:
            continue  # may look like the name of another Computer's tool
        alone = sum(name in tools for tools in rooms.values()) == 1
        digests = {each for pair, each in found.items() if each != pair[1]}
        if alone and LEGAL.fullmatch(name) and name not in digests:
            assert given_name == name, computer


def test_a_tool_that_two_computers_share_is_qualified_by_the_computer() -> None:
    assert named(red=["echo", "stop"], blue=["echo"]) == {
        ("blue", "echo"): "blue__echo",
        ("red", "echo"): "red__echo",
        ("red", "stop"): "stop",
    }


def test_no_tool_takes_the_name_of_another_computers_tool() -> None:
    assert named(red=["echo", "red__own"], blue=["echo"], green=["red__echo", "red__delete", "other__x"]) == {
        ("blue", "echo"): "blue__echo",
        ("red", "echo"): "red__echo",
        ("red", "red__own"): "red__own",
        ("green", "red__echo"): "green__red__echo",
        ("green", "red__delete"): "green__red__delete",
        ("green", "other__x"): "other__x",
    }


def test_a_qualified_name_that_another_tool_has_too_gets_a_hash() -> None:
    found = named(red=["echo", "red__echo"], blue=["echo"])
    assert found["red", "red__echo"] == "red__echo"
    assert found["blue", "echo"] == "blue__echo"
    assert re.fullmatch(r"red__echo_[0-9a-f]{8}", found["red", "echo"])


def test_a_tool_costs_little_more_to_name_among_hundreds_of_computers() -> None:
    began = time.process_time()
    named(red=[f"t{number}" for number in range(20_000)])
    of_one = time.process_time() - began
    named(**{f"pc{each}": [f"t{each}_{number}" for number in range(50)] for each in range(400)})
    assert time.process_time() - began - of_one < 5 * of_one


def test_a_computer_that_takes_each_name_of_its_own_tool_costs_one_look_at_each() -> None:
    digests = (sha256(("red\0echo" + "\0" * salt).encode()).hexdigest()[:8] for salt in range(8000))
    taken = [f"red__echo_{digest}" for digest in digests]
    began = time.process_time()
    found = named(red=["echo", "red__echo", *taken], blue=["echo"])
    assert time.process_time() - began < 2
    assert re.fullmatch(r"red__echo_[0-9a-f]{8}", found["red", "echo"])
    assert found["red", "echo"] not in taken


def test_the_description_names_the_computer_if_the_name_does_not() -> None:
    own = NamedTool("echo", "客厅", tool("echo", "Say it."))
    other = NamedTool("x_12345678", "客厅", tool("回声", "Say it."))
    assert own.description == "Say it."
    assert other.description == "[客厅: 回声] Say it."


def test_the_schemas_have_the_form_that_each_api_wants() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    (one,) = name_tools({"a": [tool("add", "Adds.", schema)]})
    function = {"name": "add", "description": "Adds.", "parameters": schema}
    assert openai_tool(one) == {"type": "function", "function": function}
    assert openai_tool(one, "responses") == {"type": "function", **function, "strict": False}
    assert anthropic_tool(one) == {"name": "add", "description": "Adds.", "input_schema": schema}


def test_a_schema_without_properties_gets_empty_ones_since_the_apis_insist() -> None:
    (one,) = name_tools({"a": [tool("now", schema={"additionalProperties": False})]})
    assert anthropic_tool(one)["input_schema"] == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }
