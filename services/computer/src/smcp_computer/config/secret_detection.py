"""Which strings of a configuration are secret, and the configuration without them that Agents may read. Pure.

Placeholders are kept, they tell nothing. Values of `env` and `headers` that are not placeholders alone, the default of
a password input, an argument of an input's program that is named like a secret, and what looks like a secret anywhere
else become `"<redacted>"`; in a URL also the user and the values of the query.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from smcp_computer.config.file import ComputerConfig
from smcp_computer.config.lint import PARAMETERS, Placeholder, is_pure
from smcp_computer.redaction import REDACTED
from smcp_proto.schemas.config import (
    SERVER_CONFIG,
    SERVER_INPUT,
    GetComputerConfigRet,
    MCPServerCommandInput,
    MCPServerConfig,
    MCPServerInput,
    MCPServerPickStringInput,
    MCPServerPromptStringInput,
)

_SECRET_MAPS: Final = frozenset({"env", "headers"})
_NAMES: Final = frozenset({"name", "type", "forbidden_tools"})
"""Fields with names that Agents know anyway; a long one may look like a secret."""
_WORD: Final = (
    r"(?:(?:api|access|private)[-_]?key|(?<!max[-_])token|secret|passw(?:or)?d|credential|bearer|authorization)"
)
_SECRET_WORD: Final = re.compile(_WORD, re.IGNORECASE)
_IN_TEXT: Final = (
    re.compile(
        # `token=X`, and as a header, in JSON or in VRL: `Authorization: Bearer X`, `"token": "X"`, `.token = "X"`
        rf"{_WORD}s?(?:[=:]\s*|[\"']?\s*[=:]\s*[\"'])(?:(?:Bearer|Basic|Token)\s+)?(?P<secret>[^\s&,;\"']+)",
        re.IGNORECASE,
    ),
    re.compile(r"\w://(?P<secret>[^/\s@]+)@"),
    re.compile(
        r"\b(?P<secret>sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|xox[abprs]-[\w-]{10,}"
        r"|AKIA[0-9A-Z]{16}|glpat-[\w-]{16,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
    ),
    # hexadecimal, or upper and lower case with digits: words of a language have no such mixture
    re.compile(r"(?<!sha256:)\b(?P<secret>[0-9a-f]{32,}|(?=\w*[A-Z])(?=\w*[a-z])(?=\w*\d)\w{24,})\b"),
)
_IN_QUERY: Final = re.compile(r"[?&][^=&#\s]+=(?P<secret>[^&#\s]+)")
_CREDENTIALS: Final = frozenset({"authorization", "proxy-authorization", "cookie"})
_PLAIN: Final = re.compile(r"[A-Za-z]{1,12}|[\d.]{1,7}")
"""Words and small numbers: settings, which would be missed in every log line."""
_WELL_KNOWN: Final = frozenset({"HOME", "USER", "LOGNAME", "PATH", "PWD", "SHELL", "TMPDIR", "LANG", "HOSTNAME"})
"""Environment variables that are no secrets, and are parts of many texts."""


def shown(config: ComputerConfig) -> GetComputerConfigRet:
    """The reply to `client:get_config`."""
    servers = {name: _server(server) for name, server in config.servers.items()}
    inputs = [_input(definition) for definition in config.inputs.values()]
    return GetComputerConfigRet(inputs=inputs, servers=servers) if inputs else GetComputerConfigRet(servers=servers)


def _server(server: MCPServerConfig) -> MCPServerConfig:
    dumped = server.model_dump()
    body = {key: value if key in _NAMES else _hidden(value, key) for key, value in dumped.items()}
    for key in _SECRET_MAPS & dumped[PARAMETERS].keys():
        body[PARAMETERS][key] = _without_literals(dumped[PARAMETERS][key])
    redacted: MCPServerConfig = SERVER_CONFIG.validate_python(body)
    return redacted


def _input(definition: MCPServerInput) -> MCPServerInput:
    body = definition.model_dump()
    if isinstance(definition, MCPServerPromptStringInput) and definition.password and definition.default is not None:
        body["default"] = REDACTED
    for field in {"default", "command", "args"} & body.keys():
        body[field] = _hidden(body[field], field)
    if isinstance(definition, MCPServerCommandInput) and definition.args:
        body["args"] |= {key: REDACTED for key, _ in _secret_arguments(definition.args)}
    redacted: MCPServerInput = SERVER_INPUT.validate_python(body)
    return redacted


def _without_literals(values: Any) -> Any:
    if not isinstance(values, dict):
        return values
    return {key: value if isinstance(value, str) and is_pure(value) else REDACTED for key, value in values.items()}


def _hidden(value: Any, field: str) -> Any:
    match value:
        case str():
            for start, end in reversed(_secret_parts(value, in_url=field == "url")):
                value = value[:start] + REDACTED + value[end:]
            return value
        case list():
            return [
                REDACTED if _is_value_of_secret(value, index) else _hidden(item, field)
                for index, item in enumerate(value)
            ]
        case dict():
            return {key: _hidden(inner, key) for key, inner in value.items()}
        case _:
            return value


def _secret_arguments(arguments: Mapping[str, str]) -> list[tuple[str, str]]:
    """Those of an input's program whose name says that the value is a secret."""
    return [(key, value) for key, value in arguments.items() if _SECRET_WORD.search(key) and not is_pure(value)]


def literal_secrets(config: ComputerConfig) -> list[str]:
    """Places outside `env` and `headers` where a literal secret seems to stand."""
    found = [
        config.places[name].field(path.removeprefix("."))
        for name, server in config.servers.items()
        for path in dict.fromkeys(path for path, _ in _suspicious(server.model_dump(exclude_unset=True), ""))
    ]
    for index, definition in enumerate(config.inputs.values()):
        if isinstance(definition, MCPServerCommandInput):
            paths = [path for path, _ in _suspicious(definition.args or {}, "")]
            paths += [f".{key}" for key, _ in _secret_arguments(definition.args or {})]
            found += (f"inputs[{index}].args{path}" for path in dict.fromkeys(paths))
    return found


def secrets_of_input(definition: MCPServerCommandInput) -> Iterator[str]:
    """The literals in the arguments of a program that must not be told."""
    arguments = definition.args or {}
    yield from (value for _, value in _secret_arguments(arguments))
    yield from (secret for _, secret in _suspicious(arguments, ""))


def secrets_of(server: MCPServerConfig) -> Iterator[str]:
    """The literals of a server that must not be told."""
    body = server.model_dump()
    parameters = body[PARAMETERS]
    for field in _SECRET_MAPS:
        for name, value in (parameters.get(field) or {}).items():
            if isinstance(value, str) and not is_pure(value):
                yield from _secret_words(name, value)
    if isinstance(url := parameters.get("url"), str):
        yield from (url[start:end] for start, end in _secret_parts(url, in_url=True))
    yield from (secret for _, secret in _suspicious(body, ""))


def _secret_words(name: str, value: str) -> Iterator[str]:
    """Of a variable or a header: its value, and the words of it, as a token stands behind `Bearer`."""
    words = value.split()
    if _SECRET_WORD.search(name) or name.lower() in _CREDENTIALS:
        yield from words[-1:]
    yield from (word for word in (value, *words) if not _PLAIN.fullmatch(word))


def is_secret_value(placeholder: Placeholder, definition: MCPServerInput | None, value: str) -> bool:
    """Whether what was put in for a placeholder must not be told."""
    if isinstance(definition, MCPServerPickStringInput):
        return False  # Agents see the options
    if isinstance(definition, MCPServerPromptStringInput) and not definition.password:
        return not _PLAIN.fullmatch(value)
    return placeholder.kind == "input" or placeholder.name not in _WELL_KNOWN


def _suspicious(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """The path of each string that has a secret, and the secret."""
    match value:
        case str():
            yield from ((path, value[start:end]) for start, end in _secret_parts(value))
        case dict():
            for key, inner in value.items():
                if path != f".{PARAMETERS}" or key not in _SECRET_MAPS:
                    yield from _suspicious(inner, f"{path}.{key}")
        case list():
            for index, item in enumerate(value):
                if _is_value_of_secret(value, index):
                    yield f"{path}.{index}", item
                else:
                    yield from _suspicious(item, f"{path}.{index}")


def _is_value_of_secret(arguments: list[Any], index: int) -> bool:
    """Whether an argument is behind one like `--token`."""
    option, value = arguments[index - 1] if index else None, arguments[index]
    if not isinstance(option, str) or not option.startswith("-") or "=" in option:
        return False
    return bool(_SECRET_WORD.search(option)) and isinstance(value, str) and not is_pure(value)


def _secret_parts(text: str, *, in_url: bool = False) -> list[tuple[int, int]]:
    """Where the secrets of a literal are, from the first to the last; they do not overlap."""
    patterns = (*_IN_TEXT, _IN_QUERY) if in_url else _IN_TEXT
    found = sorted(
        match.span("secret") for pattern in patterns for match in pattern.finditer(text) if "${" not in match["secret"]
    )
    parts: list[tuple[int, int]] = []
    for start, end in found:
        if parts and start < parts[-1][1]:
            parts[-1] = (parts[-1][0], max(end, parts[-1][1]))
        else:
            parts.append((start, end))
    return parts
