"""Output of `smcp-agent` for people: indented JSON, no control characters."""

import io
import re
import sys

import pytest

from smcp_agent.cli.output import print_readable
from smcp_testing.agent_command import at_a_terminal, run
from smcp_testing.context_computer import ContextComputer, page_shelf
from smcp_testing.fake_gateway import fake_gateway


def without_colours(terminal: bytes) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", terminal.decode()).replace("\r\n", "\n")


async def test_documents_and_windows_are_formatted_at_a_terminal_only() -> None:
    red = ContextComputer("red", shelf=page_shelf(), desktops=['window://a\n\n{"state": ["on", "深"]}'])
    async with fake_gateway() as gateway:
        red.enter(gateway)
        element = "dpe://com.example.docs/rpt-2026/elements/h-001"
        code, out, err = await at_a_terminal(gateway, "read", "red", element)
        assert (code, err) == (0, "")
        lines = without_colours(out).splitlines()
        assert '  "element_id": "h-001",' in lines
        assert '    "text": "2026 年度总结"' in lines
        (as_it_is,) = red.shelf.read(element) or []
        assert await run(gateway, "read", "red", element) == (0, as_it_is["text"].encode(), "")
        code, out, _ = await at_a_terminal(gateway, "desktop", "red")
        assert without_colours(out) == 'window://a\n{\n  "state": [\n    "on",\n    "深"\n  ]\n}\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '{"b": [1, {"a": null}], "name": "x\u202egpj.exe\\u009b1m"}',
            '{\n  "b": [\n    1,\n    {\n      "a": null\n    }\n  ],\n  "name": "x\\u202egpj.exe\\u009b1m"\n}\n',
        ),
        ("# No JSON", "# No JSON\n"),
        ("{x", "{x\n"),
        ("[" * 100_000, "[" * 100_000 + "\n"),
        ("a\u202eb", "a�b\n"),
    ],
    ids=["object", "text", "no JSON", "too deep", "direction"],
)
def test_json_is_indented_at_a_terminal_and_control_characters_replaced(
    monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    print_readable(text)
    assert terminal.getvalue() == said
