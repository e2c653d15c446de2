"""Parses a tool's parameters at the command line, for `smcp-agent call` and `smcp-computer call`.

A mistake ends the command with exit code 2 and a message that names the parameter. The Computer validates all of them.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import typer

ARGUMENT_FORMS: Final = "KEY=VALUE|@FILE|-"
_KINDS: Final = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}


def read_parameters(params: str, words: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The parameters that were given as JSON, and the text of each one that was given as KEY=VALUE, by its key."""
    whole, texts = _object(params, "--params"), dict[str, str]()
    for word in words:
        key, equals, value = word.partition("=")
        if word == "-" or word.startswith("@"):
            whole |= _object(_read(word.removeprefix("@"), word), word)
        elif not equals or not key or key in texts:
            form = f"is not of the form {ARGUMENT_FORMS}; --params takes JSON"
            _refuse(word, "is given twice" if key in texts else form)
        else:
            text = value.removeprefix("@")
            texts[key] = _read(text, key) if value.startswith("@") and not text.startswith("@") else text
    return whole, texts


def convert_texts(texts: Mapping[str, str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the texts to the types that the tool's schema names. The schema is empty if it is not known."""
    properties, definitions = schema.get("properties"), schema.get("$defs")
    about = properties if isinstance(properties, dict) else {}
    return {key: _typed(key, text, json_types(about.get(key), definitions)) for key, text in texts.items()}


def json_types(schema: Any, definitions: Any) -> set[str]:
    """The JSON types that a schema allows; empty if the schema names none."""
    match schema:
        case {"$ref": str(ref)} if isinstance(definitions, dict):
            # resolves one reference only: there may be a cycle
            return json_types(definitions.get(ref.removeprefix("#/$defs/")), None)
        case {"type": str(kind)}:
            return {kind}
        case {"type": list(members)} | {"anyOf": list(members)} | {"oneOf": list(members)}:
            kinds = [{each} if isinstance(each, str) else json_types(each, definitions) for each in members]
            return set().union(*kinds) if all(kinds) else set()
        case _:
            return set()


def _typed(key: str, text: str, kinds: set[str]) -> Any:
    if kinds != {"string"}:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value, kind = text, "string"
        else:
            kind = _KINDS.get(type(value), "object")
        if not kinds or kind in kinds or (kind == "integer" and "number" in kinds):
            return value
        if "string" not in kinds:
            _refuse(key, f"{text[:80]!r} is not of type {' or '.join(sorted(kinds))}, which the tool's schema requires")
    return text


def _read(name: str, hint: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        _refuse(hint, f"{name!r}: cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}")


def _object(text: str, hint: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        _refuse(hint, f"not JSON: {error}")
    return found if isinstance(found, dict) else _refuse(hint, "not a JSON object")


def _refuse(hint: str, why: str) -> NoReturn:
    raise typer.BadParameter(why, param_hint=hint)
