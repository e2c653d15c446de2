"""Keeps values of secrets out of all that this process says: logs, reasons, and the texts of errors that Agents get.

`config.redact` decides which values of a configuration are secret; here they are found again in any text, also URL-,
base64- and JSON-escaped. What a tool answers without an error is the Agent's, and is not changed.
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib.parse import quote, quote_plus

REDACTED: Final = "<redacted>"
MIN_LENGTH: Final = 4
"""Characters of a value that is looked for: a shorter one is in every text."""
MIN_WITHIN_WORDS: Final = 8
"""A shorter value is found as a word of its own only."""
LEVELS_OF_JSON: Final = 3
"""JSON in a string of JSON, as servers log it, in a line of our log."""
MIN_BASE64: Final = 8
"""Characters of base64 that are the same wherever the value stands in what is encoded."""


class Redactor:
    """It never forgets a value: one that is not used any more may still be valid."""

    def __init__(self) -> None:
        self._values: set[str] = set()
        self._forms: list[str] = []
        """All that is replaced, the longest first: one may be a part of another."""
        self._words: re.Pattern[str] | None = None

    def learn(self, values: Iterable[str]) -> None:
        """Values of several lines are found line by line, too, as programs print them."""
        new = {part for value in values for part in (value, *value.splitlines()) if len(part.strip()) >= MIN_LENGTH}
        if new <= self._values:
            return
        self._values |= new
        long = [value for value in self._values if len(value) >= MIN_WITHIN_WORDS]
        words = {form for value in self._values if len(value) < MIN_WITHIN_WORDS for form in _escaped(value)}
        forms = {form for value in long for form in (*_escaped(value), *_in_base64(value))}
        self._forms = sorted(forms, key=len, reverse=True)
        either = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
        self._words = re.compile(rf"(?<![A-Za-z0-9])(?:{either})(?![A-Za-z0-9])") if words else None

    def redact(self, text: str) -> str:
        for form in self._forms:
            if form in text:
                text = text.replace(form, REDACTED)
        return self._words.sub(REDACTED, text) if self._words is not None else text

    def redact_all(self, value: Any) -> Any:
        """A JSON value with all its strings redacted."""
        match value:
            case str():
                return self.redact(value)
            case dict():
                return {key: self.redact_all(inner) for key, inner in value.items()}
            case list():
                return [self.redact_all(inner) for inner in value]
            case _:
                return value


def _escaped(value: str) -> Iterator[str]:
    yield value
    for quoted in (quote(value), quote(value, safe=""), quote_plus(value)):
        yield quoted
        yield re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), quoted)
        yield quote(quoted, safe="")
    yield repr(value)[1:-1]
    for ascii_only in (True, False):
        text = value
        for _ in range(LEVELS_OF_JSON):
            text = _in_json(text, ascii_only)
            yield text


def _in_json(value: str, ascii_only: bool) -> str:
    return json.dumps(value, ensure_ascii=ascii_only)[1:-1]


def _in_base64(value: str) -> Iterator[str]:
    """What is the same wherever the value begins in the bytes that are encoded, by three."""
    raw = value.encode(errors="replace")
    for before in range(3):
        first = -(-before * 8 // 6)  # the characters up to here also depend on what is before
        last = (before + len(raw)) * 8 // 6  # and those from here on what is behind
        if last - first >= MIN_BASE64:
            for encode in (base64.b64encode, base64.urlsafe_b64encode):
                yield encode(bytes(before) + raw).decode()[first:last]
