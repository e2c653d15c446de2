"""Reads a Computer's configuration file: JSON with the MCP servers and the inputs.

Three shapes are read: `{"servers": {NAME: {...}}, "inputs": [...]}`, the map of servers at the top level, and
`mcpServers` as other MCP hosts write it. In the latter two a server may also stand in the flat form of those hosts
(`command`, `args`, `env` or `url`, `headers` without `server_parameters`).
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from smcp_computer.config import lint
from smcp_computer.config.host_settings import DEFAULTS, HostSettings
from smcp_computer.config.lint import ConfigError, Place, wrong_fields
from smcp_proto.schemas.config import SERVER_CONFIG, SERVER_INPUT, MCPServerConfig, MCPServerInput
from smcp_service.settings import did_you_mean

MAX_FILE_BYTES: Final = 4 * 1024 * 1024
_FLAT_STDIO: Final = ("command", "args", "env", "cwd", "encoding", "encoding_error_handler")
_FLAT_HTTP: Final = ("url", "headers", "timeout", "sse_read_timeout", "terminate_on_close")
_FLAT_TYPES: Final = {"http": "streamable", "streamable-http": "streamable", "streamableHttp": "streamable"}


@dataclass(frozen=True)
class ComputerConfig:
    """The valid part of the file, with its placeholders, and the `problems` of the rest, each with its place."""

    servers: Mapping[str, MCPServerConfig] = field(default_factory=dict)
    inputs: Mapping[str, MCPServerInput] = field(default_factory=dict)
    host: Mapping[str, HostSettings] = field(default_factory=dict)
    """By server."""
    warnings: tuple[str, ...] = ()
    places: Mapping[str, Place] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def valid(self) -> "ComputerConfig":
        """Raises ConfigError: there are problems."""
        if self.problems:
            # with the warnings: a missing field may be one of the unknown ones
            raise ConfigError(*self.problems, *self.warnings)
        return self


def load_config(path: Path) -> ComputerConfig:
    """Raises ConfigError: the file cannot be read, or is not valid; each problem names the file."""
    try:
        return read_config(path).valid()
    except ConfigError as error:
        raise ConfigError(*(f"{path}: {problem}" for problem in error.problems)) from None


def parse_config(raw: bytes | str) -> ComputerConfig:
    """Raises ConfigError: the text is not a valid configuration."""
    return _read(raw).valid()


def read_config(path: Path) -> ComputerConfig:
    """Raises ConfigError: the file cannot be read, or is no JSON object; the message does not name the file."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or type(error).__name__}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(f"larger than {MAX_FILE_BYTES} bytes")
    return _read(raw)


def _read(raw: bytes | str) -> ComputerConfig:
    try:
        document = json.loads(raw, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError as error:
        raise ConfigError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except (ValueError, RecursionError):
        raise ConfigError("not JSON: not UTF-8 text, nested too deeply, or a number with very many digits") from None
    if not isinstance(document, dict):
        raise ConfigError("the file holds no JSON object")
    above, bodies = _servers_of(document)
    problems: list[str] = []
    warnings: list[str] = list(lint.of_top_level(document, (above, "inputs", DEFAULTS))) if above else []
    inputs = _inputs(document.get("inputs"), problems, warnings)
    input_ids = _ids(document.get("inputs"))
    defaults = _defaults(document.get(DEFAULTS, {}), problems) if above else {}
    servers: dict[str, MCPServerConfig] = {}
    host: dict[str, HostSettings] = {}
    places: dict[str, Place] = {}
    for name, written in bodies.items():
        body = written if above == "servers" else _unflattened(written)
        place = places[name] = Place(above, name, flat=body is not written)
        hint = "" if above else did_you_mean(name, lint.TOP_LEVEL)
        if not isinstance(body, dict):
            problems.append(f"{place.field()}: is no object{hint}")
            continue
        warnings += [*lint.of_server(place, body), *lint.of_parameters(place, body, input_ids)]
        try:
            host[name] = _host_settings(place, body, defaults)
            servers[name] = _server(place, body)
        except ConfigError as error:
            problems += (f"{problem}{hint}" for problem in error.problems)
    if not bodies:
        warnings.append("names no MCP servers")
    return ComputerConfig(servers, inputs, host, tuple(warnings), places, tuple(problems))


def _servers_of(document: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The key that holds the servers (empty: they stand at the top level), and the servers."""
    for key in ("servers", "mcpServers"):
        if isinstance(document.get(key), dict):
            return key, document[key]
        if key in document:
            raise ConfigError(f"{key}: must be an object of servers by name")
    return "", {name: body for name, body in document.items() if name not in ("inputs", "$schema")}


def _unflattened(body: Any) -> Any:
    """The structure of the protocol for what other MCP hosts write flat; everything else as it is."""
    if not isinstance(body, dict) or "server_parameters" in body or not ({"command", "url"} & body.keys()):
        return body
    fields = _FLAT_STDIO if "command" in body else _FLAT_HTTP
    kind = body.get("type", "stdio" if "command" in body else "streamable")
    return {
        **{key: value for key, value in body.items() if key not in fields},
        "type": _FLAT_TYPES.get(kind, kind) if isinstance(kind, str) else kind,
        "server_parameters": {key: body[key] for key in fields if key in body},
    }


def _server(place: Place, body: dict[str, Any]) -> MCPServerConfig:
    problems: list[str] = []
    if body.get("name", place.name) != place.name:
        problems.append(f"{place.field('name')}: is {body['name']!r} inside; the key and the name must agree")
    try:
        server: MCPServerConfig = SERVER_CONFIG.validate_python({**body, "name": place.name})
    except ValidationError as error:
        problems += (f"{place.field(path)}: {why}" for path, why in wrong_fields(error))
        raise ConfigError(*problems) from None
    if server.default_tool_meta is not None and server.default_tool_meta.alias is not None:
        problems.append(f"{place.field('default_tool_meta.alias')}: an alias belongs to one tool, in tool_meta")
    if problems:
        raise ConfigError(*problems)
    return server


def _defaults(written: Any, problems: list[str]) -> dict[str, Any]:
    if not isinstance(written, dict):
        problems.append(f"{DEFAULTS}: is no object")
        return {}
    try:
        HostSettings.model_validate(written)
    except ValidationError as error:
        problems += (f"{DEFAULTS}.{path}: {why}" for path, why in wrong_fields(error))
        return {}
    return written


def _host_settings(place: Place, body: dict[str, Any], defaults: dict[str, Any]) -> HostSettings:
    own = {name: body[name] for name in HostSettings.model_fields if name in body}
    try:
        return HostSettings.model_validate(defaults | own)
    except ValidationError as error:
        raise ConfigError(*(f"{place.field(path)}: {why}" for path, why in wrong_fields(error))) from None


def _inputs(bodies: Any, problems: list[str], warnings: list[str]) -> dict[str, MCPServerInput]:
    inputs: dict[str, MCPServerInput] = {}
    if bodies is not None and not isinstance(bodies, list):
        problems.append("inputs: is no list")
        return inputs
    for index, body in enumerate(bodies or []):
        place = f"inputs[{index}]"
        label = "".join(f" (input {said!r})" for said in _ids([body]))
        if isinstance(body, dict):
            warnings += (f"{warning}{label}" for warning in lint.of_input(place, body))
        try:
            definition: MCPServerInput = SERVER_INPUT.validate_python(body)
        except ValidationError as error:
            problems += (f"{place}{'.' if path else ''}{path}: {why}{label}" for path, why in wrong_fields(error))
            continue
        if definition.id in inputs:
            problems.append(f"{place}.id: is used twice{label}")
        inputs[definition.id] = definition
    return inputs


def _ids(bodies: Any) -> list[str]:
    ids = [body.get("id") for body in bodies if isinstance(body, dict)] if isinstance(bodies, list) else []
    return [said for said in ids if isinstance(said, str)]


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for key, times in Counter(key for key, _ in pairs).items():
        if times > 1:
            raise ConfigError(f"{key!r} stands twice in one object")
    return dict(pairs)
