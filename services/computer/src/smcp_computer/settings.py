"""Settings of a Computer (environment variables and options), its directory of state, the checks of how it connects
(NATS or gateways), and `HostSettings`: what a user sets for each MCP server beside what the protocol's pages define.

The fields of `HostSettings` stand beside a server's own in the file, and as defaults for all servers under the key
`defaults`. Agents do not see them. `make docs` puts them with their docstrings into the JSON Schema of the file.
"""

import os
import shlex
import shutil
from collections.abc import Awaitable, Callable
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, StrictBool

from smcp_proto.member_names import Name, Pattern
from smcp_service.settings import Seconds, ServiceSettings, SettingsError, folded

SOCKET: Final = "control.sock"
"""In the directory of state."""
LOGS: Final = "logs"
"""The directory with what MCP servers write to their standard error."""


class Confirm(StrEnum):
    """What becomes of a call that nothing else decides."""

    ASK = "ask"
    ALLOW = "allow"
    DENY = "deny"


def _command_line(text: str | None) -> str | None:
    if text is not None and (not (words := shlex.split(text)) or shutil.which(words[0]) is None):
        raise ValueError("names no program that can be run")
    return text


class ComputerSettings(ServiceSettings):
    """Settings of `smcp-computer`: each field is a variable with the prefix `SMCP_`."""

    config: Path = Field(description="the JSON file with the MCP servers and inputs")
    office: Name = Field(description="the office to join")
    name: Name = Field(description="this Computer's name, unique in its office")
    gateway_url: str | None = Field(
        default=None,
        description="where gateways listen, like https://host:port; several comma-separated; instead of NATS",
    )
    token: SecretStr | None = Field(default=None, description="the key or token for the gateway")
    token_file: Path | None = Field(
        default=None, description="or a file that has it, read before each connection: for tokens that are renewed"
    )
    confirm: Annotated[Literal["ask", "allow", "deny", "agent"] | None, BeforeValidator(folded)] = Field(
        default=None,
        description="ask, allow or deny tools without auto_apply, or have the Agent's user asked (agent); "
        "unset: ask at a terminal, allow where there is none",
    )
    elicit: Annotated[Literal["agent", "terminal"], BeforeValidator(folded)] = Field(
        default="agent",
        description="who answers MCP elicitation: the Agent's user, or this Computer's at its terminal",
    )
    question_s: Annotated[Seconds, Field(gt=0, le=3600)] = Field(
        default=300.0, description="how long an elicitation to the Agent waits for its answer"
    )
    confirm_command: Annotated[str | None, AfterValidator(_command_line)] = Field(
        default=None, description="a program with its arguments that is asked whether a tool may run, and not the user"
    )
    keep_results_s: Annotated[Seconds, Field(ge=0, le=3600)] = Field(
        default=300.0, description="how long the result of a call is kept for the same call sent again"
    )
    strict: bool = Field(
        default=False, description="hide a server's tools while the configuration names a tool it does not have"
    )
    vrl_s: Annotated[Seconds, Field(gt=0, le=60)] = Field(
        default=2.0, description="how long a server's script (vrl) may take for one result"
    )
    start_s: Annotated[Seconds, Field(gt=0, le=600)] = Field(
        default=30.0, description="how long the start of an MCP server may take"
    )
    wait_s: Annotated[Seconds, Field(ge=0, le=600)] = Field(
        default=3.0, description="how long a call waits for an MCP server that is being started again; 0: not at all"
    )
    silence_s: Annotated[Seconds, Field(ge=1, le=3600)] = Field(
        default=30.0, description="restart an MCP server after this long without a message, unless it runs a call"
    )
    pins: Annotated[Literal["enforce", "warn"], BeforeValidator(folded)] = Field(
        default="enforce",
        description="what becomes of a tool that is not as it is pinned: not called, or only warned of",
    )
    state_dir: Path | None = Field(
        default=None,
        description="where its control socket, its MCP servers' logs, its secrets and the names of its tools are; "
        "default: a directory of its own below XDG_STATE_HOME (~/.local/state)",
    )
    secret_key_file: Path | None = Field(
        default=None, description="file with the key of its secrets; default: the system's keyring, else a file beside"
    )
    restart: bool = Field(
        default=False,
        description="set it if a supervisor restarts the Computer at once: "
        "its seat is kept for SMCP_MOVE_S, and calls wait",
    )
    read_s: Annotated[Seconds, Field(gt=0, le=25)] = Field(
        default=4.5,
        description="how long MCP servers may take to give windows and documents; then what is known is shown",
    )

    @property
    def pins_file(self) -> Path:
        """The file of `smcp-computer pin`, beside the configuration; it may not exist."""
        return self.config.with_suffix(".pins.json")


def states_directory() -> Path:
    """Where the state directories of this user's Computers are, unless they are elsewhere (`SMCP_STATE_DIR`)."""
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "a2c-smcp"


def state_path(settings: ComputerSettings) -> Path:
    """The directory of this Computer's control socket, logs, secrets and names of tools, which may not exist."""
    return states_directory() / _seat(settings) if settings.state_dir is None else settings.state_dir


def names_path(settings: ComputerSettings) -> Path:
    """The file with the names of tools, from one process of this Computer to the next: others may share its
    directory."""
    return state_path(settings) / f"names-{_seat(settings)}.json"


def _seat(settings: ComputerSettings) -> str:
    # hashed: names may be long, and the path of a socket has 107 bytes at most
    return blake2b(f"{settings.office}\0{settings.name}".encode(), digest_size=6).hexdigest()


def check_connection(settings: ComputerSettings) -> None:
    """Raises SettingsError: the settings do not name one way to connect, or have a token that cannot be sent."""
    if settings.gateway_url is None:
        return
    from smcp_agent.connecting.link import connection_problems  # noqa: PLC0415 -- Socket.IO takes half a second to load

    problems = [
        f"SMCP_{name.upper()}: is for NATS, and --gateway (SMCP_GATEWAY_URL) is given: a Computer is connected one way"
        for name in ("nats_url", "nats_creds", "nats_ca")
        if name in settings.model_fields_set and getattr(settings, name) is not None
    ]
    if settings.token is not None and settings.token_file is not None:
        problems.append("--token (SMCP_TOKEN) and --token-file (SMCP_TOKEN_FILE): set only one")
    urls, named = settings.gateway_url.split(","), ("--gateway (SMCP_GATEWAY_URL)", "--token (SMCP_TOKEN)")
    if problems := problems + connection_problems(map(str.strip, urls), settings.token, named):
        raise SettingsError(*problems)


def token_of(settings: ComputerSettings) -> str | Callable[[], Awaitable[str]] | None:
    """The token for the gateway, or what reads it from its file before each connection."""
    from smcp_agent.connecting.options import token_from  # noqa: PLC0415 -- as above

    if settings.token is not None:
        return settings.token.get_secret_value()
    option = "--token-file (SMCP_TOKEN_FILE):"
    return None if settings.token_file is None else token_from(settings.token_file, option)


def _absolute(path: str) -> str:
    if not path.startswith(("/", "~/")):
        raise ValueError("must be an absolute path, or begin with ~/")
    return path


AbsolutePath = Annotated[str, AfterValidator(_absolute), Field(json_schema_extra={"pattern": "^(/|~/)"})]
Number = Annotated[int, Field(strict=True, gt=0)]

DEFAULTS: Final = "defaults"
"""The top-level key."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ProcessLimits(_Part):
    """For each process of a server. All are upper limits; None: that of the Computer."""

    cpu_s: Number | None = None
    """Seconds of CPU that it may use in its life; then it is ended."""
    memory_mb: Number | None = None
    """MiB that it may allocate."""
    files: Number | None = None
    """How many files and sockets it may have open."""
    processes: Number | None = None
    """How many processes and threads its user may have, all of them counted: it should have a user of its own."""


class CgroupLimits(_Part):
    """For all processes of a server together, by its cgroup (Linux, cgroup v2). None: no limit of its own."""

    memory_mb: Number | None = None
    """MiB of memory, without swap; the kernel ends a process that needs more."""
    processes: Number | None = None
    """How many processes and threads there may be."""
    cpus: float | None = Field(default=None, ge=0.01, strict=True)
    """How many processors they may use, as a number such as 0.5."""


class Sandbox(_Part):
    """What a server sees beside the programs and libraries of the system, by bubblewrap."""

    network: StrictBool = False
    """Whether it may use the network of this host; without, it has none, not even localhost."""
    read: tuple[AbsolutePath, ...] = ()
    """Files and directories that it may read."""
    write: tuple[AbsolutePath, ...] = ()
    """Files and directories that it may read and write."""


class ConfirmPolicy(_Part):
    """Which calls of a server's tools need approval. Tools are named by their original name or alias."""

    deny: tuple[str, ...] = ()
    """These are refused."""
    ask: tuple[str, ...] = ()
    """These are asked about, also with `auto_apply: true`."""
    allow: tuple[str, ...] = ()
    """These run without asking, unless `deny`, `ask` or `auto_apply: false` says otherwise."""
    destructive: Confirm | None = None
    """For other tools that may destroy something, as far as their server says."""
    default: Confirm | None = None
    """For all other tools, in place of `SMCP_CONFIRM`."""


class Allow(_Part):
    """Who may see and use a server. Patterns: `*` is any text, `?` one character. What is missing is not restricted."""

    subjects: tuple[Pattern, ...] | None = None
    """The subjects of the keys or tokens of its Agents. Where a gateway does not say who calls, nobody may."""
    offices: tuple[Pattern, ...] | None = None
    """The offices in which it may be used."""


class HostSettings(_Part):
    """One server's settings, with the defaults of the file filled in."""

    LIVE: ClassVar[frozenset[str]] = frozenset({"allow", "confirm", "unchecked_tools", "replace_content", "env_file"})
    """Names of the fields whose change alone restarts no server. The variables of `env_file` are in its `env`."""

    env_file: str | None = None
    """A file of `NAME=value` lines for the environment of a program, which its own `env` goes before."""
    allow: Allow | None = None
    """Who may see and use the server; None: every Agent of the office."""
    confirm: ConfirmPolicy = ConfirmPolicy()
    """Which calls need approval."""
    unchecked_tools: tuple[str, ...] = ()
    """Original names of tools whose arguments are not checked against their schema; `*`: all."""
    replace_content: StrictBool = False
    """What `ret_object_mapper` and `vrl` make of results replaces the content, instead of being added to `meta`."""
    user: str | None = None
    """The user of this host that a stdio server runs as; None: the Computer's."""
    environment: tuple[str, ...] | None = None
    """The variables of the Computer that a stdio server gets beside its own `env`; None: those that all get."""
    limits: ProcessLimits = ProcessLimits()
    """What each process of a stdio server may use."""
    cgroup: CgroupLimits = CgroupLimits()
    """What all processes of a stdio server may use together (Linux, cgroup v2)."""
    sandbox: Sandbox | None = None
    """What a stdio server may see of this host (Linux, by bubblewrap); None: all that its user may."""
