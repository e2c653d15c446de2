r"""Patterns of names, as keys and tokens say them.

`*` stands for any number of characters, none included; `?` for exactly one; `\` takes the next character as it is
(`\*`, `\?`, `\\`). Every other character stands for itself, upper and lower case are told apart, and the whole name has
to match. Pattern and name are compared in Unicode's form NFC. Brackets mean nothing: `[` is a bracket.
"""

import unicodedata
from typing import Annotated, Final

from pydantic import AfterValidator, Field

LONGEST: Final = 256
"""Characters of a pattern; a name has at most 128."""
_ANY: Final = "any"
_ONE: Final = "one"


def checked(pattern: str) -> str:
    r"""The pattern in NFC.

    Raises:
        ValueError: it ends with a `\` that nothing follows, or holds a control character or a lone
            surrogate.
    """
    normal = unicodedata.normalize("NFC", pattern)
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in normal):
        raise ValueError("holds a control character, or half of a character")
    _tokens(normal)
    return normal


Pattern = Annotated[str, Field(strict=True, min_length=1, max_length=LONGEST), AfterValidator(checked)]


def matches(pattern: str, name: str) -> bool:
    """Whether the whole name matches. Takes at most `len(pattern) * len(name)` steps, whatever the pattern.

    Raises:
        ValueError: it is no pattern, see `checked`.
    """
    tokens = _tokens(unicodedata.normalize("NFC", pattern))
    text = unicodedata.normalize("NFC", name)
    token = at = 0
    star: int | None = None
    resume = 0
    while at < len(text):
        if token < len(tokens) and tokens[token] == _ANY:
            star, resume, token = token, at, token + 1
        elif token < len(tokens) and tokens[token] in (_ONE, text[at]):
            token, at = token + 1, at + 1
        elif star is not None:  # the last `*` takes one character more
            resume += 1
            token, at = star + 1, resume
        else:
            return False
    return all(rest == _ANY for rest in tokens[token:])


def _tokens(pattern: str) -> list[str]:
    tokens = []
    characters = iter(pattern)
    for character in characters:
        match character:
            case "*":
                tokens.append(_ANY)
            case "?":
                tokens.append(_ONE)
            case "\\":
                escaped = next(characters, None)
                if escaped is None:
                    raise ValueError("ends with a backslash that escapes nothing")
                tokens.append(escaped)
            case _:
                tokens.append(character)
    return tokens
