"""Output of `smcp-agent` for people: tables, no control characters."""

import re
import time

import pytest

from smcp_agent.cli.output import parameters, print_tools
from smcp_proto.schemas import SMCPTool
from smcp_testing.agent_command import at_a_terminal, run
from smcp_testing.context_computer import ContextComputer, page_shelf
from smcp_testing.fake_gateway import fake_gateway

TOOL = SMCPTool(name="echo", description="", params_schema={}, return_schema=None)


def without_colours(terminal: bytes) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", terminal.decode()).replace("\r\n", "\n")


def test_the_parameters_of_a_tool_take_time_by_their_number() -> None:
    names = [f"p{number}" for number in range(20_000)]
    schema = {"properties": {name: {} for name in names}, "required": [*reversed(names), {}]}
    began = time.process_time()
    assert parameters(schema).splitlines()[:2] == ["p0*", "p1*"]
    assert time.process_time() - began < 2


def test_thousands_of_tools_are_printed_stacked_within_a_moment_and_a_short_list_as_a_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    schema = {"properties": {name: {"type": "string"} for name in ("path", "query", "format")}}
    tools = [
        SMCPTool(name=f"tool_{number}", description="Does much. " * 20, params_schema=schema, return_schema=None)
        for number in range(3000)
    ]
    began = time.process_time()
    print_tools(tools)
    assert time.process_time() - began < 3
    shown = capsys.readouterr().out.splitlines()
    assert shown[:2] == ["tool_0", "  Parameters: path: string, query: string, format: string   Description: Does"]
    assert [line for line in shown if not line.startswith(" ")] == [tool.name for tool in tools]
    print_tools(tools[:50])
    assert re.match("┏━+┳━+┳━+┓\n┃ Tool +┃ Parameters +┃ Description +┃\n", capsys.readouterr().out)


async def test_a_terminal_gets_documents_and_windows_without_control_characters() -> None:
    red = ContextComputer("red", shelf=page_shelf(), desktops=['window://a\n\n{"x": "深\u202egpj.exe\u009b1m"}'])
    async with fake_gateway() as gateway:
        red.enter(gateway)
        element = "dpe://com.example.docs/rpt-2026/elements/h-001"
        (as_it_is,) = red.shelf.read(element) or []
        code, out, err = await at_a_terminal(gateway, "read", "red", element)
        assert (code, without_colours(out), err) == (0, f"{as_it_is['text']}\n", "")
        assert await run(gateway, "read", "red", element) == (0, as_it_is["text"].encode(), "")
        code, out, _ = await at_a_terminal(gateway, "desktop", "red")
        assert without_colours(out) == 'window://a\n{"x": "深�gpj.exe"}\n'
