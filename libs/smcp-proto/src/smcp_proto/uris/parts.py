"""The parts of a URI: split, percent-decoded, checked, and encoded again."""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote_to_bytes

MAX_URI_LENGTH: Final = 8192

_URI = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<host>[^/?#]*)(?P<path>/[^?#]*)?(?P<query>\?[^#]*)?(?P<fragment>#.*)?",
    re.DOTALL,
)
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NOT_IN_HOST = re.compile(r"[\s@:\[\]\\]")


@dataclass(frozen=True, slots=True)
class Parts:
    """A URI as it is written, split only."""

    host: str
    """Decoded and checked."""
    segments: tuple[str, ...]
    """Between the slashes of the path, not decoded yet; empty where there is no path, or `/` alone."""
    query: str | None
    """What follows `?`, not decoded yet; None without a `?`."""


def split_uri(text: str, scheme: str) -> Parts:
    """Split a URI of that scheme.

    Raises:
        ValueError: it begins with the part that is wrong (`scheme: …`, `host: …`).
    """
    if len(text) > MAX_URI_LENGTH:
        raise ValueError(f"uri: longer than {MAX_URI_LENGTH} characters")
    match = _URI.fullmatch(text)
    if match is None or match["scheme"].lower() != scheme:
        raise ValueError(f"scheme: not a {scheme}:// URI")
    if match["fragment"] is not None:
        raise ValueError("fragment: not allowed")
    if _NOT_IN_HOST.search(match["host"]):
        raise ValueError("host: holds a character that no host has (a user, a port and spaces are not allowed)")
    host = check_host(decode(match["host"], "host"))
    path = (match["path"] or "").removeprefix("/")
    query = None if match["query"] is None else match["query"][1:]
    return Parts(host, tuple(path.split("/")) if path else (), query)


def check_host(host: str) -> str:
    """Return the host. Raises ValueError where it is empty or holds a control character."""
    if not host:
        raise ValueError("host: is empty")
    return check_text(host, "host")


def check_text(text: str, part: str) -> str:
    """Return decoded text. Raises ValueError where it cannot stand in a URI, or holds a control character."""
    if _CONTROL.search(text):
        raise ValueError(f"{part}: holds a control character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{part}: is not Unicode text") from None
    return text


def decode(text: str, part: str) -> str:
    """Return `text` with its percent escapes resolved.

    Raises:
        ValueError: an escape is broken, or the result is not UTF-8 or holds a control character.
    """
    if "%" not in text:
        return check_text(text, part)
    if _BAD_ESCAPE.search(text):
        raise ValueError(f"{part}: holds a broken percent escape")
    try:
        return check_text(unquote_to_bytes(text).decode(), part)
    except UnicodeError:
        raise ValueError(f"{part}: its percent escapes are not UTF-8") from None


def encode(text: str) -> str:
    """Return `text` as one part of a URI: everything but `A-Z a-z 0-9 - . _ ~` escaped."""
    return quote(text, safe="")
