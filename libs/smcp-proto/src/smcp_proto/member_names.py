"""Names of offices, Agents and Computers: which are legal, how they stand in a subject or a key, and patterns of them.

A name is user text. Inside a NATS subject or a JetStream key it is one token: letters, digits, ``_`` and ``-`` stay,
every other UTF-8 byte becomes ``=XX`` (upper-case hex). So no name can widen a subject.
"""

import re
import unicodedata
from functools import lru_cache
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

MAX_NAME_LENGTH = 128
"""Characters (code points after NFC)."""

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_ESCAPES = tuple(chr(byte) if byte in _PLAIN else f"={byte:02X}" for byte in range(256))
_TOKEN = re.compile(r"(?:[A-Za-z0-9_-]|=[0-9A-F]{2})+")


def check_name(value: str) -> str:
    """The name in NFC. Raises ValueError: it is empty, too long, or holds a control character or lone surrogate."""
    name = value if value.isascii() else unicodedata.normalize("NFC", value)
    if not 1 <= len(name) <= MAX_NAME_LENGTH:
        raise ValueError(f"a name has 1 to {MAX_NAME_LENGTH} characters, this one has {len(name)}")
    return name if name.isascii() and name.isprintable() else without_controls(name)


Name = Annotated[str, Field(strict=True), AfterValidator(check_name)]
"""A checked name, as a type for pydantic models."""


def encode_name(name: str) -> str:
    """Return the token that stands for a checked name in subjects and keys."""
    if name.isascii() and name.replace("_", "a").replace("-", "a").isalnum():
        return name
    return "".join(_ESCAPES[byte] for byte in name.encode())


@lru_cache(maxsize=4096)
def decode_name(token: str) -> str:
    """Return the name that a token stands for. Raises ValueError: `encode_name` makes it of no checked name."""
    if not _TOKEN.fullmatch(token):
        raise ValueError("not an encoded name")
    raw = re.sub(rb"=([0-9A-F]{2})", lambda match: bytes.fromhex(match[1].decode()), token.encode())
    name = check_name(raw.decode())
    if encode_name(name) != token:
        raise ValueError("not an encoded name")
    return name


Role = Literal["computer", "agent"]
"""The role of a member of an office (events.txt, EnterOfficeReq)."""


LONGEST: Final = 256
"""Characters of a pattern or of a token's subject."""


def check_pattern(pattern: str) -> str:
    r"""The pattern in NFC. Raises ValueError: it ends with a lone `\`, or has control characters or lone surrogates."""
    normal = without_controls(unicodedata.normalize("NFC", pattern))
    _regex(normal)
    return normal


Pattern = Annotated[str, Field(strict=True, min_length=1, max_length=LONGEST), AfterValidator(check_pattern)]


def matches(pattern: str, name: str) -> bool:
    r"""Whether the whole name matches: `*` is any text, `?` one character, and `\` escapes the next one.

    Takes at most `len(pattern) * len(name)` steps. Raises ValueError: see `check_pattern`.
    """
    return _regex(pattern).fullmatch(unicodedata.normalize("NFC", name)) is not None


@lru_cache(maxsize=1024)
def _regex(pattern: str) -> re.Pattern[str]:
    between = [""]  # the stars
    characters = iter(unicodedata.normalize("NFC", pattern))
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
