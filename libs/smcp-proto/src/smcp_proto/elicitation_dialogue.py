"""An elicitation that is asked line by line: the text that is shown, and the answer in what is typed. Pure.

The caller has the terminal. A page is named and never opened; whether a form is valid, the caller's `problem` decides.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

from smcp_proto.printable import printable

T = TypeVar("T")

ACTIONS: Final[Mapping[str, str]] = {"y": "accept", "yes": "accept", "n": "decline", "no": "decline"}
"""MCP's actions of an ElicitResult, by the words for them."""
BOOLEANS: Final[Mapping[str, bool]] = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}
AGAIN: Final[Mapping[str, bool]] = {"y": True, "yes": True, "": True, "n": False, "no": False}


class LineTerminal(Protocol):
    """Shows texts to a user, and reads lines."""

    async def ask(self, text: str, prompt: str, answers: Mapping[str, T]) -> T:
        """What the typed word stands for; another word is asked again."""

    async def line(self, text: str, prompt: str) -> str:
        """The typed line."""


async def ask_user(
    terminal: LineTerminal,
    text: str,
    params: Mapping[str, Any],
    problem: Callable[[Mapping[str, Any], Mapping[str, Any]], str | None],
) -> dict[str, Any]:
    """MCP's ElicitResult of a user.

    Args:
        text: introduces the elicitation.
        params: of MCP's ElicitRequest.
        problem: why a content does not fit a schema; None: it fits.
    """
    text = f"{text}{printable(str(params.get('message')))}"
    what = "Open it?" if "url" in params else "Answer it?"
    if "url" in params:
        text += f"\nIt wants you to open {printable(str(params['url']))}"
    action = await terminal.ask(text, f"{what} [y/n, Enter: cancel] ", {**ACTIONS, "": "cancel"})
    schema = params.get("requestedSchema")
    if action != "accept" or schema is None:
        return {"action": action}
    while (wrong := problem(schema, content := await _filled_in(terminal, schema))) is not None:
        if not await terminal.ask(wrong, "Fill it in again? [Y/n] ", AGAIN):
            return {"action": "cancel"}
    return {"action": "accept", "content": content}


async def _filled_in(terminal: LineTerminal, schema: Mapping[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    properties, required = schema.get("properties"), schema.get("required")
    for name, field in properties.items() if isinstance(properties, dict) else ():
        known = field if isinstance(field, dict) else {}
        shown = described(name, known, required=isinstance(required, list) and name in required)
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
