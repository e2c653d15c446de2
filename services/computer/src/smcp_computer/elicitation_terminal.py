"""Elicitations that are answered at this host's terminal, line by line. A URL is shown, and never opened."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from smcp_computer.elicitation import Answers, ElicitationRefused, Elicitations
from smcp_computer.json_schema import Schema
from smcp_computer.terminal import YES_OR_NO, Terminal, TerminalGone
from smcp_computer.tools import Target
from smcp_proto.printable import printable

ACTIONS: Final[Mapping[str, str]] = {"y": "accept", "yes": "accept", "n": "decline", "no": "decline", "": "cancel"}
"""MCP's actions of an ElicitResult, by the words for them."""
BOOLEANS: Final[Mapping[str, bool]] = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}


class InputTerminal:
    """Answers elicitations in place of the Agent."""

    def __init__(self, terminal: Terminal | None) -> None:
        self._terminal = terminal

    async def answers(self, target: Target, requests: Elicitations) -> Answers:
        """Raises ElicitationRefused: there is no terminal."""
        none = "asks at this Computer's terminal (SMCP_ELICIT), but there is no terminal"
        if self._terminal is None:
            raise ElicitationRefused(none)
        asks = f"The tool {printable(target.ref.tool)!r} of {printable(target.ref.server)!r} asks: "
        try:
            async with self._terminal.turn:
                return {key: await _answer(self._terminal, asks, each["params"]) for key, each in requests.items()}
        except TerminalGone:
            raise ElicitationRefused(none) from None


async def _answer(terminal: Terminal, asks: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """MCP's ElicitResult of the user."""
    text, what = f"{asks}{printable(str(params.get('message')))}", "Answer it?"
    if "url" in params:
        text, what = f"{text}\nIt wants you to open {printable(str(params['url']))}", "Open it?"
    action = await terminal.ask(text, f"{what} [y/n, Enter: cancel] ", ACTIONS)
    schema = params.get("requestedSchema")
    if action != "accept" or schema is None:
        return {"action": action}
    while (mistake := Schema(schema).mistake(content := await _filled_in(terminal, schema))) is not None:
        path, why = mistake
        wrong = f"{printable('.'.join(path) or 'the form')}: {printable(why)}"
        if not await terminal.ask(wrong, "Fill it in again? [Y/n] ", {**YES_OR_NO, "": True}):
            return {"action": "cancel"}
    return {"action": "accept", "content": content}


async def _filled_in(terminal: Terminal, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a form, whose schema is valid."""
    content: dict[str, Any] = {}
    for name, field in schema.get("properties", {}).items():
        known = field if isinstance(field, dict) else {}
        shown = described(name, known, required=name in schema.get("required", ()))
        if line := await terminal.line(shown, f"{printable(name)}: "):
            content[name] = typed(line, known.get("type"))
        elif "default" in known:
            content[name] = known["default"]
    return content


def described(name: str, field: Mapping[str, Any], *, required: bool) -> str:
    """A field of a form in one line: what it is for, its type or its options, and its default."""
    options = ", ".join(_options(field)) or ", ".join(_options(field.get("items")))
    kind = "" if field.get("type") in (None, "string") else str(field["type"])
    several = "one or more, with commas: " if field.get("type") == "array" and options else ""
    facts = [f"{several}{options}" if options else kind, "required" if required else ""]
    facts.append(f"default: {field['default']}" if "default" in field else "")
    said = "; ".join(filter(None, facts))
    return printable(f"{field.get('description') or field.get('title') or name}{f' ({said})' if said else ''}")


def _options(field: object) -> Iterable[str]:
    """The values that a field may have, with their titles."""
    match field:
        case {"enum": list(values)}:
            yield from map(str, values)
        case {"oneOf": list(members)} | {"anyOf": list(members)}:
            for each in members:
                if isinstance(each, dict) and "const" in each:
                    title = each.get("title")
                    yield str(each["const"]) if title in (None, each["const"]) else f"{each['const']} = {title}"


def typed(line: str, kind: object) -> Any:
    """The typed line as a value of that JSON type; or as it is, for the schema to refuse."""
    with suppress(ValueError):
        match kind:
            case "boolean":
                return BOOLEANS.get(line.strip().casefold(), line)
            case "integer":
                return int(line)
            case "number":
                return float(line)
            case "array":
                return [each.strip() for each in line.split(",")]
    return line
