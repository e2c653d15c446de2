"""Halves of surrogate pairs in JSON: its grammar has them (`"\\ud800"`), no text has (RFC 8259, 8.2). Pure.

Fast readers refuse such a document as a whole; JavaScript and Python write them.
"""

import json
from typing import Final, NoReturn

HALF: Final = "holds half of a surrogate pair, which no text has"
"""What is said of a field with one."""


def mended(text: str | bytes) -> str:
    """The same JSON with U+FFFD in place of each half.

    Raises:
        ValueError: it is no JSON beside that.
    """
    try:
        whole = json.dumps(json.loads(text, parse_constant=_refuse), ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    return _whole(whole)


def field_with_half(text: bytes) -> str | None:
    """The field of a JSON object that holds one; None: there is none, or it is no object."""
    try:
        fields = json.loads(text)
        if isinstance(fields, dict):
            return next((_whole(name) for name, value in fields.items() if _has_half(name, value)), None)
    except (ValueError, RecursionError):
        pass
    return None


def _has_half(name: str, value: object) -> bool:
    try:
        json.dumps({name: value}, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _whole(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
