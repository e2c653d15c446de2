"""What a user sets for an MCP server on this host, beside what the protocol's pages define.

The fields stand beside a server's own in the file, and as defaults for all servers under the top-level key `defaults`.
They say how a server runs here: Agents do not see them, and they are no part of `client:get_config`. `make docs` puts
them with their docstrings into the JSON Schema of the file.
"""

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool

from smcp_proto.member_names import Pattern


def _absolute(path: str) -> str:
    if not path.startswith(("/", "~/")):
        raise ValueError("must be an absolute path, or begin with ~/")
    return path


AbsolutePath = Annotated[str, AfterValidator(_absolute), Field(json_schema_extra={"pattern": "^(/|~/)"})]
Number = Annotated[int, Field(strict=True, gt=0)]

DEFAULTS: Final = "defaults"
"""The top-level key."""


class ProcessLimits(BaseModel):
    """For each process of a server. All are upper limits; None: that of the Computer."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    cpu_s: Number | None = None
    """Seconds of CPU that it may use in its life; then it is ended."""
    memory_mb: Number | None = None
    """MiB that it may allocate."""
    files: Number | None = None
    """How many files and sockets it may have open."""
    processes: Number | None = None
    """How many processes and threads its user may have, all of them counted: it should have a user of its own."""


class CgroupLimits(BaseModel):
    """For all processes of a server together, by its cgroup (Linux, cgroup v2). None: no limit of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    memory_mb: Number | None = None
    """MiB of memory, without swap; the kernel ends a process that needs more."""
    processes: Number | None = None
    """How many processes and threads there may be."""
    cpus: float | None = Field(default=None, ge=0.01, strict=True)
    """How many processors they may use, as a number such as 0.5."""


class Sandbox(BaseModel):
    """What a server sees beside the programs and libraries of the system, by bubblewrap."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    network: StrictBool = False
    """Whether it may use the network of this host; without, it has none, not even localhost."""
    read: tuple[AbsolutePath, ...] = ()
    """Files and directories that it may read."""
    write: tuple[AbsolutePath, ...] = ()
    """Files and directories that it may read and write."""


class Confirm(StrEnum):
    """What becomes of a call that nothing else decides."""

    ASK = "ask"
    ALLOW = "allow"
    DENY = "deny"


class ConfirmPolicy(BaseModel):
    """Which calls of a server's tools have to be confirmed. Tools are named by their original name or alias."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

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


class Allow(BaseModel):
    """Who may see and use a server. Patterns: `*` is any text, `?` one character. What is missing is not restricted."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    subjects: tuple[Pattern, ...] | None = None
    """The subjects of the keys or tokens of its Agents. Where a gateway does not say who calls, nobody may."""
    offices: tuple[Pattern, ...] | None = None
    """The offices in which it may be used."""


class HostSettings(BaseModel):
    """One server's settings, with the defaults of the file filled in."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    LIVE: ClassVar[frozenset[str]] = frozenset({"allow", "confirm", "unchecked_tools", "replace_content", "env_file"})
    """Names of the fields whose change alone restarts no server. The variables of `env_file` are in its `env`."""
    STDIO_ONLY: ClassVar[frozenset[str]] = frozenset({"env_file", "user", "environment", "limits", "cgroup", "sandbox"})
    """Names of the fields that say something about a program of this host: none about a server over HTTP."""

    env_file: str | None = None
    """A file of `NAME=value` lines for the environment of a program, which its own `env` goes before."""
    allow: Allow | None = None
    """Who may see and use the server; None: every Agent of the office."""
    confirm: ConfirmPolicy = ConfirmPolicy()
    """Which calls have to be confirmed."""
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
