"""What a configuration needs of the host that it runs on: its programs and directories, and its environment."""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from smcp_computer.config.doubts import placed
from smcp_computer.config.file import ComputerConfig
from smcp_computer.config.inputs import InputResolver
from smcp_computer.config.places import PARAMETERS
from smcp_proto.schemas.config import MCPServerCommandInput, MCPServerStdioConfig, MCPServerStdioParameters


def missing_on_host(config: ComputerConfig, environ: Mapping[str, str]) -> list[str]:
    """A sentence for each program and directory that is not there, with its place in the file.

    What holds a placeholder is not looked at, nor are servers that are disabled.
    """
    found: list[str] = []
    for name, server in config.servers.items():
        if isinstance(server, MCPServerStdioConfig) and not server.disabled:
            problems = _of_server(server.server_parameters, environ)
            found += (f"{config.places[name].field(f'server_parameters.{field}')}: {why}" for field, why in problems)
    for index, definition in enumerate(config.inputs.values()):
        if isinstance(definition, MCPServerCommandInput) and not _runs(definition.command, environ.get("PATH"), None):
            found.append(f"inputs[{index}].command: {definition.command!r} is no program on PATH")
    return found


def unset_here(config: ComputerConfig, environ: Mapping[str, str]) -> list[str]:
    """A sentence for each placeholder that has no value in `environ`, with its place in the file.

    Inputs that the file does not have are another matter (`ComputerConfig.undeclared`); servers that are disabled, and
    what programs of inputs would print, are not looked at.
    """
    inputs = InputResolver(config.inputs, environ)
    found: list[str] = []
    for name, server in config.servers.items():
        if server.disabled:
            continue
        for path, placeholder in placed(server.server_parameters.model_dump(exclude_unset=True), PARAMETERS):
            if placeholder.kind == "input" and placeholder.name not in config.inputs:
                continue
            if (why := inputs.missing(placeholder)) is not None:
                found.append(f"{config.places[name].field(path)}: {why}")
    return found


def _of_server(parameters: MCPServerStdioParameters, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if parameters.cwd is not None and "${" in parameters.cwd:
        return
    if parameters.cwd is not None and not Path(parameters.cwd).is_dir():
        yield "cwd", f"{parameters.cwd!r} is no directory"
        return
    path = (parameters.env or {}).get("PATH") or environ.get("PATH")
    if "${" in parameters.command or "${" in (path or ""):
        return
    if not _runs(parameters.command, path, parameters.cwd):
        where = "" if os.sep in parameters.command else " on PATH"
        yield "command", f"{parameters.command!r} is no program{where}"


def _runs(command: str, path: str | None, cwd: str | None) -> bool:
    if os.sep in command:
        command = str(Path(cwd or ".") / command)  # started from there, as it will be
        return os.path.isfile(command) and os.access(command, os.X_OK)  # noqa: PTH113 -- beside its access
    return shutil.which(command, path=path or os.defpath) is not None
