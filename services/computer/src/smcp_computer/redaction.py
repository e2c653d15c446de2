"""Keeps values of secrets out of all that this process says: logs, reasons, and the texts of errors that Agents get.

`config.secret_detection` decides which values of a configuration are secret; here they are found again in any text,
also in URL, base64 or JSON form, or as `repr` writes them. What a tool answers without an error is the Agent's, and is
not changed.

Who shows only a part of a text redacts it first: the beginning of a secret is not found.
"""

import base64
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final

REDACTED: Final = "<redacted>"
MIN_LENGTH: Final = 4
"""Characters of a value that is looked for: a shorter one is in every text."""
MIN_WITHIN_WORDS: Final = 8
"""A shorter value is found as a word of its own only."""
SHOWN: Final = 256
"""Characters of a URI in a log: what a server sends has no bound."""
SEARCHED: Final = 16 * 1024
"""Characters that are searched of a text of which less is shown: a secret that begins in what is shown ends in them."""
MAX_ERROR: Final = 1024 * 1024
"""Characters of what is said about a failure. The event loop stands still for some 20 ms while they are searched."""
PER_VALUE: Final = 64
"""Each string, number and list in it takes as long as so many characters."""
MIN_BASE64: Final = 8
"""Characters of base64 that are the same wherever the value stands in what is encoded."""


class Redactor:
    """It never forgets a value: one that is not used any more may still be valid."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[str, re.Pattern[str]]] = {}
        """The longest first, as one may be a part of another: a part that no escape changes, and all its escapes."""
        self._in_base64: list[str] = []

    def learn(self, values: Iterable[str]) -> None:
        """Values of several lines are found line by line, too, as programs print them."""
        parts = {part for value in values for part in (value, *value.splitlines()) if len(part.strip()) >= MIN_LENGTH}
        new = parts - self._values.keys()
        if not new:
            return
        known = self._values | {value: (_unchanged(value), _escaped(value)) for value in new}
        self._values = dict(sorted(known.items(), key=lambda item: len(item[0]), reverse=True))
        encoded = {form for value in self._values if len(value) >= MIN_WITHIN_WORDS for form in _in_base64(value)}
        self._in_base64 = sorted(encoded, key=len, reverse=True)

    def redact(self, text: str) -> str:
        for part, pattern in self._values.values():
            if part in text:
                text = pattern.sub(REDACTED, text)
        for form in self._in_base64:
            if form in text:
                text = text.replace(form, REDACTED)
        return text

    def shown(self, text: str) -> str:
        """The beginning of a text without a bound, for a log."""
        return self.redact(text[:SEARCHED])[:SHOWN]

    def redact_all(self, value: Any) -> Any:
        """A JSON value with all its strings redacted, also the names of fields."""
        match value:
            case str():
                return self.redact(value)
            case dict():
                return {self.redact(key): self.redact_all(inner) for key, inner in value.items()}
            case list():
                return [self.redact_all(inner) for inner in value]
            case _:
                return value


def is_too_large(value: Any) -> bool:
    """Whether a JSON value has more than `MAX_ERROR` characters; they are not redacted."""
    return _room_left(value, MAX_ERROR) < 0


def _room_left(value: Any, room: int) -> int:
    """It looks no further once there is none."""
    room -= PER_VALUE
    match value:
        case str():
            return room - len(value)
        case dict():
            inner: Iterable[Any] = chain(value.keys(), value.values())
        case list():
            inner = value
        case _:
            return room
    for each in inner:
        if room < 0:
            break
        room = _room_left(each, room)
    return room


def _unchanged(value: str) -> str:
    return max(re.findall(r"[A-Za-z0-9]+", value), key=len, default="")


def _escaped(value: str) -> re.Pattern[str]:
    """The value as it is, and as URLs, JSON and Python's `repr` write it, also one in the other."""
    pattern = "".join(map(_escapes_of, value))
    if len(value) < MIN_WITHIN_WORDS:
        pattern = rf"(?<![A-Za-z0-9]){pattern}(?![A-Za-z0-9])"
    return re.compile(pattern)


def _escapes_of(character: str) -> str:
    if character.isascii() and character.isalnum():
        return character
    percent = "".join(f"%(?:25)*{byte:02X}" for byte in character.encode(errors="replace"))
    units = character.encode("utf-16-be", errors="replace").hex()
    unicode = "".join(rf"\\+u{units[start : start + 4]}" for start in range(0, len(units), 4))
    others = {" ": r"\+", "\n": r"\\+n", "\r": r"\\+r", "\t": r"\\+t", "\\": r"\\+"}
    either = [re.escape(character), f"(?i:{percent})", f"(?i:{unicode})"]
    if character in others:
        either.append(others[character])
    return rf"(?:\\*(?:{'|'.join(either)}))"


def _in_base64(value: str) -> Iterator[str]:
    """What is the same wherever the value begins in the bytes that are encoded, by three."""
    raw = value.encode(errors="replace")
    for before in range(3):
        first = -(-before * 8 // 6)  # the characters up to here also depend on what is before
        last = (before + len(raw)) * 8 // 6  # and those from here on what is behind
        if last - first >= MIN_BASE64:
            for encode in (base64.b64encode, base64.urlsafe_b64encode):
                yield encode(bytes(before) + raw).decode()[first:last]
