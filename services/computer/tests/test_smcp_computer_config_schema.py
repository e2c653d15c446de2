"""The JSON Schema of a configuration file: it takes what is read without a mistake, and has editors mark mistakes."""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

import jsonschema_rs
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from smcp_computer.config.file import parse_config
from smcp_computer.config.lint import ConfigError
from smcp_testing.profiles import scaled

SCHEMA: Final = jsonschema_rs.validator_for(
    json.loads((files("smcp_computer") / "config" / "schema.json").read_text(encoding="utf-8"))
)
ODD: Final[Sequence[Any]] = (None, True, 0, -1, 1.5, "x", "", [], ["x"], [1], {}, {"x": "y"}, {"x": 1}, {"x": None})
"""Right for some fields, and wrong for others."""
DURATIONS: Final = ("PT5S", "P1DT2H", "P1,5W", "${env:T}", "P1Y", "PT", "P0D", "5")
MAPPERS: Final = ({"a": "b.c", "d": None, "e": {"f": "g"}}, {"a": "b..c"}, {"a": {"b": 2}})
OF_SERVER: Final[Mapping[str, Sequence[Any]]] = {
    "disabled": (True, "true"),
    "forbidden_tools": (["x"],),
    "tool_meta": [
        {"t": {"alias": "n", "tags": ["a"], "auto_apply": True}},
        {"t": {"x": 1}},
        *({"t": {"ret_object_mapper": mapper}} for mapper in MAPPERS),
    ],
    "default_tool_meta": ({"tags": ["a"]}, {"alias": "x"}, {"alias": None}),
    "vrl": (".a = 1",),
    "zzz": (),
}
OF_HOST: Final[Mapping[str, Sequence[Any]]] = {
    "env_file": (".env",),
    "confirm": ({"deny": ["x"], "destructive": "ask"}, {"default": "no"}, {"default": None}),
    "unchecked_tools": (["*"],),
    "replace_content": (True, "true"),
    "user": ("u",),
    "environment": (["A"],),
    "limits": ({"cpu_s": 1, "files": None}, {"cpu_s": 0}, {"cpu_s": "5"}, {"cpu_s": True}),
    "cgroup": ({"memory_mb": 1, "cpus": 0.5}, {"cpus": 1}, {"cpus": 0}, {"cpus": True}, {"cpus": "1"}),
    "sandbox": ({"network": True, "read": ["/a", "~/b"]}, {"read": ["a"]}, {"network": 1}),
}
OF_PROGRAM: Final[Mapping[str, Sequence[Any]]] = {
    "args": (["a", "b"],),
    "env": ({"A": "b"}, {"A": 1}, {"A": None}, {"A": True}),
    "cwd": ("/x",),
    "encoding": ("utf-8",),
    "encoding_error_handler": ("ignore",),
}
OF_ADDRESS: Final[Mapping[str, Sequence[Any]]] = {
    "headers": ({"A": "b"}, {"A": 1}, {"A": {}}),
    "timeout": (*DURATIONS, 5, 5.5),
    "sse_read_timeout": (*DURATIONS, 5),
    "terminate_on_close": (False, "yes"),
}
URLS: Final = (
    "http://h/p",
    "https://u:p@h:80",
    "http://h/sse",
    "${env:U}",
    "h",
    "ftp://x",
    "http://h:0/",
    "http://h h",
)
TYPES: Final = {"command": ("stdio",), "url": ("streamable", "http", "sse")}


def fields(possible: Mapping[str, Sequence[Any]], most: int = 2) -> st.SearchStrategy[dict[str, Any]]:
    """Some of these fields, most with values that they are made for."""
    each = [
        st.tuples(st.just(name), st.sampled_from(values) | st.sampled_from(ODD) if values else st.sampled_from(ODD))
        for name, values in possible.items()
    ]
    return st.lists(st.one_of(each), max_size=most).map(dict)


HOST = fields(OF_HOST)
BODIES = fields({**OF_SERVER, **OF_HOST, "envFile": (".env",)})
PARAMETERS = {"command": fields(OF_PROGRAM), "url": fields(OF_ADDRESS)}
DEFINITIONS = fields(
    {
        "description": ("d",),
        "default": ("x",),
        "password": (True,),
        "options": ([{"label": "l", "value": "v"}], [{"label": "l"}], [{"value": 1}]),
        "command": ("c",),
        "args": ({"a": "b"},),
        "id": ("k",),
        "zzz": (),
    }
)
NEEDED: Final[Mapping[str, dict[str, Any]]] = {"pickString": {"options": ["a"]}, "command": {"command": "c"}}


@st.composite
def server(draw: st.DrawFn) -> dict[str, Any]:
    needed = draw(st.sampled_from(["command", "url"]))
    values = ("x", "", 1) if needed == "command" else (*URLS, "", 1)
    parameters = {needed: draw(st.just(values[0]) | st.sampled_from(values))}
    parameters |= draw(PARAMETERS[needed])
    kinds = st.sampled_from(TYPES[needed])
    kind = draw(kinds | kinds | st.sampled_from(["stdio", "sse", "pipe", "", None]))
    body = draw(BODIES)
    match draw(st.sampled_from(["flat", "flat without type", "params", "server_parameters"])):
        case "flat":
            return {**body, "type": kind, **parameters}
        case "flat without type":
            return {**body, **parameters}
        case holder:
            return {**body, "type": kind, holder: draw(st.just(parameters) | st.sampled_from(ODD))}


@st.composite
def definition(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["promptString", "pickString", "command", "secret"]))
    needed = NEEDED.get(kind, {})
    return {"type": kind, "id": "k", **needed, **draw(DEFINITIONS)}


@st.composite
def document(draw: st.DrawFn) -> dict[str, Any]:
    servers = draw(st.dictionaries(st.sampled_from("ab"), server(), max_size=2))
    above = draw(st.sampled_from(["servers", "mcpServers", ""]))
    whole: dict[str, Any] = {above: servers} if above else dict(servers)
    inputs = st.lists(definition(), max_size=1) | st.sampled_from(ODD)
    beside = {"inputs": inputs, "defaults": HOST | st.sampled_from(ODD), "zzz": st.sampled_from(ODD)}
    for name in draw(st.lists(st.sampled_from(sorted(beside)), max_size=1)):
        whole[name] = draw(beside[name])
    return whole


def mistakes_of(written: dict[str, Any]) -> list[str]:
    try:
        found = parse_config(json.dumps(written)).warnings
    except ConfigError as error:
        found = error.problems
    return [each for each in found if each != "names no MCP servers, so none runs"]


@given(document())
@settings(max_examples=scaled(ci=60, soak=1000))
def test_the_schema_takes_each_file_that_is_read_without_a_mistake(written: dict[str, Any]) -> None:
    mistakes, taken = mistakes_of(written), SCHEMA.is_valid(written)
    event(f"taken: {taken}")
    assert taken or mistakes


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "stdio", "server_parameters": {"comand": "x"}},
        {"type": "stdio", "server_parameters": {"command": "x", "arg": []}},
        {"type": "pipe", "server_parameters": {"command": "x"}},
        {"command": "x", "args": "y"},
        {"command": "x", "disabled": "no"},
        {"command": "x", "limits": {"cpu": 1}},
        {"url": "http://h", "type": "stdio"},
        {"args": ["x"]},
    ],
)
def test_the_schema_refuses_unknown_and_missing_fields_and_wrong_types(wrong: dict[str, Any]) -> None:
    assert not SCHEMA.is_valid({"servers": {"a": wrong}})
    assert mistakes_of({"servers": {"a": wrong}})
