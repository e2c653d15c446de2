"""What every command of `smcp-agent` needs to know: where, as whom, and for whom to print."""

import getpass
import os
import socket
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

import typer

from smcp_agent.connecting.options import MAX_MESSAGE

MAX_PAYLOAD: Final = 32 * 1024 * 1024
"""Bytes: what the services carry where they are told nothing else."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, for programs.")]


@dataclass(frozen=True, slots=True)
class Options:
    """The global options."""

    url: str
    office: str
    name: str
    json: bool
    max_payload: int
    """Bytes of the largest result."""
    token: str | None = field(default=None, repr=False)
    """What says who this Agent is, where the gateway asks."""

    @property
    def max_message(self) -> int:
        """Bytes of the largest message: a payload, and room for what is round it."""
        return self.max_payload + MAX_MESSAGE - MAX_PAYLOAD

    def with_json(self, json: bool) -> "Options":
        """`--json` may stand before or after the command."""
        return replace(self, json=self.json or json)


def default_name() -> str:
    """A name that no other run has at the same time: user@host-pid."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        user = "cli"
    name = f"{user}@{socket.gethostname()}-{os.getpid()}"
    return "".join(character for character in name if character.isprintable())[-128:]
