"""Removes credentials from the configuration that Agents may read. Pure.

Placeholders are kept, they tell nothing. Values of `env` and `headers` that are not placeholders alone, and the
default of a password input, become `"<redacted>"`.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from smcp_computer.config.file import ComputerConfig
from smcp_computer.config.lint import PARAMETERS, is_pure
from smcp_proto.schemas.config import (
    SERVER_CONFIG,
    SERVER_INPUT,
    GetComputerConfigRet,
    MCPServerConfig,
    MCPServerInput,
    MCPServerPromptStringInput,
)

REDACTED: Final = "<redacted>"
_SECRET_MAPS: Final = ("env", "headers")
_WORD: Final = r"(?:(?:api|access|private)[-_]?key|token|secret|passw(?:or)?d|credential|bearer)"
_SECRET_WORD: Final = re.compile(_WORD, re.IGNORECASE)
_ASSIGNED: Final = re.compile(rf"{_WORD}s?[=:](?!\$\{{)\S", re.IGNORECASE)
_USER_INFO: Final = re.compile(r"\w://[^/\s:@]+:(?!\$\{)[^/\s@]+@")
_KNOWN_FORM: Final = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}"
    r"|glpat-[\w-]{16,}|eyJ[\w-]{10,}\.[\w-]{10,}\.)"
)


def shown(config: ComputerConfig) -> GetComputerConfigRet:
    """The reply to `client:get_config`."""
    servers = {name: _server(server) for name, server in config.servers.items()}
    inputs = [_input(definition) for definition in config.inputs.values()]
    return GetComputerConfigRet(inputs=inputs, servers=servers) if inputs else GetComputerConfigRet(servers=servers)


def _server(server: MCPServerConfig) -> MCPServerConfig:
    body = server.model_dump()
    parameters = body[PARAMETERS]
    for name in _SECRET_MAPS:
        if isinstance(parameters.get(name), dict):
            parameters[name] = {
                key: value if isinstance(value, str) and is_pure(value) else REDACTED
                for key, value in parameters[name].items()
            }
    redacted: MCPServerConfig = SERVER_CONFIG.validate_python(body)
    return redacted


def _input(definition: MCPServerInput) -> MCPServerInput:
    body = definition.model_dump()
    if isinstance(definition, MCPServerPromptStringInput) and definition.password and definition.default is not None:
        body["default"] = REDACTED
    redacted: MCPServerInput = SERVER_INPUT.validate_python(body)
    return redacted


def literal_secrets(config: ComputerConfig) -> list[str]:
    """Places outside `env` and `headers` where a literal secret seems to stand; `get_config` shows those."""
    return [
        config.places[name].field(path.removeprefix("."))
        for name, server in config.servers.items()
        for path in _suspicious(server.model_dump(exclude_unset=True), "")
    ]


def _suspicious(value: Any, path: str) -> Iterator[str]:
    match value:
        case str():
            if _looks_secret(value):
                yield path
        case dict():
            for key, inner in value.items():
                if path != f".{PARAMETERS}" or key not in _SECRET_MAPS:
                    yield from _suspicious(inner, f"{path}.{key}")
        case list():
            for index, item in enumerate(value):
                here = f"{path}.{index}"
                if isinstance(item, str) and index and _is_secret_option(value[index - 1]) and not is_pure(item):
                    yield here
                else:
                    yield from _suspicious(item, here)


def _is_secret_option(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("-") and "=" not in value and bool(_SECRET_WORD.search(value))


def _looks_secret(text: str) -> bool:
    return bool(_KNOWN_FORM.search(text) or _ASSIGNED.search(text) or _USER_INFO.search(text))
