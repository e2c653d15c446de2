"""What a configuration file says and nothing reads, or that cannot work. Pure.

Such things do not keep a Computer from running (a file may be written for a later version, and a value that is missing
concerns its own server alone): `run` warns of them, and `validate` refuses them unless it is told to be lenient.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import BaseModel

from smcp_computer.config.placeholders import Placeholder, find
from smcp_computer.config.places import PARAMETERS, Place, meant
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
_TOP: Final = ("servers", "mcpServers", "inputs")
_ANYWHERE: Final = "$schema"


def of_top_level(document: Mapping[str, Any], used: Iterable[str]) -> Iterator[str]:
    """Keys beside `used`, in a file whose servers stand under a key of their own."""
    for key in document.keys() - set(used) - {_ANYWHERE}:
        yield f"{key}: is not read{'' if key in _TOP else meant(key, _TOP)}"


def of_server(place: Place, body: Mapping[str, Any]) -> Iterator[str]:
    """Fields that nothing reads.

    Args:
        body: in the structure of the protocol.
    """
    kind = body.get("type")
    models = [_SERVERS[kind]] if isinstance(kind, str) and kind in _SERVERS else list(_SERVERS.values())
    fields = {name for model, _ in models for name in model.model_fields}
    inner = {name for _, model in models for name in model.model_fields}
    split = isinstance(body.get(PARAMETERS), dict)
    for key in _unread(body, fields):
        if not place.flat and key in inner:
            yield f"{place.field(key)}: is not read here; it belongs into {PARAMETERS!r}"
        else:
            yield _not_read(place.field(key), key, fields if split and not place.flat else fields | inner)
    if split and not place.flat:
        for key in _unread(body[PARAMETERS], inner):
            yield _not_read(place.field(f"{PARAMETERS}.{key}"), key, inner)
    metas = {"default_tool_meta": body.get("default_tool_meta")}
    if isinstance(body.get("tool_meta"), dict):
        metas |= {f"tool_meta.{tool}": meta for tool, meta in body["tool_meta"].items()}
    for path, meta in metas.items():
        for key in _unread(meta, ToolMeta.model_fields):
            yield _not_read(place.field(f"{path}.{key}"), key, ToolMeta.model_fields)


def of_input(place: str, body: Mapping[str, Any]) -> Iterator[str]:
    """Fields of an input that nothing reads."""
    kind = body.get("type")
    models = [_INPUTS[kind]] if isinstance(kind, str) and kind in _INPUTS else list(_INPUTS.values())
    fields = {name for model in models for name in model.model_fields}
    for key in _unread(body, fields):
        yield _not_read(f"{place}.{key}", key, fields)


def of_url(place: Place, body: Mapping[str, Any]) -> Iterator[str]:
    """A URL that nothing can be asked at over HTTP. One with a placeholder is not looked at."""
    parameters = body.get(PARAMETERS)
    url = parameters.get("url") if isinstance(parameters, dict) else None
    if isinstance(url, str) and "${" not in url and not _is_http(url):
        yield f"{place.field(f'{PARAMETERS}.url')}: is no URL like http://host:port/path or https://host/path"


def undeclared(place: Place, body: Mapping[str, Any], inputs: Iterable[str]) -> Iterator[str]:
    """Placeholders of a server that no input of the file stands behind.

    Args:
        inputs: the ids of the file's inputs.
    """
    known = list(inputs)
    if body.get("disabled") is True:
        return
    for path, placeholder in placed(body.get(PARAMETERS), PARAMETERS):
        if placeholder.kind == "input" and placeholder.name not in known:
            yield f"{place.field(path)}: {no_input(placeholder, known)}"


def no_input(placeholder: Placeholder, known: Iterable[str]) -> str:
    """What is said of a placeholder that none of the `known` ids stands behind."""
    return f"{placeholder}: no input has this id{meant(placeholder.name, known)}"


def placed(value: Any, path: str) -> Iterator[tuple[str, Placeholder]]:
    """The placeholders in all strings of a JSON value, each with the path of its string, which begins with `path`."""
    match value:
        case str():
            for placeholder in find(value):
                yield path, placeholder
        case dict():
            for key, inner in value.items():
                yield from placed(inner, f"{path}.{key}")
        case list():
            for index, inner in enumerate(value):
                yield from placed(inner, f"{path}.{index}")


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0 and not any(map(str.isspace, url))


def _unread(body: Any, known: Iterable[str]) -> list[str]:
    return [key for key in body if key not in {*known, _ANYWHERE}] if isinstance(body, dict) else []


def _not_read(place: str, key: str, known: Iterable[str]) -> str:
    return f"{place}: is not a known field and is ignored{meant(key, known)}"
