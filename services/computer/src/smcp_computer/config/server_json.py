"""Makes a configuration of a `server.json` of MCP's registry, which describes packages and remote servers. Pure.

Of several, the first that can run here is taken. What its user has to say becomes an input.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from smcp_computer.config.lint import PARAMETERS, ConfigError, checked

RUNNERS: Final[Mapping[str, tuple[str, ...]]] = {
    "npm": ("npx", "-y"),
    "pypi": ("uvx",),
    "oci": ("docker", "run", "-i", "--rm"),
    "nuget": ("dnx",),
}
"""The command that fetches and runs a package, by the type of its registry."""
_VARIABLE: Final = re.compile(r"\{([^{}]+)\}")


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


def is_entry(document: Mapping[str, Any]) -> bool:
    entry = document.get("server", document)  # as the registry's API answers
    return isinstance(entry, dict) and any(isinstance(entry.get(key), list) for key in ("packages", "remotes"))


def configuration_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a configuration file. Raises ConfigError: it is no `server.json`, or nothing of it runs here."""
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
        server = _remote(remote, inputs)
    return {"servers": {name: server}, "inputs": list(inputs.found.values())}


class _Inputs:
    def __init__(self, server: str) -> None:
        self._server = server
        self.found: dict[str, dict[str, Any]] = {}
        """By id."""

    def text(self, key: str, value: _Value) -> str | None:
        """With placeholders for what the user has to say. None: it can be left out."""
        if value.value is not None:
            return self.filled(value.value, value.variables)
        if not value.is_required and value.default is None:
            return None
        id_ = f"{self._server}-{key.strip('-')}"
        said: dict[str, Any] = {"id": id_, "description": value.description or key}
        if value.choices:
            said |= {"type": "pickString", "options": value.choices}
        elif value.is_secret:
            said |= {"type": "promptString", "password": True}
        else:
            said["type"] = "promptString"
        if value.default is not None:
            said["default"] = value.default
        self.found[id_] = said
        return f"${{input:{id_}}}"

    def filled(self, text: str, variables: Mapping[str, _Value]) -> str:
        def variable(found: re.Match[str]) -> str:
            known = variables.get(found[1])
            return found[0] if known is None else self.text(found[1], known) or ""

        return _VARIABLE.sub(variable, text)

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
    reference = package.identifier
    if package.version and package.registry_type != "oci":
        reference += f"@{package.version}"
    elif package.version and ":" not in reference.rpartition("/")[2]:
        reference += f":{package.version}"
    own = inputs.arguments(package.package_arguments)
    if package.registry_type == "nuget":
        own = ["--yes", "--", *own]
    arguments = [*options, *inputs.arguments(package.runtime_arguments), reference, *own]
    return {"type": "stdio", PARAMETERS: {"command": command, "args": arguments} | ({"env": env} if env else {})}


def _remote(remote: _Transport, inputs: _Inputs) -> dict[str, Any]:
    headers = inputs.named(remote.headers)
    parameters = {"url": inputs.filled(remote.url, remote.variables)} | ({"headers": headers} if headers else {})
    return {"type": "sse" if remote.type == "sse" else "streamable", PARAMETERS: parameters}
