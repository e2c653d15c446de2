"""Checks of a configuration file: errors and warnings, each with its place in the file. Pure.

A problem keeps a Computer from running. A warning does not: `run` logs it, and `validate` shows it.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from smcp_computer.settings import DEFAULTS, HostSettings
from smcp_proto.printable import did_you_mean, escaped_json, is_url
from smcp_proto.schemas.config import MCPServerConfig, MCPServerInput
from smcp_proto.schemas.tools import ToolMeta
from smcp_proto.validation import UNKNOWN_TYPE, field_of, reason_of
from smcp_service.settings import SettingsError

T = TypeVar("T")


class ConfigError(SettingsError):
    """The file cannot be used as it is. `problems` has all that is wrong, each with its place in the file; `warnings`
    what else is odd: a missing field may be one of the unknown ones."""

    def at(self, file: Path) -> "ConfigError":
        """The same with the name of the file before each, without control characters, which names in it may have."""
        said = (self.problems, self.warnings)
        problems, warnings = ([escaped_json(f"{file}: {each}") for each in part] for part in said)
        return ConfigError(*problems, warnings=warnings)


class CannotRun(ConfigError):
    """One server can never run with this file in the environment of this process."""


def checked(
    validate: Callable[[Any], T], value: Any, problems: list[str], place: Callable[[str], str] = str
) -> T | None:
    """What `validate` of a model of pydantic makes of a value. None: it is wrong, and each field is among `problems`.

    `place` makes of the path of a field what is shown.
    """
    try:
        return validate(value)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False)
        problems += (": ".join(filter(None, (place(field_of(each)), _why(each)))) for each in errors)
        return None


def _why(error: ErrorDetails) -> str:
    written, known = "", list[str]()
    if error["type"] == "extra_forbidden":  # other models keep what they do not know: see `lint_fields`
        schema = HostSettings.model_json_schema()
        known = [name for part in (schema, *schema["$defs"].values()) for name in part.get("properties", ())]
        written = str(error["loc"][-1])
    elif error["type"] == UNKNOWN_TYPE and isinstance(error["input"], dict):
        written, known = str(error["input"].get("type")), [*SERVER_MODELS, *TYPES, *INPUT_MODELS]
    return hinted(written, known, reason_of(error))


_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]+")
PARAMETERS: Final = "server_parameters"


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a server in the file: under the key `above`, or at the top level."""

    above: str
    name: str
    written: Mapping[str, str] = field(default_factory=dict)
    """Where other MCP hosts write a field (with dots); parameters beside the other fields: `{PARAMETERS: ""}`."""

    def field(self, path: str = "") -> str:
        """The place of a field; `path` (with dots) is that in the structure of the protocol."""
        outer, inner = path, ""
        while outer and outer not in self.written:
            outer, _, last = outer.rpartition(".")
            inner = f"{last}.{inner}" if inner else last
        own = self.name if _PLAIN.fullmatch(self.name) else json.dumps(self.name, ensure_ascii=False)
        return ".".join(part for part in (self.above, own, self.written.get(outer, ""), inner) if part)


_PLACEHOLDER: Final = re.compile(r"\$\{(input|env):([^${}]+)\}")
_FOREIGN: Final = re.compile(
    r"\$\{\{?\s*(?:(?:env|secrets)\.)?(?P<name>[A-Za-z_]\w*)?[^}]*\}?\}"
    r"|(?<![\w$])\$(?P<bare>[A-Z][A-Z0-9_]+)\b|(?<!\w)%(?P<percent>[A-Z_]{3,})%"
)
"""Placeholders of shells and other hosts: `${NAME}`, `${NAME:-x}`, `${env.NAME}`, `$NAME`, `%NAME%`."""


@dataclass(frozen=True, slots=True)
class Placeholder:
    kind: str
    name: str

    def __str__(self) -> str:
        return f"${{{self.kind}:{self.name}}}"


def is_foreign(text: str) -> bool:
    """Whether `text` is a placeholder of a shell or another host, which is not replaced here."""
    return _FOREIGN.fullmatch(text) is not None


def is_pure(text: str) -> bool:
    """Whether `text` is made of placeholders alone, so that it tells no secret."""
    return bool(text) and not _PLACEHOLDER.sub("", text).strip()


def strings(value: Any, path: str) -> list[tuple[str, str, str]]:
    """All strings of a JSON value but for keys: the path, which begins with `path`, the string, and what is before it
    in a list."""
    found: list[tuple[str, str, str]] = []

    def look(text: str, path: str, before: str) -> str:
        found.append((path, text, before))
        return text

    changed(value, look, path)
    return found


def placed(value: Any, path: str) -> Iterator[tuple[str, Placeholder]]:
    """The placeholders in all strings of a JSON value, each after the path of its string, which begins with `path`."""
    for where, text, _ in strings(value, path):
        for found in _PLACEHOLDER.finditer(text):
            yield where, Placeholder(*found.groups())


def replace_all(value: Any, lookup: Callable[[Placeholder], str]) -> Any:
    """A copy of a JSON value with the placeholders of its strings replaced; what was put in is not searched again."""
    return changed(value, lambda text, *_: _PLACEHOLDER.sub(lambda found: lookup(Placeholder(*found.groups())), text))


def changed(value: Any, change: Callable[[str, str, str], str], path: str = "", before: Any = "") -> Any:
    """A copy of a JSON value with all its strings changed, but for keys. `change` gets the string, its path, and what
    is before it in a list, or `--KEY` for variables, headers and arguments."""
    match value:
        case str():
            return change(value, path, before if isinstance(before, str) else "")
        case list():
            each = zip(["", *value], value, strict=False)
            return [changed(item, change, f"{path}.{index}", last) for index, (last, item) in enumerate(each)]
        case dict():
            option = "--" if path.endswith((".env", ".headers", ".args")) else ""
            return {key: changed(inner, change, f"{path}.{key}", option and f"--{key}") for key, inner in value.items()}
        case _:
            return value


def no_input(placeholder: Placeholder, known: Iterable[str]) -> str:
    return f"{placeholder}: {hinted(placeholder.name, known, 'is not the id of an input')}"


def hinted(written: str, known: Iterable[str], why: str) -> str:
    """`why` about an unknown name, after the known one that was probably meant."""
    hint = did_you_mean(written, known).removeprefix("; ")
    return f"{hint} It {why}" if hint else why


def _models(union: Any) -> dict[str, type[BaseModel]]:
    """The models of a union of the schemas, by the `type` that they are for."""
    models = (get_args(member)[0] for member in get_args(get_args(union)[0]))
    return {get_args(model.model_fields["type"].annotation)[0]: model for model in models}


SERVER_MODELS: Final = _models(MCPServerConfig)
INPUT_MODELS: Final = _models(MCPServerInput)
TYPES: Final = dict.fromkeys(("http", "streamable-http", "streamableHttp"), "streamable")
"""Types of servers, by what other hosts call them."""
TOP_LEVEL: Final = ("servers", "inputs", DEFAULTS)
_UNKNOWN: Final = "is not a known field"


def fields_of(kind: Any) -> tuple[set[str], set[str]]:
    """The fields of a server of a type, and those of its parameters; of all servers where there is no such type."""
    models = _of_type(kind, SERVER_MODELS)
    fields = {name for model in models for name in model.model_fields} | HostSettings.model_fields.keys()
    parameters: list[Any] = [model.model_fields[PARAMETERS].annotation for model in models]
    return fields, {name for model in parameters for name in model.model_fields}


OF_PROGRAMS: Final = ("env_file", "user", "environment", "limits", "cgroup", "sandbox")


def lint_fields(place: Place, body: Mapping[str, Any]) -> Iterator[str]:
    """Warns of fields that are not read, and of settings for a program of this host at a server over HTTP; `body` is in
    the structure of the protocol."""
    if body.get("type") in ("streamable", "sse"):
        for key in filter(body.__contains__, OF_PROGRAMS):
            yield f"{place.field(key)}: has no effect: it is for stdio servers, and this one runs elsewhere"
    fields, inner = fields_of(body.get("type"))
    meta = set(ToolMeta.model_fields)
    parts = [("", body, fields), (f"{PARAMETERS}.", body.get(PARAMETERS), inner)]
    parts.append(("default_tool_meta.", body.get("default_tool_meta"), meta))
    if isinstance(body.get("tool_meta"), dict):
        parts += [(f"tool_meta.{tool}.", part, meta) for tool, part in body["tool_meta"].items()]
    for above, part, known in parts:
        for key in _unknown(part, known):
            yield f"{place.field(f'{above}{key}')}: {hinted(key, known if above else fields | inner, _UNKNOWN)}"


def lint_parameters(place: Place, body: Mapping[str, Any], input_ids: Collection[str]) -> Iterator[str]:
    """Warns of placeholders for which the file has no input, and of forms of other programs that are not replaced."""
    if body.get("disabled") is True:
        return
    for path, placeholder in placed(body.get(PARAMETERS), PARAMETERS):
        if placeholder.kind == "input" and placeholder.name not in input_ids:
            yield f"{place.field(path)}: {no_input(placeholder, input_ids)}"
    for path, text, _ in strings(body.get(PARAMETERS), PARAMETERS):
        for found in _FOREIGN.finditer(_PLACEHOLDER.sub("", text)):
            name = found["name"] or found["bare"] or found["percent"] or ""
            form = f"${{env:{name}}}" if name.isupper() else "a value, ${input:ID} or ${env:NAME}"
            yield f"{place.field(path)}: write {form}: this form is not replaced"


def unknown_tools(server: MCPServerConfig, host: HostSettings, tools: Collection[str]) -> tuple[tuple[str, str], ...]:
    """Where the configuration names tools that the server does not offer: the field, and the name.

    `tools` are original names. An alias is looked up in `forbidden_tools`, too.
    """
    originals = {*tools}
    aliases = {meta.alias for meta in server.tool_meta.values() if meta.alias}
    named = (
        ("forbidden_tools", server.forbidden_tools, originals | aliases),
        ("tool_meta", server.tool_meta, originals),
        ("unchecked_tools", host.unchecked_tools, originals | {"*"}),
        ("confirm.deny", host.confirm.deny, originals | aliases),
        ("confirm.ask", host.confirm.ask, originals | aliases),
        ("confirm.allow", host.confirm.allow, originals | aliases),
    )
    return tuple((field, name) for field, names, known in named for name in names if name not in known)


def no_tool(field: str, name: str, tools: Iterable[str]) -> str:
    """The warning about one of `unknown_tools`."""
    return f"{field}: {name!r}: {hinted(name, tools, 'is not a tool of this server')}"


HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A header name (RFC 9110)."""


def unusable(parameters: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Parameters that are valid but cannot lead to a connection or process, and why. Placeholders are ignored."""
    url = parameters.get("url", "${")
    if "${" not in url and (not is_url(url) or any(map(str.isspace, url))):
        yield "url", "is not a URL like http://host:port/path or https://host/path"
    for name, value in (parameters.get("headers") or {}).items():
        if not HEADER.fullmatch(name):
            yield f"headers.{name}", "is not a header name: letters, digits and - without spaces"
        elif not isinstance(value, str | int | float) or not str(value).isascii() or not str(value).isprintable():
            yield f"headers.{name}", "must be a text of one line, in ASCII"
    try:
        "a".encode(parameters.get("encoding", "utf-8"))
    except (LookupError, ValueError):
        yield "encoding", "is not a text encoding, such as utf-8"


def lint_input(place: str, body: Mapping[str, Any]) -> Iterator[str]:
    fields = {name for model in _of_type(body.get("type"), INPUT_MODELS) for name in model.model_fields}
    for key in _unknown(body, fields):
        yield f"{place}.{key}: {hinted(key, fields, _UNKNOWN)}"


def _of_type(kind: Any, models: Mapping[str, T]) -> list[T]:
    return [models[kind]] if isinstance(kind, str) and kind in models else list(models.values())


def _unknown(body: Any, known: Collection[str]) -> list[str]:
    return [key for key in body if key not in known and key != "$schema"] if isinstance(body, dict) else []
