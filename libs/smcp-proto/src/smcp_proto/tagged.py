"""Unions that are told apart by their `type`, with an error that a user can act on."""

from collections.abc import Callable
from typing import Any, Final

from pydantic import Discriminator

TAG_PREFIX: Final = "type="
"""What a tag of such a union begins with; it stands in pydantic's locations, and `validation` takes it out."""


UNKNOWN_TYPE: Final = "unknown_type"
"""The type of the error that says so."""


def _tag_of(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return TAG_PREFIX + kind if isinstance(kind, str) else None


def by_type(*known: str) -> Discriminator:
    """Choose the member of a union whose tag is `type=` and the value of its `type`.

    Args:
        known: the legal values, for the message.
    """
    choose: Callable[[Any], str | None] = _tag_of
    return Discriminator(
        choose,
        custom_error_type=UNKNOWN_TYPE,
        custom_error_message=f"unknown or missing type; known are {', '.join(known)}",
    )
