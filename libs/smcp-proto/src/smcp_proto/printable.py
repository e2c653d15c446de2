"""Makes foreign text safe to show: no control sequences for terminals, no invisible characters, no likely secrets.
Suggests the name that was meant, and checks URLs."""

import json
import re
import textwrap
from collections.abc import Collection, Iterable, Sequence
from difflib import SequenceMatcher, get_close_matches
from heapq import nlargest
from itertools import islice
from typing import Any, Final
from urllib.parse import urlsplit

_SEQUENCE: Final = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
"""A sequence for a terminal: CSI or OSC of ECMA-48."""
_LINE_BREAK: Final = re.compile(r"\r\n|[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")
_INVISIBLE: Final = (
    r"\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    r"\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
INVISIBLE: Final = re.compile(f"[{_INVISIBLE}]")
"""Invisible characters and those that set the writing direction: Unicode's Default_Ignorable_Code_Point, U+2800 and
U+FFF9-FFFB."""
_UNPRINTABLE: Final = re.compile(
    rf"(?![\u200c\u200d\ufe0f])[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff{_INVISIBLE}]"
)
"""Control characters except tab and newline, lone surrogates, and `INVISIBLE` characters except joiners and U+FE0F,
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
        # only at the beginning of a word (hyphens are part of it): otherwise the time grows with the square of the text
        r"|AKIA[0-9A-Z]{16}|glpat-[\w-]{16,}|(?<![\w-])eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
    ),
)
"""The group `secret` is the part that nobody may see."""
_OWN_SECRETS: Final = re.compile(r"smcp_[0-9a-z]+_[A-Za-z0-9_-]+|\bBearer +\S+", re.IGNORECASE)
_REDACTED: Final = "<redacted>"
_LOGIN: Final = re.compile(r"^([\w+.-]+://)?.*@", re.DOTALL)


def printable(text: str, *, newline: str = " ") -> str:
    """`text` without control sequences, with `newline` for line breaks, and U+FFFD for invisible characters."""
    return _UNPRINTABLE.sub("\ufffd", _LINE_BREAK.sub(newline, _SEQUENCE.sub("", text)))


def plain(text: str) -> str:
    """As `printable`, line by line."""
    return printable(text, newline="\n")


def printable_json(value: Any, *, indent: int | None = 2) -> str:
    """`value` as JSON that is also safe at a terminal: what `printable` replaces is escaped (`\\u202e`)."""
    return escaped_json(json.dumps(value, ensure_ascii=False, indent=indent))


def escaped_json(text: str) -> str:
    """As `printable_json`, for text that is JSON already and has no white space between its lines but newlines."""
    return _UNPRINTABLE.sub(lambda found: json.dumps(found[0])[1:-1], text)


def redacted(value: Any) -> Any:
    """A JSON value with `<redacted>` for what looks like a secret, by its name or its form."""
    match value:
        case dict():
            return {
                name: _REDACTED if SECRET_WORD.search(str(name)) and inner else redacted(inner)
                for name, inner in value.items()
            }
        case list():
            return [redacted(inner) for inner in value]
        case str():
            value = _OWN_SECRETS.sub(_REDACTED, value)
            for pattern in SECRET_IN_TEXT:
                value = pattern.sub(_without_secret, value)
    return value


def _without_secret(found: re.Match[str]) -> str:
    start = found.start()
    return found[0][: found.start("secret") - start] + _REDACTED + found[0][found.end("secret") - start :]


def without_login(url: str) -> str:
    """A URL for messages: `http://me:password@host` becomes `http://<redacted>@host`, also where it is malformed."""
    return _LOGIN.sub(rf"\1{_REDACTED}@", url)


def is_url(text: Any, schemes: Collection[str] = ("http", "https")) -> bool:
    """Whether it is a URL of one of these schemes, with a host, and with a port that can be one or without."""
    try:
        parts = urlsplit(text)
        return parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except (ValueError, TypeError, AttributeError):  # the last two: it is not text
        return False


def stacked_rows(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    """A table for a terminal that is too narrow for it: the first cell of each row, and below it the others with the
    names of their columns. `width` is in characters."""
    wrapper = textwrap.TextWrapper(
        width, initial_indent="  ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    lines = []
    for first, *cells in rows:
        named = "   ".join(f"{name}: {cell}" for name, cell in zip(columns[1:], cells, strict=True) if cell)
        lines += [printable(first), *wrapper.wrap(printable(named, newline=", "))]
    return "\n".join(lines)


LONGEST_NAME: Final = 128
MOST_KNOWN: Final = 1000
MOST_COMPARED: Final = 20
"""Characters of a name for which a similar one is sought; names that are looked at (20 ms); those of them that are
compared with it in full, the likeliest ones: 500 that are made for it would take a second of the event loop."""
LIKE: Final = 0.65
"""How similar (`difflib`) the nearest one has to be."""


def did_you_mean(written: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: `; did you mean 'x'?`, or empty. camelCase counts as snake_case."""
    folded = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", written).lower()
    names = [*islice(known, MOST_KNOWN)]
    by_folded = {name.lower().rpartition("__")[2]: name for name in names}  # without the server of `server__tool`
    by_folded |= {name.lower(): name for name in names}
    if len(folded) > LONGEST_NAME:
        return ""
    matcher = SequenceMatcher(b=folded)

    def likeness(other: str) -> float:
        matcher.set_seq1(other)
        return matcher.quick_ratio() if matcher.real_quick_ratio() >= LIKE else 0.0

    found = get_close_matches(folded, nlargest(MOST_COMPARED, by_folded, key=likeness), n=1, cutoff=LIKE)
    return f"; did you mean {by_folded[found[0]]!r}?" if found and by_folded[found[0]] != written else ""
