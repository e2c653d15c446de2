"""Values for the placeholders of the configuration (data-structures.txt, inputs).

`${input:ID}` is the environment variable `SMCP_INPUT_<ID>` (the id in upper case, what is no letter or digit as `_`),
or the input's default; a `command` input is what its program prints. `${env:X}` is the environment variable X.
"""

import asyncio
import contextlib
import os
import re
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping
from typing import Final

from pydantic import ValidationError

from smcp_computer.config.doubts import no_input, placed
from smcp_computer.config.errors import CannotRun, ConfigError, InputProgramFailed, wrong_fields
from smcp_computer.config.placeholders import Placeholder, replace_all
from smcp_computer.config.places import PARAMETERS
from smcp_proto.schemas.config import (
    SERVER_CONFIG,
    MCPServerCommandInput,
    MCPServerConfig,
    MCPServerInput,
    MCPServerPickStringInput,
)

COMMAND_TIMEOUT_S: Final = 20.0
"""How long the program of a `command` input may take, in seconds."""
MAX_OUTPUT_BYTES: Final = 64 * 1024


def variable_of(input_id: str) -> str:
    """The environment variable that holds an input's value."""
    return "SMCP_INPUT_" + re.sub(r"[^A-Z0-9]", "_", input_id.upper())


class InputResolver:
    """Puts values in the place of placeholders.

    Args:
        inputs: the definitions, by id.
        environ: the environment that is asked.
    """

    def __init__(self, inputs: Mapping[str, MCPServerInput], environ: Mapping[str, str]) -> None:
        self._inputs = inputs
        self._environ = environ

    async def resolve(self, server: MCPServerConfig) -> MCPServerConfig:
        """`server` with its parameters' placeholders replaced.

        Raises:
            CannotRun: placeholders have no value in this environment, or none that is allowed; or with the values put
                in, the parameters are not valid any more. Names the server, and each field with its placeholder.
            InputProgramFailed: the program of an input gave no value.
            ConfigError: what a program printed makes the parameters invalid.
        """
        parameters = server.server_parameters.model_dump(exclude_unset=True)
        wanted = list(placed(parameters, PARAMETERS))
        if not wanted:
            return server
        missing = [f"{path}: {why}" for path, each in wanted if (why := self.missing(each)) is not None]
        if missing:
            raise CannotRun(f"server {server.name!r}: {'; '.join(missing)}")
        placeholders = dict.fromkeys(placeholder for _, placeholder in wanted)
        values = {placeholder: await self._value(server.name, placeholder) for placeholder in placeholders}
        body = server.model_dump(exclude_unset=True)
        body["server_parameters"] = replace_all(parameters, values.__getitem__)
        try:
            resolved: MCPServerConfig = SERVER_CONFIG.validate_python(body)
        except ValidationError as error:
            wrong = "; ".join(f"{path}: {why}" for path, why in wrong_fields(error))
            kind = ConfigError if any(map(self._is_printed, placeholders)) else CannotRun
            raise kind(f"server {server.name!r}: with the values put in, {wrong}") from None
        return resolved

    async def _value(self, server: str, placeholder: Placeholder) -> str:
        """The value of a placeholder that is not `missing`."""
        if placeholder.kind == "env":
            return self._environ[placeholder.name]
        definition = self._inputs[placeholder.name]
        given = self._environ.get(variable_of(definition.id))
        if given is not None:
            return given
        if isinstance(definition, MCPServerCommandInput):
            return await self._printed(server, definition)
        return definition.default or ""

    def missing(self, placeholder: Placeholder) -> str | None:
        """Why a placeholder has no value in this environment, as far as that is known without running a program."""
        if placeholder.kind == "env":
            return None if placeholder.name in self._environ else f"{placeholder}: the environment variable is not set"
        definition = self._inputs.get(placeholder.name)
        if definition is None:
            return no_input(placeholder, self._inputs)
        if isinstance(definition, MCPServerCommandInput):
            return None
        variable = variable_of(definition.id)
        given = self._environ.get(variable)
        value = given if given is not None else definition.default
        if value is None:
            return f"input {definition.id!r}: set {variable}, it has no default"
        if isinstance(definition, MCPServerPickStringInput) and value not in definition.options:
            source = variable if given is not None else "its default"
            options = ", ".join(map(repr, definition.options)) or "nothing"
            return f"input {definition.id!r}: {source} is none of its options ({options})"
        return None

    def _is_printed(self, placeholder: Placeholder) -> bool:
        """Whether a program gives its value."""
        definition = self._inputs.get(placeholder.name) if placeholder.kind == "input" else None
        return isinstance(definition, MCPServerCommandInput) and variable_of(definition.id) not in self._environ

    async def _printed(self, server: str, definition: MCPServerCommandInput) -> str:
        label = f"server {server!r}: input {definition.id!r}: its program {definition.command!r}"
        arguments = [part for key, value in (definition.args or {}).items() for part in (f"--{key}", value)]
        try:
            process = await asyncio.create_subprocess_exec(
                definition.command,
                *arguments,
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=DEVNULL,
                env=dict(self._environ),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "cannot be started"
            raise InputProgramFailed(f"{label}: {reason}") from None
        try:
            async with asyncio.timeout(COMMAND_TIMEOUT_S):
                output = await _read_bounded(process)
                status = await process.wait()
        except TimeoutError:
            raise InputProgramFailed(f"{label} did not end within {COMMAND_TIMEOUT_S:g} s") from None
        finally:
            await _end(process)
        if len(output) > MAX_OUTPUT_BYTES:
            raise InputProgramFailed(f"{label} printed more than {MAX_OUTPUT_BYTES} bytes")
        if status != 0:
            raise InputProgramFailed(f"{label} ended with status {status}")
        try:
            return output.decode().strip()
        except UnicodeDecodeError:
            raise InputProgramFailed(f"{label} printed what is no UTF-8 text") from None


async def _read_bounded(process: Process) -> bytes:
    assert process.stdout is not None
    output = bytearray()
    while len(output) <= MAX_OUTPUT_BYTES and (part := await process.stdout.read(8192)):
        output += part
    if len(output) > MAX_OUTPUT_BYTES:
        _kill_group(process)
    return bytes(output)


async def _end(process: Process) -> None:
    _kill_group(process)
    if process.returncode is None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                await process.wait()


def _kill_group(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
