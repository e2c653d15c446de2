"""Reads a Computer's configuration file: JSON with comments, with the MCP servers and the inputs. Says when it changed.

The servers stand under `servers`, under `mcpServers`, or at the top level. Each may be in the shape of any host that
`other_mcp_hosts` knows. `lint` has the checks.
"""

import asyncio
import io
import json
import os
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from dotenv.parser import parse_stream

from smcp_computer.config import lint, other_mcp_hosts
from smcp_computer.config.lint import PARAMETERS, ConfigError, Place, checked
from smcp_computer.config.secret_store import is_sealed, unseal_file
from smcp_computer.reshaping import mapper_problems, vrl_problem
from smcp_computer.settings import DEFAULTS, HostSettings
from smcp_proto.jsonc import plain_json
from smcp_proto.schemas.config import SERVER_CONFIG, SERVER_INPUT, MCPServerConfig, MCPServerInput, MCPServerStdioConfig
from smcp_service.files import stamp

MAX_FILE_BYTES: Final = 4 * 1024 * 1024
LOOK_S: Final = 0.4
"""Between two looks, each of which wakes an idle Computer."""
AGAIN_S: Final = 0.1
"""The same after a change. It counts once two looks saw the same, since an editor makes several in a row."""
_EDITORS: Final = (".vscode", ".cursor", ".roo")
"""Directories for the files of an editor, in the folder that it has open."""


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
    env_files: tuple[Path, ...] = ()
    """Other files that were read, or should have been."""
    missing_env_files: Mapping[str, str] = field(default_factory=dict)
    """Why a server cannot run, by its name: where the configuration names the file, and that it is missing."""
    without_env_files: Mapping[str, MCPServerConfig] = field(default_factory=dict)
    """The servers as the file has them."""

    def valid(self) -> "ComputerConfig":
        """Raises ConfigError: there are problems."""
        if self.problems:
            raise ConfigError(*self.problems, warnings=self.warnings)
        return self


def load_config(path: Path) -> ComputerConfig:
    """Raises ConfigError: the file cannot be read, or is not valid; each problem names the file."""
    try:
        return read_config(path).valid()
    except ConfigError as error:
        raise error.at(path) from None


def parse_config(raw: bytes | str) -> ComputerConfig:
    """Raises ConfigError: the text is not a valid configuration. No `env_file` is read."""
    return _read(raw, {}).valid()


def read_config(path: Path) -> ComputerConfig:
    """What the file holds; nothing but problems where it cannot be read, or is not a JSON object."""
    try:
        config = _read(content_of(path), variables_of(path))
    except ConfigError as error:
        return ComputerConfig(problems=error.problems)
    problems = list(config.problems)
    servers = dict(config.servers)
    env_files: list[Path] = []
    missing: dict[str, str] = {}
    for name, host in config.host.items():
        server = config.servers.get(name)  # None: it has other problems
        if host.env_file is None or not isinstance(server, MCPServerStdioConfig | None):
            continue
        try:
            env_files.append(_beside(path, host.env_file))
            variables = read_env_file(env_files[-1])
        except ConfigError as error:
            said = f"{config.places[name].field('env_file')}: {host.env_file!r}: {error}"
            if isinstance(error.__cause__, FileNotFoundError):  # as an input without a value: a matter of this server
                missing[name] = said
            else:
                problems.append(said)
            continue
        if server is not None:
            own = server.server_parameters
            env = {**variables, **(own.env or {})}
            servers[name] = server.model_copy(update={PARAMETERS: own.model_copy(update={"env": env})})
    return replace(
        config,
        servers=servers,
        problems=tuple(problems),
        env_files=tuple(env_files),
        missing_env_files=missing,
        without_env_files=config.servers,
    )


def imported(path: Path) -> tuple[dict[str, Any], ComputerConfig]:
    """Converts the configuration of another MCP host, or a `server.json`, to ours. Also returns the parsed original.

    Raises ConfigError: it cannot be read, is not valid, or names no MCP server.
    """
    raw, variables = content_of(path), variables_of(path)
    document = _document(raw, variables)
    if other_mcp_hosts.is_server_json(document):
        own = other_mcp_hosts.configuration_of_server_json(document)
        return own, parse_config(json.dumps(own))
    config = _read(raw, variables).valid()
    if not config.servers:
        raise ConfigError("names no MCP server", warnings=config.warnings)
    own = other_mcp_hosts.own_document(document)
    for body in own["servers"].values():
        if "env_file" in body:
            body["env_file"] = str(_beside(path.absolute(), body["env_file"]))
    return own, config


async def file_changes(files: Callable[[], Collection[Path]]) -> AsyncGenerator[None, None]:
    """Yields at once, and then whenever one of the files may have changed; they may be others after a change.

    They are looked at again and again, through their links: editors put another file in a file's place, Kubernetes
    swaps a link beside it, and some file systems tell of no changes.
    """

    def look() -> dict[Path, tuple[int, ...]]:
        return {path: stamp(path) for path in files()}

    read = seen = look()
    yield
    while True:
        await asyncio.sleep(LOOK_S if seen == read else AGAIN_S)
        before, seen = seen, await asyncio.to_thread(look)  # a network disk may hang
        if before == seen != read:
            read = seen
            yield


def variables_of(path: Path) -> dict[str, str]:
    """The predefined variables of VS Code, for a file."""
    directory = path.absolute().parent
    folder = directory.parent if directory.name in _EDITORS else directory
    return {"workspaceFolder": str(folder), "userHome": str(Path.home())}


def read_env_file(path: Path) -> dict[str, str]:
    """The variables of `NAME=value` lines. Raises ConfigError: the file cannot be read, or has another line."""
    try:
        text = content_of(path).decode()
    except UnicodeDecodeError:
        raise ConfigError("is not UTF-8 text") from None
    variables = {}
    for line in parse_stream(io.StringIO(text)):
        if line.error or (line.key is not None and line.value is None):
            raise ConfigError(f"line {line.original.line} is not like NAME=value")
        if line.key is not None and line.value is not None:
            variables[line.key] = line.value
    return variables


def _beside(file: Path, env_file: str) -> Path:
    return file.parent / os.path.expanduser(env_file)  # noqa: PTH111 -- a home that is not known is not an error of its own


def content_of(path: Path) -> bytes:
    """What a file holds, decrypted. Raises ConfigError: it cannot be read, or not be decrypted."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)  # a device may have no end
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or type(error).__name__}") from error
    except ValueError:  # also UnicodeEncodeError
        raise ConfigError("is not the path of a file") from None
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(f"is larger than {MAX_FILE_BYTES} bytes")
    return unseal_file(raw) if is_sealed(raw) else raw


def _document(raw: bytes | str, variables: Mapping[str, str]) -> dict[str, Any]:
    try:
        filled: dict[str, Any] = other_mcp_hosts.with_variables(read_object(raw), variables)
    except RecursionError:
        raise ConfigError("nested too deeply") from None
    return filled


def _read(raw: bytes | str, variables: Mapping[str, str]) -> ComputerConfig:
    document = _document(raw, variables)
    if other_mcp_hosts.is_server_json(document):
        raise ConfigError("make a configuration of it by `smcp-computer import`: it is a server.json of MCP's registry")
    above, bodies, unread = other_mcp_hosts.servers_of(document)
    if not above and any(isinstance(document.get(key), str) for key in ("command", "url")):
        raise ConfigError('has one MCP server without a name: put {"mcpServers": {"NAME": …}} around it')
    problems: list[str] = []
    # other hosts have settings of their own beside the servers
    warned = [f"{key}: {lint.hinted(key, lint.TOP_LEVEL, 'is not read')}" for key in unread]
    inputs = _inputs(document.get("inputs"), problems, warned)
    defaults = document.get(DEFAULTS, {}) if above else {}
    if checked(HostSettings.model_validate, defaults, problems, _below(DEFAULTS)) is None:
        defaults = {}
    servers: dict[str, MCPServerConfig] = {}
    host: dict[str, HostSettings] = {}
    places: dict[str, Place] = {}
    for name, body in bodies.items():
        if not other_mcp_hosts.is_server(body):
            why = "is not an MCP server with a 'command' or a 'url'"
            if not above:
                why = lint.hinted(name, lint.TOP_LEVEL, f"{why}; servers stand under 'servers' or 'mcpServers'")
            problems.append(f"{Place(above, name).field()}: {why}")
            warned += lint.lint_fields(Place(above, name), body if isinstance(body, dict) else {})
            continue
        own = other_mcp_hosts.own_server(body)
        place = places[name] = Place(above, name, own.written)
        warned += (f"{place.field(key)}: {why}" for key, why in own.mistakes)
        warned += [*lint.lint_fields(place, own.body), *lint.lint_parameters(place, own.body, inputs)]
        found: list[str] = []
        of_host = {field: own.body[field] for field in HostSettings.model_fields if field in own.body}
        settings = checked(HostSettings.model_validate, defaults | of_host, found, place.field)
        server = _server(place, own.body, found)
        if settings is not None:
            host[name] = settings
        if server is not None and not found:
            servers[name] = server
        problems += found
    if not bodies:
        warned.append("names no MCP servers, so none runs")
    return ComputerConfig(servers, inputs, host, tuple(warned), places, tuple(problems))


def _server(place: Place, body: dict[str, Any], problems: list[str]) -> MCPServerConfig | None:
    if body.get("name", place.name) != place.name:
        problems.append(f"{place.field('name')}: is {body['name']!r} inside; the key and the name must agree")
    server = checked(SERVER_CONFIG.validate_python, {**body, "name": place.name}, problems, place.field)
    if server is None:
        return None
    if server.default_tool_meta is not None and server.default_tool_meta.alias is not None:
        problems.append(f"{place.field('default_tool_meta.alias')}: an alias belongs to one tool, in tool_meta")
    own = server.server_parameters
    known = own.model_dump(include={*type(own).model_fields})
    problems += (f"{place.field(f'{PARAMETERS}.{path}')}: {why}" for path, why in lint.unusable(known))
    if server.vrl and (problem := vrl_problem(server.vrl)):
        problems.append(f"{place.field('vrl')}: {problem}")
    metas = {"default_tool_meta": server.default_tool_meta}
    metas |= {f"tool_meta.{tool}": meta for tool, meta in server.tool_meta.items()}
    for path, meta in metas.items():
        if meta is not None and meta.ret_object_mapper:
            problems += mapper_problems(meta.ret_object_mapper, place.field(f"{path}.ret_object_mapper"))
    return server


def _inputs(bodies: Any, problems: list[str], warned: list[str]) -> dict[str, MCPServerInput]:
    inputs: dict[str, MCPServerInput] = {}
    if not isinstance(bodies, list | None):
        problems.append("inputs: must be a list")
        return inputs
    for index, written in enumerate(bodies or []):
        body = other_mcp_hosts.own_input(written)
        place = f"inputs[{index}]"
        if isinstance(body, dict):
            warned += lint.lint_input(place, body)
        definition = checked(SERVER_INPUT.validate_python, body, problems, _below(place))
        if definition is None:
            continue
        if definition.id in inputs:
            problems.append(f"{place}.id: {definition.id!r} is used twice")
        inputs[definition.id] = definition
    return inputs


def _below(holder: str) -> Callable[[str], str]:
    return lambda path: f"{holder}.{path}" if path else holder


def read_object(raw: bytes | str) -> dict[str, Any]:
    """An object in JSON with comments and trailing commas. Raises ConfigError: it is none, or has a key twice.

    The errors have the line and column of the file.
    """
    try:
        text = raw.decode("utf-8-sig") if isinstance(raw, bytes) else raw
    except UnicodeDecodeError:
        raise ConfigError("not JSON: not UTF-8 text: save it in this encoding") from None
    if not text.strip():
        raise ConfigError("is empty")
    try:
        document = json.loads(plain_json(text), object_pairs_hook=_without_duplicates, parse_constant=_refused)
    except json.JSONDecodeError as error:
        raise ConfigError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except (ValueError, RecursionError):
        raise ConfigError("not JSON: nested too deeply, or a number with very many digits") from None
    if not isinstance(document, dict):
        raise ConfigError("not a JSON object")
    return document


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for key, times in Counter(key for key, _ in pairs).items():
        if times > 1:
            raise ConfigError(f"{key!r} stands twice in one object")
    return dict(pairs)


def _refused(constant: str) -> Any:
    raise ConfigError(f"not JSON: {constant} is not a JSON number")
