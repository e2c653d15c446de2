"""How MCP servers are ordered on desktops and in catalogs, and texts and times compared (desktop.txt, finder.txt)."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final


def server_order(servers: Iterable[str], history: Sequence[str]) -> list[str]:
    """Each of the servers once: those used most recently first, then the others by name. `history`: the MCP servers of
    the tool calls, the oldest call first; it may name servers that are gone."""
    left = set(servers)
    recent = [server for server in dict.fromkeys(reversed(history)) if server in left]
    return recent + sorted(left.difference(recent))


NUL: Final = "\0"
"""Separates texts that are searched together, since folded text never has it."""


def fold(text: str) -> str:
    """Return `text` in the form for comparison without case; a NUL becomes U+FFFD."""
    if text.isascii():
        return text.lower().replace(NUL, "\ufffd")
    # Unicode's compatibility caseless match: folding can undo the normal form, and the normal form can bring new case
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFD", text).casefold()).casefold()
    return unicodedata.normalize("NFKC", folded).replace(NUL, "\ufffd")


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_ISO: Final = re.compile(r"[0-9]{4}[0-9W-]{3,6}(?:[Tt ].+)?", re.ASCII)
"""Checked before `fromisoformat`, which takes any character between the date and the time."""


def instant(text: str) -> int | None:
    """Return the microseconds since 1970 of an ISO 8601 instant, None where it cannot be read. Without an offset or a
    time, it is UTC."""
    # Nearly all texts have this form, which needs no pattern: matching costs more than all the rest.
    if not (text[4:5] == "-" and text[10:11] == "T") and not _ISO.fullmatch(text):
        return None
    try:
        moment = datetime.fromisoformat(text.upper())
    except ValueError:
        return None
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND
