"""`smcp keys`: edits the file of API keys that `SMCP_AUTH_KEYS` names."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import UTC, datetime
from getpass import getuser
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from smcp_auth import api_keys as key_file
from smcp_auth.api_keys import KeyEntry, new_key
from smcp_auth.grants import UNLIMITED
from smcp_bus.audit import Event
from smcp_bus.audit_sinks import open_trail
from smcp_bus.bus import BusError, describe
from smcp_bus.nats.bus import Bus, open_bus
from smcp_proto.validation import malformed
from smcp_service.cli import parse_time
from smcp_service.lifecycle import Failure
from smcp_service.logging import configure_logging
from smcp_service.settings import ServiceSettings, SettingsError, load_settings
from smcp_standalone.operator_commands import command_config

app = typer.Typer(
    name="keys",
    help="Keep the file of API keys: who may connect to a gateway, and as whom. A gateway reads it when it changes.",
    no_args_is_help=True,
)

File = Annotated[
    Path,
    typer.Option("--file", "-f", envvar="SMCP_AUTH_KEYS", dir_okay=False, help="The file of keys; `add` creates it."),
]


@app.command()
def add(
    file: File,
    office: Annotated[list[str], typer.Option(metavar="PATTERN", help="An office: * is any text, ? a character.")],
    role: Annotated[list[str], typer.Option(metavar="ROLE", help="agent or computer. Give it twice for both.")],
    name: Annotated[list[str], typer.Option(metavar="PATTERN", help="A name that its holder may have; '*' is any.")],
    computer: Annotated[
        list[str], typer.Option(metavar="PATTERN", help="A Computer that an Agent may ask; without it, any.")
    ] = ["*"],  # noqa: B006 -- typer copies it
    tool: Annotated[
        list[str],
        typer.Option(metavar="PATTERN", help="A listed tool that an Agent may use; without it, any."),
    ] = ["*"],  # noqa: B006
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Allow only tools that their MCP server marks as read-only.")
    ] = False,
    delegates: Annotated[
        bool, typer.Option("--delegates", help="For smcp-mcp: the Agent says for whom it calls, and has no quota.")
    ] = False,
    subject: Annotated[
        str | None, typer.Option(help="Who holds the key. A new key of the same subject takes over the old one's seat.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="WHEN", help="90d, 12h, 30m, a date, or a time like 2027-01-31T12:00+01:00.")
    ] = None,
) -> None:
    """Make a key and print it. It is printed this once: the file holds its hash alone."""
    until = None if expires is None else parse_time("--expires", expires, 1).replace(microsecond=0)
    if until is not None and until <= datetime.now(UTC):
        raise SettingsError(f"--expires: {expires!r} is over already")
    try:
        key, entry = new_key(
            subject=subject,
            offices=office,
            roles=role,
            names=name,
            expires=until,
            computers=computer,
            tools=tool,
            read_only=read_only,
            delegates=delegates,
            quota=UNLIMITED if delegates else None,
        )
    except ValidationError as error:
        wrong = malformed(error).details
        raise SettingsError(f"--{wrong['field'].partition('.')[0].removesuffix('s')}: {wrong['reason']}") from None
    _recorded("added", [entry], lambda: key_file.add(file, entry))
    typer.echo(key)
    said = f"{file} has its hash, under the id {entry.id}. The key is shown this once"
    typer.echo(f"{said}; its holder sets SMCP_TOKEN to it.", err=True)


@app.command("list")
def list_keys(file: File) -> None:
    """List the keys: the holder of each, what it allows, and until when. The keys themselves are not shown."""
    entries = key_file.read(file)
    for entry in entries:
        typer.echo(_line(entry))
    if not entries:
        typer.echo("no keys: nobody may connect by one", err=True)


@app.command("rm")
def remove(
    file: File,
    key: Annotated[str, typer.Argument(metavar="ID", help="The id of a key, or a subject: then all of its keys.")],
) -> None:
    """Remove a key. Gateways end what is connected by it within two seconds."""
    entries = key_file.read(file)
    removed = [entry for entry in entries if entry.id == key] or [entry for entry in entries if entry.subject == key]
    if not removed:
        raise Failure(f"{file}: there is no key with the id or subject {key!r}")
    _recorded("removed", removed, lambda: key_file.remove(file, key))
    for entry in removed:
        typer.echo(f"removed {_line(entry)}")


def _recorded(outcome: str, entries: Sequence[KeyEntry], change: Callable[[], object]) -> None:
    """Raises Failure: it cannot be recorded, and `SMCP_AUDIT` says that it has to be; then nothing is changed."""
    settings = load_settings(ServiceSettings)

    async def record() -> str | None:
        connection: AbstractAsyncContextManager[Bus | None] = nullcontext()
        if settings.audit_file is None:
            connection = open_bus(command_config(settings, "smcp-keys"))
        try:
            async with (
                connection as bus,
                open_trail("smcp_standalone.events", settings, bus, name="smcp keys") as trail,
            ):
                for entry in entries:
                    trail.write(Event("key", outcome, subject=entry.subject, name=getuser(), event=entry.id))
                await trail.close()
                return trail.problem or ("no answer in time" if trail.waiting else None)
        except BusError as error:
            return describe(error)

    configure_logging("smcp-keys", level="critical")
    problem = None if settings.audit == "off" else asyncio.run(record())
    if problem is not None and settings.audit == "required":
        raise Failure(f"nothing is changed, since it cannot be recorded (SMCP_AUDIT=required): {problem}")
    change()
    if problem is not None:
        typer.echo(f"warning: this is not in the audit trail: {problem}", err=True)


def _line(entry: KeyEntry) -> str:
    """What it allows, without what is allowed to any key."""
    fields = entry.model_dump(mode="json", exclude_defaults=True, exclude={"id", "hash", "created"})
    said = (f"{name}: {', '.join(value) if isinstance(value, list) else value}" for name, value in fields.items())
    return "  ".join([entry.id, *said])
