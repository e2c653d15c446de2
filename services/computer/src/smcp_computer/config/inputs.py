"""Values for the placeholders of the configuration (data-structures.txt, inputs).

`${input:ID}` takes the first that exists: the value in the secret store, `SMCP_INPUT_<ID>`, what the user says at the
terminal, the default, what the input's program prints. `${env:X}` is the environment variable X.
"""

import asyncio
import logging
import os
import re
import shlex
import signal
from asyncio.subprocess import DEVNULL, PIPE
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

from smcp_computer.config import lint
from smcp_computer.config.secret_store import SecretsError, SecretStore
from smcp_computer.redaction import Redactor, is_secret_value, secrets_of, secrets_of_input
from smcp_computer.terminal import YES_OR_NO, Terminal, TerminalGone
from smcp_proto.printable import printable
from smcp_proto.schemas import config as schemas

_log = logging.getLogger("smcp_computer.config")

COMMAND_TIMEOUT_S: Final = 20.0
"""For the program of a `command` input."""
Asked = schemas.MCPServerPromptStringInput | schemas.MCPServerPickStringInput
"""The inputs for which the user may be asked."""


async def _said(terminal: Terminal, server: str, definition: Asked, default: str | None) -> str | None:
    text = (
        f"The MCP server {printable(server)!r} needs {printable(definition.id)!r}: {printable(definition.description)}"
    )
    offered = "" if default is None else f" [{printable(default)}]"
    if isinstance(definition, schemas.MCPServerPickStringInput):
        return await terminal.choose(text, f"Which one?{offered} ", definition.options, default)
    if definition.password:
        offered = f" (not shown{'' if default is None else '; Enter takes the default'})"
    return await terminal.line(text, f"Its value{offered}: ", hidden=definition.password is True) or default


def _no_value(definition: schemas.MCPServerInput) -> str:
    kept = f"smcp-computer secrets set {shlex.quote(definition.id)}"
    return f"input {definition.id!r} has no value: set {variable_of(definition.id)}, or keep one with {kept}"


_VARIABLE: Final = "SMCP_INPUT_"


def variable_of(input_id: str) -> str:
    return _VARIABLE + re.sub(r"[^A-Z0-9]", "_", input_id.upper())


@dataclass(eq=False, repr=False)  # its fields hold secrets
class InputResolver:
    """Programs run once, and the user is asked once, as long as the definition of the input stays the same."""

    definitions: Mapping[str, schemas.MCPServerInput]
    """By id; those of a changed file take their place."""
    _environ: Mapping[str, str]
    _: KW_ONLY
    store: SecretStore | None = None
    terminal: Terminal | None = None

    def __post_init__(self) -> None:
        self.missing_env_files: Mapping[str, str] = {}
        """Those of the running configuration; see `ComputerConfig`."""
        self.redactor = Redactor()
        """It knows the secrets of each server that was resolved."""
        self._kept: Mapping[str, str] = {}
        self._found: dict[str, str] = {}
        """What programs printed and the user said, by the definition."""
        self._finding: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def read_store(self) -> None:
        """Raises SecretsError. It may wait for a keyring."""
        self._kept = self.store.read() if self.store is not None else {}

    async def resolve(self, server: schemas.MCPServerConfig, passed: Iterable[str] = ()) -> schemas.MCPServerConfig:
        """`server` with its parameters' placeholders replaced. `passed`: the environment variables that it gets beside
        its own.

        Raises, naming each field:
            CannotRun: its `env_file` is missing; placeholders have no value in this environment, or one that makes the
                parameters invalid.
            ConfigError: the program of an input gave no value, or one that makes the parameters invalid.
        """
        if server.name in self.missing_env_files:
            raise lint.CannotRun(self.missing_env_files[server.name])
        self.redactor.learn(secrets_of(server))
        given = {lint.Placeholder("env", name): self._environ.get(name, "") for name in passed}
        self.redactor.learn(value for each, value in given.items() if is_secret_value(each, None, value))
        parameters = server.server_parameters.model_dump(exclude_unset=True)
        wanted = list(lint.placed(parameters, lint.PARAMETERS))
        if not wanted:
            return server
        try:
            await asyncio.to_thread(self.read_store)
        except SecretsError as error:
            raise lint.CannotRun(str(error)) from None
        missing = [f"{path}: {why}" for path, each in wanted if (why := self.missing(each)) is not None]
        if missing:
            raise lint.CannotRun("; ".join(missing))
        placeholders = dict.fromkeys(placeholder for _, placeholder in wanted)
        values = {placeholder: await self._value(server.name, placeholder) for placeholder in placeholders}
        self.redactor.learn(
            value
            for each, value in values.items()
            if is_secret_value(each, self.definitions.get(each.name) if each.kind == "input" else None, value)
        )
        body = server.model_dump(exclude_unset=True)
        body["server_parameters"] = lint.replace_all(parameters, values.__getitem__)
        problems: list[str] = []
        resolved = lint.checked(schemas.SERVER_CONFIG.validate_python, body, problems)
        problems += (f"{lint.PARAMETERS}.{path}: {why}" for path, why in lint.unusable(body["server_parameters"]))
        if resolved is None or problems:
            definitions = [self.definitions[each.name] for each in placeholders if each.kind == "input"]
            printed = any(isinstance(definition, schemas.MCPServerCommandInput) for definition in definitions)
            for definition in definitions:
                self._found.pop(definition.model_dump_json(), None)  # another time it may be right
            kind = lint.ConfigError if printed else lint.CannotRun
            raise kind(f"with the values put in, {'; '.join(problems)}")
        return resolved

    def sources(self) -> list[dict[str, Any]]:
        """Of each input its `id`, `description` and `source`: where its value comes from now; None: it has none. As
        `read_store`."""
        self.read_store()

        def source(definition: schemas.MCPServerInput) -> str | None:
            program = "its program" if isinstance(definition, schemas.MCPServerCommandInput) else None
            given = self._given(definition, default=True)
            return program if given is None else given[0]

        every = self.definitions.values()
        return [{"id": each.id, "description": each.description, "source": source(each)} for each in every]

    async def _value(self, server: str, placeholder: lint.Placeholder) -> str:
        if placeholder.kind == "env":
            return self._environ[placeholder.name]
        definition = self.definitions[placeholder.name]
        key = definition.model_dump_json()
        async with self._finding[key]:  # other servers may want it at the same time
            if (given := self._given(definition, default=self.terminal is None)) is not None:
                return given[1]
            if isinstance(definition, schemas.MCPServerCommandInput):
                value = await self._printed(definition)
            else:
                value = await self._asked(server, definition)
            self._found[key] = value
            return value

    def _given(self, definition: schemas.MCPServerInput, *, default: bool) -> tuple[str, str] | None:
        """The value that there is without running or asking, behind its source. `default`: its default counts, too."""
        variable = variable_of(definition.id)
        sources = {
            "its kept value": self._kept.get(definition.id),
            variable: self._environ.get(variable),
            "what was said": self._found.get(definition.model_dump_json()),
        }
        if default and not isinstance(definition, schemas.MCPServerCommandInput):
            sources["its default"] = definition.default
        return next(((source, value) for source, value in sources.items() if value is not None), None)

    def missing(self, placeholder: lint.Placeholder) -> str | None:
        """Why a placeholder has no value, as far as that is known without running a program or asking the user."""
        if placeholder.kind == "env":
            return None if placeholder.name in self._environ else f"{placeholder}: the environment variable is not set"
        definition = self.definitions.get(placeholder.name)
        if definition is None:
            return lint.no_input(placeholder, self.definitions)
        given = self._given(definition, default=self.terminal is None)
        if given is None:
            can_be_found = isinstance(definition, schemas.MCPServerCommandInput) or self.terminal is not None
            return None if can_be_found else _no_value(definition)
        source, value = given
        if isinstance(definition, schemas.MCPServerPickStringInput) and value not in definition.options:
            options = ", ".join(map(repr, definition.options)) or "nothing"
            return f"input {definition.id!r}: {source} is none of its options ({options})"
        return None

    async def _asked(self, server: str, definition: Asked) -> str:
        """What the user says; where nobody can be asked, the default."""
        value = definition.default
        if isinstance(definition, schemas.MCPServerPickStringInput) and value not in definition.options:
            value = None
        if self.terminal is not None:
            try:
                async with self.terminal.turn:
                    value = await _said(self.terminal, server, definition, value)
                    if value and self.store is not None:
                        question = f"Keep {printable(definition.id)!r}, encrypted, for the next start?"
                        if await self.terminal.ask(question, "[y/N] ", YES_OR_NO):
                            await asyncio.to_thread(self.store.put, definition.id, value)
            except TerminalGone:
                pass
            except SecretsError as error:
                _log.warning("the value of input %r is not kept: %s", definition.id, error)
        if value is None:
            raise lint.CannotRun(_no_value(definition))
        return value

    async def _printed(self, definition: schemas.MCPServerCommandInput) -> str:
        label = f"input {definition.id!r}: its program {definition.command!r}"
        self.redactor.learn(secrets_of_input(definition))
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
            raise lint.ConfigError(f"{label}: {getattr(error, 'strerror', None) or 'cannot be started'}") from None
        try:
            output, _ = await asyncio.wait_for(process.communicate(), COMMAND_TIMEOUT_S)
        except TimeoutError:
            raise lint.ConfigError(f"{label} did not end within {COMMAND_TIMEOUT_S:g} s") from None
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # also what it started
            with suppress(TimeoutError):  # the end of its pipe, which a descendant in a session of its own may hold
                await asyncio.wait_for(process.communicate(), 1)
        if process.returncode != 0:
            raise lint.ConfigError(f"{label} ended with status {process.returncode}")
        try:
            return output.decode().strip()
        except UnicodeDecodeError:
            raise lint.ConfigError(f"{label} printed what is not UTF-8 text") from None


def take_secrets() -> dict[str, str]:
    """A copy of this process's environment, for the inputs of its configuration. The token and the values of inputs are
    taken out of the process's own, so that nothing inherits them but the programs of inputs."""
    environ = dict(os.environ)
    for name in environ:
        if name == "SMCP_TOKEN" or name.startswith(_VARIABLE):
            del os.environ[name]
    return environ
