"""Patterns of names in the grants of keys and tokens and in a Computer's `allow`: `*` is any text, `?` a character."""

import re
import unicodedata
from functools import lru_cache
from typing import Annotated, Final

from pydantic import AfterValidator, Field

LONGEST: Final = 256
"""Characters of a pattern or a subject. A name has at most 128."""


def checked(pattern: str) -> str:
    r"""The pattern in NFC. Raises ValueError: it ends with a lone `\`, or has control characters or lone surrogates."""
    normal = without_controls(unicodedata.normalize("NFC", pattern))
    _regex(normal)
    return normal


Pattern = Annotated[str, Field(strict=True, min_length=1, max_length=LONGEST), AfterValidator(checked)]


def matches(pattern: str, name: str) -> bool:
    r"""Whether the whole name matches: `*` is any text, `?` one character, and `\` escapes the next one.

    Takes at most `len(pattern) * len(name)` steps. Raises ValueError: see `checked`.
    """
    regex = _regex(unicodedata.normalize("NFC", pattern))
    return regex.fullmatch(unicodedata.normalize("NFC", name)) is not None


@lru_cache(maxsize=1024)
def _regex(pattern: str) -> re.Pattern[str]:
    between = [""]  # the stars
    characters = iter(pattern)
    for character in characters:
        if character == "*":
            between.append("")
        elif character == "\\":
            if (escaped := next(characters, None)) is None:
                raise ValueError("ends with a single backslash; write it twice")
            between[-1] += re.escape(escaped)
        else:
            between[-1] += "." if character == "?" else re.escape(character)
    if len(between) == 1:
        return re.compile(between[0], re.DOTALL)
    first, *middle, last = between
    # the first match of a part is as good as a later one; atomic groups keep it, so there is no backtracking
    return re.compile(f"{first}{''.join(f'(?>.*?{part})' for part in middle)}.*{last}", re.DOTALL)


def without_controls(text: str) -> str:
    """The text, unchanged. Raises ValueError: it has control characters or lone surrogates."""
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in text):
        raise ValueError("holds a control character, or a lone surrogate")
    return text
