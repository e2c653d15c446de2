"""What a configuration needs and this host does not have: programs, directories, values, and what enforces settings.

For `validate`, `run --check-config` and `servers add`, which may run as another user and with another environment than
the Computer. When a server starts, `mcp` finds the same.
"""

import asyncio
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from smcp_computer.config.file import ComputerConfig
from smcp_computer.config.inputs import InputResolver
from smcp_computer.config.lint import PARAMETERS, placed
from smcp_computer.config.secret_store import SecretsError, SecretStore
from smcp_computer.config.server_settings import HostSettings
from smcp_proto.schemas.config import MCPServerCommandInput, MCPServerStdioConfig, MCPServerStdioParameters

_INTERPRETER: Final = re.compile(r"python[0-9.]*|node|bash|sh|ruby|deno|bun|perl|php")
"""Programs whose first argument is a script."""
_SCRIPT: Final = re.compile(r"(?!-)[^$]*\.[A-Za-z]+")
"""Neither an option nor a command such as `run`; without a placeholder."""
_ENFORCED: Final = {"user", "limits", "cgroup", "sandbox"}
"""Settings that not every host can enforce."""


def missing_on_host(config: ComputerConfig, environ: Mapping[str, str]) -> list[str]:
    """Warnings of programs, directories and users that are not there, and of what cannot be enforced.

    Placeholders are not looked at, nor disabled servers. Of one with other mistakes, whose settings are not known, the
    user is looked at.
    """
    found: list[str] = []
    for name, server in config.servers.items():
        if isinstance(server, MCPServerStdioConfig) and not server.disabled:
            place, parameters = config.places[name], server.server_parameters
            problems = _of_program(parameters, environ)
            found += (f"{place.field(f'{PARAMETERS}.{field}')}: {why}" for field, why in problems)
            found += (f"{place.field(field)}: {why}" for field, why in _not_enforced(parameters, config.host[name]))
    for name in sorted(config.host.keys() - config.servers.keys()):  # what else is wrong there is told by `config`
        alone, user = MCPServerStdioParameters(command="true"), HostSettings(user=config.host[name].user)
        found += (f"{config.places[name].field(field)}: {why}" for field, why in _not_enforced(alone, user))
    for index, definition in enumerate(config.inputs.values()):
        if isinstance(definition, MCPServerCommandInput) and not _runs(definition.command, environ.get("PATH"), None):
            found.append(f"inputs[{index}].command: {definition.command!r} is no program on PATH")
    return found


def unset_here(config: ComputerConfig, environ: Mapping[str, str], store: SecretStore | None = None) -> list[str]:
    """Warnings of placeholders that have no value in `environ` and `store`; for those without an input see
    `ComputerConfig`."""
    inputs = InputResolver(config.inputs, environ, store=store)
    try:
        inputs.read_store()
    except SecretsError as error:
        return [str(error)]
    return [
        f"{config.places[name].field(path)}: {why}"
        for name, server in config.servers.items()
        if not server.disabled
        for path, placeholder in placed(server.server_parameters.model_dump(exclude_unset=True), PARAMETERS)
        if placeholder.kind == "env" or placeholder.name in config.inputs
        if (why := inputs.missing(placeholder)) is not None
    ]


def _not_enforced(parameters: MCPServerStdioParameters, host: HostSettings) -> Iterator[tuple[str, str]]:
    if host.model_dump(include=_ENFORCED) == HostSettings().model_dump(include=_ENFORCED):
        return
    from smcp_computer.mcp.isolation import cannot_enforce  # noqa: PLC0415 -- takes a second to load

    if "${" in (parameters.cwd or ""):
        parameters = parameters.model_copy(update={"cwd": None})
    if why := asyncio.run(cannot_enforce(parameters, host)):
        field, _, rest = why.partition(": ")
        yield field, rest


def _of_program(parameters: MCPServerStdioParameters, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    command, cwd = parameters.command, parameters.cwd
    path = (parameters.env or {}).get("PATH") or environ.get("PATH")
    if "${" in f"{command}{cwd}{path}":
        return
    if cwd is not None and not Path(cwd).is_dir():
        yield "cwd", f"{cwd!r} is no directory"
    elif not _runs(command, path, cwd):
        hint = "; write ${userHome} in place of ~" if command.startswith("~/") else ""
        if len(command.split()) > 1 and "\\" not in command:
            hint = "; arguments belong into 'args'"
        yield "command", f"{command!r} is no program{'' if os.sep in command else ' on PATH'}{hint}"
    elif parameters.args and _INTERPRETER.fullmatch(Path(command).name) and _SCRIPT.fullmatch(parameters.args[0]):
        script = Path(cwd or ".").absolute() / parameters.args[0]
        if not os.access(script, os.F_OK):
            yield "args.0", f"there is no file {script}"


def _runs(command: str, path: str | None, cwd: str | None) -> bool:
    if os.sep in command:
        command = str(Path(cwd or ".") / command)  # started from there, as it will be
        return os.path.isfile(command) and os.access(command, os.X_OK)  # noqa: PTH113 -- beside its access
    return shutil.which(command, path=path or os.defpath) is not None
