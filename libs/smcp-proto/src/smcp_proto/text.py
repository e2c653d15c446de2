"""Foreign text: made printable, without secrets, as JSON with comments, and comparable (desktop.txt, finder.txt)."""

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

_SEQUENCE: Final = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
"""A sequence for a terminal: CSI or OSC of ECMA-48."""
_LINE_BREAK: Final = re.compile(r"\r\n|[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")
"""As `str.splitlines` knows them."""
_INVISIBLE: Final = (
    r"\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    r"\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
INVISIBLE: Final = re.compile(f"[{_INVISIBLE}]")
"""What is not seen or sets the direction of writing: Unicode's Default_Ignorable_Code_Point, U+2800 and U+FFF9-FFFB. It
may hide text that a model reads, or show `txt.exe` as `exe.txt`."""
_UNPRINTABLE: Final = re.compile(
    rf"(?![\u200c\u200d\ufe0f])[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff{_INVISIBLE}]"
)
"""Control characters but for tab and newline, half characters, and what is `INVISIBLE`, but for joiners and U+FE0F,
which are parts of words and emoji."""
_WORD: Final = (
    r"(?:(?:api|access|private)[-_]?key|(?<!max[-_])token|secret|passw(?:or)?d|passphrase|pwd|credential|cookie|bearer"
    r"|authorization)"
)
SCHEME: Final = r"(?:(?:Bearer|Basic|Token)\s+)?"
SECRET_WORD: Final = re.compile(_WORD, re.IGNORECASE)
SECRET_IN_TEXT: Final = (
    re.compile(
        # `token=X`, and as a header, in JSON or in VRL: `Authorization: Bearer X`, `"token": "X"`, `.token = "X"`
        rf"{_WORD}s?(?:[=:]\s*|[\"']?\s*[=:]\s*[\"']){SCHEME}(?P<secret>[^\s&,;\"']+)",
        re.IGNORECASE,
    ),
    re.compile(r"\w://(?P<secret>[^/\s@]+)@"),
    re.compile(
        r"\b(?P<secret>sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|xox[abprs]-[\w-]{10,}"
        # only where a word begins, hyphens included: else a long text takes time by the square of its length
        r"|AKIA[0-9A-Z]{16}|glpat-[\w-]{16,}|(?<![\w-])eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
    ),
)
"""The group `secret` is the part that nobody may see."""


def printable(text: str, *, newline: str = " ") -> str:
    """`text` without sequences for terminals, with `newline` for line breaks, and U+FFFD for what cannot be seen."""
    return _UNPRINTABLE.sub("\ufffd", _LINE_BREAK.sub(newline, _SEQUENCE.sub("", text)))


def printable_json(value: Any, *, indent: int | None = 2) -> str:
    """`value` as JSON for programs that a terminal may get, too: `\\u202e` stands for what `printable` replaces."""
    return escaped_json(json.dumps(value, ensure_ascii=False, indent=indent))


def escaped_json(text: str) -> str:
    """The same for JSON that is written already and has no white space between lines but newlines."""
    return _UNPRINTABLE.sub(lambda found: json.dumps(found[0])[1:-1], text)


_STRING: Final = r'"(?:[^"\\\n]|\\.)*"'
_WITH_COMMENTS: Final = re.compile(rf"{_STRING}|(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))", re.DOTALL)
# a comma after an opening bracket, a colon or another comma is a mistake, and stays
_WITH_COMMAS: Final = re.compile(rf"{_STRING}|[\[{{,:]\s*,|(?P<comma>,(?=\s*[}}\]]))")
_NOT_BLANK: Final = re.compile(r"\S")


def plain_json(text: str) -> str:
    """The text with blanks for comments and trailing commas: what is left stands where it stood."""
    without_comments = _WITH_COMMENTS.sub(lambda found: _blank(found[0], found["comment"]), text)
    return _WITH_COMMAS.sub(lambda found: _blank(found[0], found["comma"]), without_comments)


def has_comments(text: str) -> bool:
    """Whether something would be lost if the text were written anew."""
    return any(found["comment"] for found in _WITH_COMMENTS.finditer(text))


def _blank(whole: str, blanked: str | None) -> str:
    return whole if blanked is None else _NOT_BLANK.sub(" ", blanked)


def server_order(servers: Iterable[str], history: Sequence[str]) -> list[str]:
    """Each of the servers once: those used most recently first, then the others by name.

    Args:
        history: the MCP servers of the tool calls, the oldest call first; it may name servers that are gone.
    """
    left = set(servers)
    recent = [server for server in dict.fromkeys(reversed(history)) if server in left]
    return recent + sorted(left.difference(recent))


NUL: Final = "\0"
"""Never in folded text: it can stand between texts that are searched together."""


def fold(text: str) -> str:
    """Return `text` as it is compared; a NUL counts as U+FFFD."""
    if text.isascii():
        return text.lower().replace(NUL, "\ufffd")
    # Unicode's compatibility caseless match: folding can undo the normal form, and the normal form can bring new case
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFD", text).casefold()).casefold()
    return unicodedata.normalize("NFKC", folded).replace(NUL, "\ufffd")


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_ISO: Final = re.compile(r"[0-9]{4}[0-9W-]{3,6}(?:[Tt ].+)?", re.ASCII)
"""What `fromisoformat` may be asked about: it takes any character between the date and the time."""


def instant(text: str) -> int | None:
    """Return the microseconds since 1970 of an ISO 8601 instant, None where it cannot be read.

    Any offset; none at all, and a date alone, is UTC. Digits beyond microseconds are cut off.
    """
    # Of this form it is a date and a time, or nothing; nearly all are, and the pattern costs more than the rest.
    if not (text[4:5] == "-" and text[10:11] == "T") and not _ISO.fullmatch(text):
        return None
    try:
        moment = datetime.fromisoformat(text.upper())
    except ValueError:
        return None
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND
