"""Makes our own configuration of others' files: those of other MCP hosts, and a `server.json` of MCP's registry.

The hosts are VS Code, Claude Desktop and Cursor; fields that others alone have are unknown, but for those that switch a
server or its tools off. Of their files, fields are moved and renamed, and nothing is checked: `file` does, and its
errors name the fields as they are written. A `server.json` describes packages and remote servers; the first that can
run here is taken, and what its user has to say becomes an input. Pure.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from smcp_computer.config.lint import PARAMETERS, TYPES, ConfigError, changed, checked, fields_of
from smcp_computer.settings import DEFAULTS

SERVER_KEYS: Final = ("servers", "mcpServers")
"""The keys that hold servers by name; the first that a file has is read."""
ENABLED_KEYS: Final = ("enabled", "isActive")
DESCRIPTIVE_KEYS: Final = ("description", "dev", "gallery", "version")
"""Fields that do not change how a server runs."""


def servers_of(document: Mapping[str, Any]) -> tuple[str, Mapping[str, Any], Iterable[str]]:
    """The key that holds the servers (empty: they stand at the top level), the servers, and keys that are not read."""
    for key in SERVER_KEYS:
        if isinstance(document.get(key), dict):
            return key, document[key], [each for each in document if each not in (key, "inputs", DEFAULTS, "$schema")]
        if key in document:
            raise ConfigError(f"{key}: must be an object of servers by name")
    rest = {name: body for name, body in document.items() if name not in ("inputs", "$schema")}
    servers = {name: body for name, body in rest.items() if isinstance(body, dict)}
    return "", servers, [name for name in rest if name not in servers]


def own_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """A valid file of any host in our structure, without the fields that are not read."""
    above, bodies, _ = servers_of(document)
    servers: dict[str, Any] = {}
    for name, written in bodies.items():
        body = own_server(written).body
        known = fields_of(body["type"])[0] - {"name"}
        first = {"type": body["type"], PARAMETERS: body[PARAMETERS]}
        servers[name] = first | {key: value for key, value in body.items() if key in known}
    inputs = {"inputs": [own_input(body) for body in document["inputs"]]} if document.get("inputs") else {}
    defaults = {DEFAULTS: document[DEFAULTS]} if above and DEFAULTS in document else {}
    return {"servers": servers, **inputs, **defaults}


@dataclass(slots=True)
class OwnServer:
    """One server in the structure of the protocol."""

    body: dict[str, Any]
    written: dict[str, str] = field(default_factory=dict)
    """Where a field (with dots) stands in the file, for those that were moved or renamed."""
    mistakes: list[tuple[str, str]] = field(default_factory=list)
    """What is not read although it means something, by the field as written, and why."""

    def rename(self, key: str, ours: str) -> None:
        if key in self.body:
            self.written[ours] = key
            self.body[ours] = self.body.pop(key)


def own_server(body: Mapping[str, Any]) -> OwnServer:
    """What any host writes for one server."""
    own = OwnServer(dict(body))
    own.rename("envFile", "env_file")
    if isinstance(kind := body.get("type"), str):
        own.body["type"] = TYPES.get(kind, kind)
    if PARAMETERS not in body:
        if "params" in body:
            own.rename("params", PARAMETERS)
        else:
            _unflatten(own)
    return own


def is_server(body: Any) -> bool:
    """Whether a value says what it runs or where it is, in the shape of any host."""
    return isinstance(body, dict) and not body.keys().isdisjoint({PARAMETERS, "params", "command", "url", "type"})


def _unflatten(own: OwnServer) -> None:
    body = own.body
    own.written[PARAMETERS] = ""
    for key in DESCRIPTIVE_KEYS:
        body.pop(key, None)
    by_url = "sse" if str(body.get("url", "")).endswith("/sse") else "streamable"
    body.setdefault("type", "stdio" if "command" in body else by_url)
    if body["type"] == "stdio" and {"command", "url"} <= body.keys():
        own.mistakes.append(("url", "is not read: the server has a command, too, which is used"))
        del body["url"]
    _, known = fields_of(body["type"])
    body[PARAMETERS] = {key: body.pop(key) for key in [*body] if key in known}
    if isinstance(env := body[PARAMETERS].get("env"), dict):
        # a null removes a variable, which a server would not get here anyway
        numbers = {name: str(value) for name, value in env.items() if type(value) in (int, float)}
        body[PARAMETERS]["env"] = {name: value for name, value in (env | numbers).items() if value is not None}
    _read_switches(own)
    sandbox = body.get("sandbox")
    if isinstance(sandbox, dict) and ("filesystem" in sandbox or isinstance(sandbox.get("network"), dict)):
        own.mistakes.append(("sandbox", "is that of another host and is not read: the server runs without it"))
        del body["sandbox"]


def _read_switches(own: OwnServer) -> None:
    """Values of another type are left to be refused."""
    body = own.body
    for key in ("autoApprove", "alwaysAllow"):
        names, meta = body.pop(key, []), body.get("tool_meta", {})
        named = [name for name in names if name != "*"] if isinstance(names, list) else []
        if names not in (named, False):
            why = 'approves the tools that it names alone: approve all by "default_tool_meta": {"auto_apply": true}'
            own.mistakes.append((key, why))
        if named and isinstance(meta, dict):
            body["tool_meta"] = {**{str(name): {"auto_apply": True} for name in named}, **meta}
    for key in ("disabledTools", "excludeTools"):
        forbidden = body.get("forbidden_tools", [])
        if not isinstance(body.get(key, []), list):
            own.rename(key, "forbidden_tools")
        elif (names := body.pop(key, [])) and isinstance(forbidden, list):
            body["forbidden_tools"] = [*forbidden, *names]
    for key in ENABLED_KEYS:
        if not isinstance(body.get(key, True), bool):
            own.rename(key, "disabled")
        elif not body.pop(key, True):
            body["disabled"] = True


def own_input(body: Any) -> Any:
    """An input with the values of `{label, value}` options, and their labels in its description, which is its id by
    default."""
    if not isinstance(body, dict):
        return body
    own = {"description": body["id"], **body} if isinstance(body.get("id"), str) else dict(body)
    if isinstance(options := body.get("options"), list):
        pairs = [(each.get("value"), each.get("label")) if isinstance(each, dict) else (each, None) for each in options]
        own["options"] = [value for value, _ in pairs]
        labels = ", ".join(f"{value}: {label}" for value, label in pairs if label)
        if labels and isinstance(own.get("description"), str):  # the protocol has no other place for them
            own["description"] += f" ({labels})"
    return own


def with_variables(value: Any, variables: Mapping[str, str]) -> Any:
    """A copy of a JSON value whose strings have the value of each `${NAME}` of `variables`."""
    return changed(
        value, lambda text, *_: re.sub(r"\$\{(\w+)\}", lambda found: variables.get(found[1], found[0]), text)
    )


RUNNERS: Final[Mapping[str, tuple[str, ...]]] = {
    "npm": ("npx", "-y"),
    "pypi": ("uvx",),
    "oci": ("docker", "run", "-i", "--rm"),
}
"""The command that fetches and runs a package, by the type of its registry."""


class _Part(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)


class _Value(_Part):
    description: str | None = None
    is_required: bool = False
    is_secret: bool = False
    value: str | None = None
    default: str | None = None
    choices: list[str] = Field(default_factory=list)
    variables: dict[str, "_Value"] = Field(default_factory=dict)


class _Named(_Value):
    name: str


class _Argument(_Value):
    type: Literal["positional", "named"]
    name: str = ""
    value_hint: str = "argument"


class _Transport(_Part):
    type: str
    url: str = ""
    headers: list[_Named] = Field(default_factory=list)
    variables: dict[str, _Value] = Field(default_factory=dict)


class _Package(_Part):
    registry_type: str
    identifier: str
    version: str | None = None
    runtime_hint: str | None = None
    transport: _Transport = _Transport(type="stdio")
    runtime_arguments: list[_Argument] = Field(default_factory=list)
    package_arguments: list[_Argument] = Field(default_factory=list)
    environment_variables: list[_Named] = Field(default_factory=list)


class _Entry(_Part):
    name: str
    packages: list[_Package] = Field(default_factory=list)
    remotes: list[_Transport] = Field(default_factory=list)


def is_server_json(document: Mapping[str, Any]) -> bool:
    entry = document.get("server", document)  # as the registry's API answers
    return isinstance(entry, dict) and any(isinstance(entry.get(key), list) for key in ("packages", "remotes"))


def configuration_of_server_json(document: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a configuration file. Raises ConfigError: it is not a `server.json`, or none of it runs here."""
    problems: list[str] = []
    entry = checked(_Entry.model_validate, document.get("server", document), problems)
    if entry is None:
        raise ConfigError(*problems)
    name = entry.name.rpartition("/")[2]
    inputs = _Inputs(name)
    for package in entry.packages:
        if package.registry_type in RUNNERS and package.transport.type == "stdio":
            server = _program(package, inputs)
            break
    else:
        remote = next((each for each in entry.remotes if each.type in ("streamable-http", "sse")), None)
        if remote is None:
            known = ", ".join(RUNNERS)
            raise ConfigError(f"packages: none runs here over stdio (known are {known}), and there is no remote server")
        headers = inputs.named(remote.headers)
        parameters = {"url": inputs.filled(remote.url, remote.variables)} | ({"headers": headers} if headers else {})
        server = {"type": "sse" if remote.type == "sse" else "streamable", PARAMETERS: parameters}
    return {"servers": {name: server}, "inputs": list(inputs.found.values())}


@dataclass
class _Inputs:
    """The inputs that the user has to give."""

    _server: str
    found: dict[str, dict[str, Any]] = field(default_factory=dict)

    def text(self, key: str, value: _Value) -> str | None:
        """A value with placeholders. None: it can be left out."""
        if value.value is not None:
            return self.filled(value.value, value.variables)
        if not value.is_required and value.default is None:
            return None
        id_ = f"{self._server}-{key.strip('-')}"
        said: dict[str, Any] = {"id": id_, "type": "promptString", "description": value.description or key}
        if value.choices:
            said |= {"type": "pickString", "options": value.choices}
        elif value.is_secret:
            said["password"] = True
        if value.default is not None:
            said["default"] = value.default
        self.found[id_] = said
        return f"${{input:{id_}}}"

    def filled(self, text: str, variables: Mapping[str, _Value]) -> str:
        def value(found: re.Match[str]) -> str:
            if found[1] not in variables:
                return found[0]
            # without a value of its own, the text around it means nothing: `Bearer {token}`
            return str(self.text(found[1], variables[found[1]].model_copy(update={"is_required": True})))

        return re.sub(r"\{([^{}]+)\}", value, text)

    def named(self, values: Iterable[_Named]) -> dict[str, str]:
        return {each.name: text for each in values if (text := self.text(each.name, each)) is not None}

    def arguments(self, arguments: Iterable[_Argument]) -> list[str]:
        made: list[str] = []
        for each in arguments:
            if (text := self.text(each.name or each.value_hint, each)) is not None:
                made += [each.name, text] if each.type == "named" else [text]
        return made


def _program(package: _Package, inputs: _Inputs) -> dict[str, Any]:
    command, *options = RUNNERS[package.registry_type]
    env = inputs.named(package.environment_variables)
    if package.runtime_hint not in (None, command):
        command, options = package.runtime_hint or command, []
    elif package.registry_type == "oci":
        options += [option for name in env for option in ("-e", name)]
    reference, is_image = package.identifier, package.registry_type == "oci"
    if package.version and not (is_image and ":" in reference.rpartition("/")[2]):
        reference += f"{':' if is_image else '@'}{package.version}"
    own = inputs.arguments(package.package_arguments)
    arguments = [*options, *inputs.arguments(package.runtime_arguments), reference, *own]
    return {"type": "stdio", PARAMETERS: {"command": command, "args": arguments} | ({"env": env} if env else {})}
