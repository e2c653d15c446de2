"""The subject of a key or token: who holds it."""

import unicodedata
from typing import Final

LONGEST: Final = 256


def check_subject(subject: object) -> str:
    """The subject as it is: two that differ in anything are two holders.

    Raises:
        ValueError: it is no text of 1 to 256 characters without control characters and lone surrogates.
    """
    if not isinstance(subject, str):
        raise ValueError("has to be a string")  # noqa: TRY004 -- pydantic takes this one
    if not 1 <= len(subject) <= LONGEST:
        raise ValueError(f"has to have 1 to {LONGEST} characters")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in subject):
        raise ValueError("holds a control character, or half of a character")
    return subject
