"""Redacts secrets: finds which strings of a configuration are secret, and the same values in any other text.

`shown` is the configuration for Agents, with `"<redacted>"` for secrets. `Redactor` finds them again in all that this
process says (logs, reasons, and the texts of errors that Agents get), also in URL, base64 or JSON form, or as `repr`
writes them. It does not change the result of a tool that succeeded. Redact a text before you cut it: the beginning of
a secret is not found.
"""

import base64
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from smcp_bus import exact_json
from smcp_computer.config.file import ComputerConfig
from smcp_computer.config.lint import PARAMETERS, Placeholder, changed, is_foreign, is_pure, strings
from smcp_proto.printable import SCHEME, SECRET_IN_TEXT, SECRET_WORD
from smcp_proto.schemas import config as schemas

REDACTED: Final = "<redacted>"
MIN_LENGTH: Final = 4
"""Characters of a value that is looked for: a shorter one is in every text."""
MIN_WITHIN_WORDS: Final = 8
"""A shorter value is found as a word of its own only, and not in base64."""
SHOWN: Final = 256
"""Characters of a URI in a log: what a server sends has no bound."""
SEARCHED: Final = 16 * 1024
"""Characters that are searched of a text of which less is shown: a secret that begins in what is shown ends in them."""
MAX_ERROR: Final = 256 * 1024
"""Bytes of what is said about a failure. Searching them blocks the event loop: 15 ms for 30 secrets."""
PER_VALUE: Final = 64
"""Each value in it counts as so many: it takes as long to look at."""


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
        unchanged = {value: max(re.findall(r"[A-Za-z0-9]+", value), key=len, default="") for value in new}
        known = self._values | {value: (unchanged[value], _escaped(value)) for value in new}
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

    def redact_json(self, value: Any) -> Any:
        """A JSON value without secrets in its strings and the names of its fields; as text, where one was a number.
        Raises ValueError: it is longer than `MAX_ERROR`."""
        if _is_long(value) or len(written := exact_json.written(value)) > MAX_ERROR:
            raise ValueError("too large")
        redacted = self.redact(written.decode())
        try:
            return exact_json.read(redacted.encode())
        except ValueError:
            return redacted


def _is_long(value: Any) -> bool:
    """Whether a JSON value has more than `MAX_ERROR` characters, found without writing it: 32 MiB take 0.5 s."""
    size, left = 0, [value]
    while left and size <= MAX_ERROR:
        size += PER_VALUE
        match left.pop():
            case str(text):
                size += len(text)
            case dict(fields):
                left += [*fields, *fields.values()]
            case list(items):
                left += items
    return size > MAX_ERROR


def _escaped(value: str) -> re.Pattern[str]:
    """The value as it is, and as URLs, JSON and Python's `repr` write it, also one in the other. A text is searched in
    linear time: a run of backslashes is looked at once, from its beginning."""
    pattern = "".join(map(_escapes_of, value))
    if pattern.startswith("\\"):
        pattern = rf"(?<!\\){pattern}"
    if len(value) < MIN_WITHIN_WORDS:
        # in JSON a control character before the word ends with a letter or digit, as in `\n` and `\u0000`
        pattern = rf"(?:(?<![A-Za-z0-9])|(?<=\\[bfnrt])|(?<=\\u[0-9a-fA-F]{{4}})){pattern}(?![A-Za-z0-9])"
    return re.compile(pattern)


_BEHIND_BACKSLASHES: Final = {"\n": "n", "\r": "r", "\t": "t", "\\": ""}


def _escapes_of(character: str) -> str:
    if character.isascii() and character.isalnum():
        return character
    octets, units = character.encode(errors="replace"), character.encode("utf-16-be", errors="replace")
    percent = "".join(f"%(?:25)*{byte:02X}" for byte in octets)
    escapes = [r"\\++".join(f"x{byte:02x}" for byte in octets), f"[ux]0*{ord(character):x}"]
    escapes.append(r"\\++".join(f"u{high:02x}{low:02x}" for high, low in zip(units[::2], units[1::2], strict=True)))
    if character in _BEHIND_BACKSLASHES:
        escapes.append(_BEHIND_BACKSLASHES[character])
    plus = r"|\+" if character == " " else ""
    return rf"\\*+(?:{re.escape(character)}{plus}|(?i:{percent}|(?<=\\)(?:{'|'.join(escapes)})))"


def _in_base64(value: str) -> Iterator[str]:
    """What is the same wherever the value begins in the bytes that are encoded, by three."""
    raw = value.encode(errors="replace")
    for before in range(3):
        first = -(-before * 8 // 6)  # the characters up to here also depend on what is before
        last = (before + len(raw)) * 8 // 6  # and those from here on what is behind
        if last - first >= MIN_WITHIN_WORDS:
            for encode in (base64.b64encode, base64.urlsafe_b64encode):
                yield encode(bytes(before) + raw).decode()[first:last]


_SECRET_MAPS: Final = frozenset({"env", "headers"})
_NAMES: Final = frozenset({"name", "type", "forbidden_tools"})
"""Fields with names that Agents know anyway; a long one may look like a secret."""
_IN_TEXT: Final = (
    *SECRET_IN_TEXT,
    # hexadecimal, or upper and lower case with digits: words of a language have no such mixture
    re.compile(r"(?<!sha256:)\b(?P<secret>[0-9a-f]{32,}|(?=\w*[A-Z])(?=\w*[a-z])(?=\w*\d)\w{24,})\b"),
)
_IN_URL: Final = (
    re.compile(r"[?&#][^=&#\s]+=(?P<secret>[^&#\s]+)"),
    re.compile(r"(?<!/)/(?P<secret>(?=[\w.~%-]*\d)(?=[\w.~%-]*[A-Za-z])[\w.~%-]{20,})(?=[/?#\s]|$)"),
)
_PAIR_OPTIONS: Final = frozenset({"-H", "--header", "--headers", "-e", "--env"})
_PAIR: Final = re.compile(rf"[\w.-]+\s*[:=]\s*{SCHEME}(?P<secret>.+)", re.DOTALL | re.IGNORECASE)
"""A header or variable behind such an option."""
_VARIABLE: Final = re.compile(
    rf"(?:--(?:headers?|env)=[\w.-]+\s*[:=]|[A-Z][A-Z0-9_]+=)\s*{SCHEME}(?P<secret>.+)", re.DOTALL
)
"""The same in one argument, as for `env`."""
_PUBLIC: Final = re.compile(
    r"true|false|yes|no|on|off|none|null|auto|default|always|never|all|enabled?|disabled?|local(?:host)?"
    r"|debug|trace|verbose|info|notice|warn(?:ing)?|error|critical|fatal|silent|quiet"
    r"|prod(?:uction)?|dev(?:elopment)?|staging|test(?:ing)?|stdio|https?|sse|json|text|plain|utf-?8|ascii|utc"
    r"|bearer|basic|token|digest|gzip|deflate|br|identity|keep-alive|close|no-cache|no-store"
    r"|(?:application|text|image|\*)/[\w.+*-]+|q=[\d.]+|\d{1,5}|\d+(?:\.\d+){1,3}",
    re.IGNORECASE,
)
"""Values that are not secrets, and would be missed in every log line."""
_WORD_OF_TEXT: Final = re.compile(r"[A-Za-z]{1,12}|[\d.]{1,7}")
"""One of several words of a value that is alone no secret."""
_WELL_KNOWN: Final = frozenset({"HOME", "USER", "LOGNAME", "PATH", "PWD", "SHELL", "TMPDIR", "LANG", "HOSTNAME"})
"""Environment variables that are not secrets, and are parts of many texts."""


def shown(config: ComputerConfig) -> schemas.GetComputerConfigRet:
    """The reply to `client:get_config`."""
    servers = {name: _server(server) for name, server in config.servers.items()}
    inputs = [_input(definition) for definition in config.inputs.values()]
    return schemas.GetComputerConfigRet(servers=servers, **({"inputs": inputs} if inputs else {}))


def _server(server: schemas.MCPServerConfig) -> schemas.MCPServerConfig:
    dumped = server.model_dump()
    body = {key: value if key in _NAMES else _hidden(value) for key, value in dumped.items()}
    for key in _SECRET_MAPS:
        if isinstance(values := dumped[PARAMETERS].get(key), dict):
            body[PARAMETERS][key] = {
                name: value if isinstance(value, str) and is_pure(value) else REDACTED for name, value in values.items()
            }
    redacted: schemas.MCPServerConfig = schemas.SERVER_CONFIG.validate_python(body)
    return redacted


def _input(definition: schemas.MCPServerInput) -> schemas.MCPServerInput:
    body = definition.model_dump()
    body |= _hidden({field: body[field] for field in ("default", "command", "args") if field in body})
    if body.get("password") and body["default"] is not None:
        body["default"] = REDACTED
    redacted: schemas.MCPServerInput = schemas.SERVER_INPUT.validate_python(body)
    return redacted


def _hidden(value: Any) -> Any:
    def hide(text: str, path: str, before: str) -> str:
        for start, end in reversed(_secret_parts(text, before, wide=True)):
            text = text[:start] + REDACTED + text[end:]
        return text

    return changed(value, hide)


def _secrets(value: Any, *, wide: bool) -> list[tuple[str, str]]:
    """The path of each string that has a secret, and the secret. `wide`: also values that may be harmless."""
    return [
        (path.removeprefix("."), text[start:end])
        for path, text, before in strings(value, "")
        for start, end in _secret_parts(text, before, wide=wide)
    ]


def literal_secrets(config: ComputerConfig) -> list[str]:
    """Warnings of literals that seem to be secret, each with its place."""
    found: list[str] = []
    for name, server in config.servers.items():
        written = config.without_env_files.get(name, server).model_dump(exclude_unset=True)
        found += (config.places[name].field(path) for path, _ in _secrets(written, wide=False))
    for index, definition in enumerate(config.inputs.values()):
        if isinstance(definition, schemas.MCPServerCommandInput):
            written = definition.model_dump(include={"command", "args"})
            found += (f"inputs[{index}].{path}" for path, _ in _secrets(written, wide=False))
    why = "looks like a literal secret: `smcp-computer secrets set ID` keeps it, and ${input:ID} stands for it"
    return [f"{place}: {why}" for place in dict.fromkeys(found)]


def secrets_of_input(definition: schemas.MCPServerCommandInput) -> Iterator[str]:
    """The secret literals in the command and the arguments of a program."""
    yield from (secret for _, secret in _secrets(definition.model_dump(include={"command", "args"}), wide=True))


def secrets_of(server: schemas.MCPServerConfig) -> Iterator[str]:
    """The secret literals of a server."""
    body = server.model_dump()
    for field in _SECRET_MAPS:
        for name, value in (body[PARAMETERS].pop(field, None) or {}).items():
            if isinstance(value, str) and not is_pure(value):
                yield from _secret_words(name, value)
    yield from (secret for _, secret in _secrets(body, wide=True))


def _secret_words(name: str, value: str) -> Iterator[str]:
    """Of a variable or a header: its value, and the words of it, as a token stands behind `Bearer`."""
    words = value.split()
    if SECRET_WORD.search(name):
        yield from words[-1:]
    if not _is_public(value):
        yield value
        if len(words) > 1:
            yield from (word for word in words if not _WORD_OF_TEXT.fullmatch(word))


def _is_public(value: str) -> bool:
    return all(_PUBLIC.fullmatch(part) for part in re.split(r"[\s,;]+", value) if part)


def is_secret_value(placeholder: Placeholder, definition: schemas.MCPServerInput | None, value: str) -> bool:
    """Whether the value of a placeholder is secret."""
    if isinstance(definition, schemas.MCPServerPickStringInput):
        return False  # Agents see the options
    if isinstance(definition, schemas.MCPServerPromptStringInput) and not definition.password:
        return not _is_public(value)
    return placeholder.kind == "input" or placeholder.name not in _WELL_KNOWN


def _secret_parts(text: str, before: str, *, wide: bool) -> list[tuple[int, int]]:
    """Where the secrets of a literal are, from the first to the last; they do not overlap.

    `before`: what is before it in a list, as in `--token X`; the name of a variable, header or argument likewise.
    """
    if before.startswith("-") and "=" not in before and SECRET_WORD.search(before):
        literals = (word for word in text.split() if "${" not in word and not is_foreign(word))
        is_harmless = is_pure(text) or (not wide and _is_public(" ".join(literals)))
        return [] if is_harmless else [(0, len(text))]
    patterns = (*_IN_TEXT, *_IN_URL) if wide and "://" in text else _IN_TEXT
    found = [match for pattern in patterns for match in pattern.finditer(text)]
    if wide and (pair := (_PAIR if before in _PAIR_OPTIONS else _VARIABLE).fullmatch(text)):
        found += [] if _is_public(pair["secret"]) else [pair]
    parts: list[tuple[int, int]] = []
    for start, end in sorted(match.span("secret") for match in found if "${" not in match["secret"]):
        if parts and start < parts[-1][1]:
            parts[-1] = (parts[-1][0], max(end, parts[-1][1]))
        else:
            parts.append((start, end))
    return parts
