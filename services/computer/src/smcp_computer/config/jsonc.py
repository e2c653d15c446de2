"""Reads JSON with comments and trailing commas, as editors write configuration files. Pure.

Comments and trailing commas become blanks, so that the errors of `json` have the line and column of the file.
"""

import json
import re
from collections import Counter
from typing import Any, Final

from smcp_computer.config.lint import ConfigError

_STRING: Final = r'"(?:[^"\\\n]|\\.)*"'
_WITH_COMMENTS: Final = re.compile(rf"{_STRING}|(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))", re.DOTALL)
# a comma after an opening bracket, a colon or another comma is a mistake, and stays
_WITH_COMMAS: Final = re.compile(rf"{_STRING}|[\[{{,:]\s*,|(?P<comma>,(?=\s*[}}\]]))")
_WHY: Final = {
    "Expecting ',' delimiter": "a comma or a closing bracket is missing",
    "Expecting ':' delimiter": "a colon is missing",
    "Expecting property name enclosed in double quotes": 'the name of a field is missing, in straight quotes ("")',
    "Expecting value": "a value is missing, such as a text in straight quotes",
    "Extra data": "{ } do not stand around all of it: it goes on",
}
"""For people, by the message of `json`."""
_NOT_BLANK: Final = re.compile(r"\S")


def loads(raw: bytes | str) -> Any:
    """Raises ConfigError: it is no JSON, or a key stands twice in one object."""
    try:
        text = raw.decode("utf-8-sig") if isinstance(raw, bytes) else raw
        return json.loads(_plain(text), object_pairs_hook=_without_duplicates, parse_constant=_refused)
    except json.JSONDecodeError as error:
        why = _WHY.get(error.msg, error.msg)
        raise ConfigError(f"not JSON: {why} at line {error.lineno}, column {error.colno}") from None
    except (ValueError, RecursionError):
        raise ConfigError("not JSON: not UTF-8 text, nested too deeply, or a number with very many digits") from None


def has_comments(raw: bytes | str) -> bool:
    """Whether something would be lost if the file were written anew."""
    text = raw.decode(errors="replace") if isinstance(raw, bytes) else raw
    return any(found["comment"] for found in _WITH_COMMENTS.finditer(text))


def _plain(text: str) -> str:
    without_comments = _WITH_COMMENTS.sub(lambda found: _blank(found[0], found["comment"]), text)
    return _WITH_COMMAS.sub(lambda found: _blank(found[0], found["comma"]), without_comments)


def _blank(whole: str, blanked: str | None) -> str:
    return whole if blanked is None else _NOT_BLANK.sub(" ", blanked)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for key, times in Counter(key for key, _ in pairs).items():
        if times > 1:
            raise ConfigError(f"{key!r} stands twice in one object")
    return dict(pairs)


def _refused(constant: str) -> Any:
    raise ConfigError(f"not JSON: {constant} is no number of JSON")
