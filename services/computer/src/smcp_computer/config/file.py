"""Reads a Computer's configuration file: JSON with the MCP servers and the inputs.

Three shapes are read: `{"servers": {NAME: {...}}, "inputs": [...]}`, the map of servers at the top level, and
`mcpServers` as other MCP hosts write it. In the latter two a server may also stand in the flat form of those hosts
(`command`, `args`, `env` or `url`, `headers` without `server_parameters`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from smcp_computer.config.errors import ConfigError
from smcp_proto.schemas.config import SERVER_CONFIG, SERVER_INPUT, MCPServerConfig, MCPServerInput
from smcp_proto.validation import malformed

MAX_FILE_BYTES: Final = 4 * 1024 * 1024
_FLAT_STDIO: Final = ("command", "args", "env", "cwd", "encoding", "encoding_error_handler")
_FLAT_HTTP: Final = ("url", "headers", "timeout", "sse_read_timeout", "terminate_on_close")
_FLAT_TYPES: Final = {"http": "streamable", "streamable-http": "streamable", "streamableHttp": "streamable"}


@dataclass(frozen=True)
class ComputerConfig:
    """The file's content, validated. Placeholders stand in it as they were written."""

    servers: Mapping[str, MCPServerConfig] = field(default_factory=dict)
    """By name, in the file's order."""
    inputs: Mapping[str, MCPServerInput] = field(default_factory=dict)
    """By id, in the file's order."""


def load_config(path: Path) -> ComputerConfig:
    """Read the file.

    Raises:
        ConfigError: it cannot be read, is not JSON, or says something that is not known; the message names the file,
            and the server and the field where there is one.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or type(error).__name__}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
    try:
        return parse_config(raw)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse_config(raw: bytes | str) -> ComputerConfig:
    """Validate the text of a configuration file; raises ConfigError as `load_config`."""
    try:
        document = json.loads(raw, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError as error:
        raise ConfigError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except (UnicodeDecodeError, RecursionError):
        raise ConfigError("not JSON: not UTF-8 text, or nested too deeply") from None
    if not isinstance(document, dict):
        raise ConfigError("the file holds no JSON object")
    servers, inputs = _shape(document)
    return ComputerConfig(
        servers={name: _server(name, body) for name, body in servers.items()},
        inputs=_inputs(inputs),
    )


def _shape(document: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    flat_allowed = "servers" not in document
    key = next((key for key in ("servers", "mcpServers") if isinstance(document.get(key), dict)), None)
    if key is None and "servers" in document:
        raise ConfigError('"servers" is not an object of servers by name')
    inputs = document.get("inputs")
    if inputs is not None and not isinstance(inputs, list):
        raise ConfigError('"inputs" is not a list')
    servers = document[key] if key else {name: body for name, body in document.items() if name != "inputs"}
    if flat_allowed:
        servers = {name: _unflattened(body) for name, body in servers.items()}
    return servers, inputs or []


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


def _server(name: str, body: Any) -> MCPServerConfig:
    if not isinstance(body, dict):
        raise ConfigError(f"server {name!r}: not an object")
    if body.get("name", name) != name:
        raise ConfigError(f"server {name!r}: name: is {body['name']!r} inside; the key and the name must agree")
    try:
        server: MCPServerConfig = SERVER_CONFIG.validate_python({**body, "name": name})
    except ValidationError as error:
        raise ConfigError(f"server {name!r}: {malformed(error).message}") from None
    if server.default_tool_meta is not None and server.default_tool_meta.alias is not None:
        raise ConfigError(f"server {name!r}: default_tool_meta.alias: an alias belongs to one tool, in tool_meta")
    return server


def _inputs(bodies: list[Any]) -> dict[str, MCPServerInput]:
    inputs: dict[str, MCPServerInput] = {}
    for index, body in enumerate(bodies):
        said = body.get("id") if isinstance(body, dict) else None
        label = f"input {said!r}" if isinstance(said, str) else f"inputs[{index}]"
        try:
            definition: MCPServerInput = SERVER_INPUT.validate_python(body)
        except ValidationError as error:
            raise ConfigError(f"{label}: {malformed(error).message}") from None
        if definition.id in inputs:
            raise ConfigError(f"{label}: id: is used twice")
        inputs[definition.id] = definition
    return inputs


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ConfigError(f"{key!r} stands twice in one object")
        found[key] = value
    return found
