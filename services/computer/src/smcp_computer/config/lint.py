"""Checks of a configuration file: errors and warnings, each with its place in the file. Pure.

A warning (an unknown field, a URL that is not one, a placeholder without an input) does not keep a Computer from
running: `run` logs it, and `validate` refuses it unless it is lenient.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from smcp_computer.config.host_settings import DEFAULTS, HostSettings
from smcp_proto.schemas.config import (
    MCPServerCommandInput,
    MCPServerPickStringInput,
    MCPServerPromptStringInput,
    MCPServerStdioConfig,
    MCPServerStdioParameters,
    MCPServerStreamableHttpConfig,
    MCPServerStreamableHttpParameters,
    MCPSSEConfig,
    MCPSSEParameters,
)
from smcp_proto.schemas.tools import ToolMeta
from smcp_proto.validation import field_of, reason_of
from smcp_service.settings import did_you_mean


class ConfigError(Exception):
    """The file cannot be used as it is. `problems` has all that is wrong, each with its place in the file."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class CannotRun(ConfigError):
    """One server can never run with this file in the environment of this process."""


class InputProgramFailed(ConfigError):
    """The program of a `command` input gave no value; it may give one another time."""


def wrong_fields(error: ValidationError) -> list[tuple[str, str]]:
    """The path of each field that is wrong, and why."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    return [(field_of(one), reason_of(one)) for one in errors]


_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]+")
PARAMETERS: Final = "server_parameters"


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a server in the file: under the key `above`, or at the top level. `flat`: its parameters are
    beside its other fields, as other MCP hosts write them."""

    above: str
    name: str
    flat: bool = False

    def field(self, path: str = "") -> str:
        """The place of a field; `path` (with dots) is that in the structure of the protocol."""
        if self.flat:
            path = path.removeprefix(PARAMETERS).lstrip(".")
        own = self.name if _PLAIN.fullmatch(self.name) else json.dumps(self.name, ensure_ascii=False)
        return ".".join(part for part in (self.above, own, path) if part)


_PLACEHOLDER: Final = re.compile(r"\$\{(input|env):([^${}]+)\}")


@dataclass(frozen=True, slots=True)
class Placeholder:
    kind: str
    name: str

    def __str__(self) -> str:
        return f"${{{self.kind}:{self.name}}}"


def is_pure(text: str) -> bool:
    """Whether `text` is made of placeholders alone, so that it tells no secret."""
    return bool(text) and not _PLACEHOLDER.sub("", text).strip()


def placed(value: Any, path: str) -> Iterator[tuple[str, Placeholder]]:
    """The placeholders in all strings of a JSON value, each with the path of its string, which begins with `path`."""
    match value:
        case str():
            for found in _PLACEHOLDER.finditer(value):
                yield path, Placeholder(*found.groups())
        case dict():
            for key, inner in value.items():
                yield from placed(inner, f"{path}.{key}")
        case list():
            for index, inner in enumerate(value):
                yield from placed(inner, f"{path}.{index}")


def replace_all(value: Any, lookup: Callable[[Placeholder], str]) -> Any:
    """A copy of a JSON value with the placeholders of its strings replaced; what was put in is not searched again."""
    match value:
        case str():
            return _PLACEHOLDER.sub(lambda found: lookup(Placeholder(*found.groups())), value)
        case dict():
            return {key: replace_all(inner, lookup) for key, inner in value.items()}
        case list():
            return [replace_all(inner, lookup) for inner in value]
        case _:
            return value


def no_input(placeholder: Placeholder, known: Iterable[str]) -> str:
    return f"{placeholder}: no input has this id{did_you_mean(placeholder.name, known)}"


_SERVERS: Final[Mapping[str, tuple[type[BaseModel], type[BaseModel]]]] = {
    "stdio": (MCPServerStdioConfig, MCPServerStdioParameters),
    "streamable": (MCPServerStreamableHttpConfig, MCPServerStreamableHttpParameters),
    "sse": (MCPSSEConfig, MCPSSEParameters),
}
_INPUTS: Final[Mapping[str, type[BaseModel]]] = {
    "promptString": MCPServerPromptStringInput,
    "pickString": MCPServerPickStringInput,
    "command": MCPServerCommandInput,
}
TOP_LEVEL: Final = ("servers", "mcpServers", "inputs", DEFAULTS)
_ANYWHERE: Final = "$schema"


def of_top_level(document: Mapping[str, Any], used: Iterable[str]) -> Iterator[str]:
    """Warns of keys beside `used`, in a file whose servers stand under a key of their own."""
    for key in document.keys() - set(used) - {_ANYWHERE}:
        yield f"{key}: is not read{did_you_mean(key, TOP_LEVEL)}"


def of_server(place: Place, body: Mapping[str, Any]) -> Iterator[str]:
    """Warns of a server's unknown fields; `body` is in the structure of the protocol."""
    kind = body.get("type")
    models = [_SERVERS[kind]] if isinstance(kind, str) and kind in _SERVERS else list(_SERVERS.values())
    fields = {name for model, _ in models for name in model.model_fields} | HostSettings.model_fields.keys()
    inner = {name for _, model in models for name in model.model_fields}
    for key in _unknown(body, fields):
        if key in inner and not place.flat:
            yield f"{place.field(key)}: is not read here; it belongs into {PARAMETERS!r}"
        else:
            yield _ignored(place.field(key), key, fields | inner)
    meta = set(ToolMeta.model_fields)
    parts = [(PARAMETERS, body.get(PARAMETERS), inner), ("default_tool_meta", body.get("default_tool_meta"), meta)]
    if isinstance(body.get("tool_meta"), dict):
        parts += [(f"tool_meta.{tool}", part, meta) for tool, part in body["tool_meta"].items()]
    for path, part, known in parts:
        for key in _unknown(part, known):
            yield _ignored(place.field(f"{path}.{key}"), key, known)


def of_parameters(place: Place, body: Mapping[str, Any], input_ids: Collection[str]) -> Iterator[str]:
    """Warns of a URL that is not one, and of placeholders for which the file has no input."""
    parameters = body.get(PARAMETERS)
    url = parameters.get("url") if isinstance(parameters, dict) else None
    if isinstance(url, str) and "${" not in url and not _is_http(url):
        yield f"{place.field(f'{PARAMETERS}.url')}: is no URL like http://host:port/path or https://host/path"
    for path, placeholder in placed(parameters, PARAMETERS):
        if placeholder.kind == "input" and placeholder.name not in input_ids and body.get("disabled") is not True:
            yield f"{place.field(path)}: {no_input(placeholder, input_ids)}"


def of_input(place: str, body: Mapping[str, Any]) -> Iterator[str]:
    kind = body.get("type")
    models = [_INPUTS[kind]] if isinstance(kind, str) and kind in _INPUTS else list(_INPUTS.values())
    fields = {name for model in models for name in model.model_fields}
    for key in _unknown(body, fields):
        yield _ignored(f"{place}.{key}", key, fields)


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0 and not any(map(str.isspace, url))


def _unknown(body: Any, known: Iterable[str]) -> list[str]:
    return [key for key in body if key not in {*known, _ANYWHERE}] if isinstance(body, dict) else []


def _ignored(place: str, key: str, known: Iterable[str]) -> str:
    return f"{place}: is not a known field and is ignored{did_you_mean(key, known)}"
