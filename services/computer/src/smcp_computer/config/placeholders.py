"""Placeholders in strings of the configuration: `${input:ID}` and `${env:X}`. Pure."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

_PLACEHOLDER: Final = re.compile(r"\$\{(?P<kind>input|env):(?P<name>[^${}]+)\}")


@dataclass(frozen=True, slots=True)
class Placeholder:
    """One `${input:ID}` or `${env:X}`; its text is that again."""

    kind: Literal["input", "env"]
    name: str

    def __str__(self) -> str:
        return f"${{{self.kind}:{self.name}}}"


def find(text: str) -> Iterator[Placeholder]:
    """The placeholders in `text`, in order."""
    for match in _PLACEHOLDER.finditer(text):
        yield _of(match)


def is_pure(text: str) -> bool:
    """Whether `text` is made of placeholders alone, so that it tells no secret."""
    return bool(text) and not _PLACEHOLDER.sub("", text).strip()


def replace_all(value: Any, lookup: Callable[[Placeholder], str]) -> Any:
    """A copy of a JSON value with the placeholders of its strings replaced.

    What was put in is not searched again. Raises whatever `lookup` raises.
    """
    match value:
        case str():
            return _PLACEHOLDER.sub(lambda match: lookup(_of(match)), value)
        case dict():
            return {key: replace_all(inner, lookup) for key, inner in value.items()}
        case list():
            return [replace_all(inner, lookup) for inner in value]
        case _:
            return value


def _of(match: re.Match[str]) -> Placeholder:
    return Placeholder("input" if match["kind"] == "input" else "env", match["name"])
