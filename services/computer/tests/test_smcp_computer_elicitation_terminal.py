"""Elicitations that are answered line by line; the lines that are typed are scripted."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from smcp_computer.elicitation import elicit_at_terminal
from smcp_computer.terminal import Terminal
from smcp_computer.tool_names import ToolRef
from smcp_computer.tools import Target

T = TypeVar("T")

FORM: dict[str, Any] = {
    "message": "Which day?",
    "requestedSchema": {
        "type": "object",
        "properties": {
            "day": {"type": "string", "enum": ["monday", "friday"], "description": "The day"},
            "guests": {"type": "integer", "default": 2},
            "window": {"type": "boolean"},
        },
        "required": ["day"],
    },
}


class Typing:
    """A user who types these lines."""

    def __init__(self, *lines: str) -> None:
        self.lines = list(lines)
        self.shown: list[str] = []
        self.turn = asyncio.Lock()

    async def ask(self, text: str, prompt: str, answers: Mapping[str, T]) -> T:
        return answers[await self.line(text, prompt)]

    async def line(self, text: str, prompt: str) -> str:
        self.shown.append(text)
        return self.lines.pop(0)


async def ask_user(user: Typing, params: Mapping[str, Any]) -> Mapping[str, Any]:
    target = cast("Target", SimpleNamespace(ref=ToolRef("tables", "book")))
    answers = await elicit_at_terminal(cast("Terminal", user), target, {"q": {"params": params}})
    return answers["q"]


async def test_a_form_shows_each_field_with_its_options_type_and_default() -> None:
    user = Typing("y", "friday", "", "true")
    answer = await ask_user(user, FORM)
    assert answer == {"action": "accept", "content": {"day": "friday", "guests": 2, "window": True}}
    assert user.shown == [
        "The tool 'book' of 'tables' asks: Which day?",
        'day, required: {"type": "string", "enum": ["monday", "friday"], "description": "The day"}',
        'guests: {"type": "integer", "default": 2}',
        'window: {"type": "boolean"}',
    ]


async def test_a_form_that_does_not_fit_is_filled_in_again_or_dismissed() -> None:
    user = Typing("y", "", "10", "false", "y", "friday", "3", "true")
    answer = await ask_user(user, FORM)
    assert answer == {"action": "accept", "content": {"day": "friday", "guests": 3, "window": True}}
    assert user.shown[4].startswith("the form: ")
    assert user.shown[5].startswith("day, required: ")
    assert await ask_user(Typing("y", "", "", "", "n"), FORM) == {"action": "cancel"}


@pytest.mark.parametrize(("word", "action"), [("y", "accept"), ("no", "decline"), ("", "cancel")])
async def test_a_page_is_named_and_needs_no_form(word: str, action: str) -> None:
    user = Typing(word)
    assert await ask_user(user, {"message": "Pay", "url": "https://pay.example/\x1b[2J"}) == {"action": action}
    assert "It wants you to open https://pay.example/" in user.shown[0]
    assert "\x1b" not in user.shown[0]


@pytest.mark.parametrize(
    ("line", "kind", "value"),
    [
        ("2", "integer", 2),
        ("2.5", "number", 2.5),
        ("true", "boolean", True),
        ("Y", "boolean", True),
        ("no", "boolean", False),
        ("yes", "string", "yes"),
        ("a, b", "array", ["a", "b"]),
        ("2", "string", "2"),
        ("2", None, "2"),
    ],
)
async def test_a_line_becomes_a_value_of_the_type_of_its_field(line: str, kind: str | None, value: object) -> None:
    form = {"properties": {"x": {} if kind is None else {"type": kind}}}
    answer = await ask_user(Typing("y", line), {"message": "Which?", "requestedSchema": form})
    assert answer == {"action": "accept", "content": {"x": value}}


@pytest.mark.parametrize(("line", "kind"), [("two", "integer"), ("perhaps", "boolean")])
async def test_a_line_that_is_not_of_the_type_is_refused(line: str, kind: str) -> None:
    user = Typing("y", line, "n")
    form = {"properties": {"x": {"type": kind}}}
    assert await ask_user(user, {"message": "Which?", "requestedSchema": form}) == {"action": "cancel"}
    assert user.shown[2].startswith("x: ")


async def test_a_field_cannot_move_the_cursor() -> None:
    user = Typing("y", "")
    await ask_user(user, {"message": "?", "requestedSchema": {"properties": {"x": {"title": "\x1b[2J"}}}})
    assert user.shown[1].isprintable()


@pytest.mark.parametrize("schema", [{}, {"type": "object"}])
async def test_a_form_without_fields_is_answered_empty(schema: dict[str, Any]) -> None:
    assert await ask_user(Typing("y"), {"message": "Which day?", "requestedSchema": schema}) == {
        "action": "accept",
        "content": {},
    }
