"""JSON with comments and trailing commas, as editors write it."""

import re
from typing import Final

_STRING: Final = r'"(?:[^"\\\n]|\\.)*"'
_WITH_COMMENTS: Final = re.compile(rf"{_STRING}|(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))", re.DOTALL)
# a comma after an opening bracket, a colon or another comma is a mistake, and is kept for the error
_WITH_COMMAS: Final = re.compile(rf"{_STRING}|[\[{{,:]\s*,|(?P<comma>,(?=\s*[}}\]]))")
_NOT_BLANK: Final = re.compile(r"\S")


def plain_json(text: str) -> str:
    """Replace comments and trailing commas by blanks, so that positions in the text stay the same."""
    without_comments = _WITH_COMMENTS.sub(lambda found: _blank(found[0], found["comment"]), text)
    return _WITH_COMMAS.sub(lambda found: _blank(found[0], found["comma"]), without_comments)


def has_comments(text: str) -> bool:
    """Whether the text has comments, which would be lost if it were parsed and written again."""
    return any(found["comment"] for found in _WITH_COMMENTS.finditer(text))


def _blank(whole: str, blanked: str | None) -> str:
    return whole if blanked is None else _NOT_BLANK.sub(" ", blanked)
