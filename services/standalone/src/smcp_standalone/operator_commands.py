"""`smcp offices`, `room` and `log-level`: what operators do over NATS, without a seat; and `smcp keys`, which edits the
file of API keys that `SMCP_AUTH_KEYS` names.

They reach NATS by `SMCP_NATS_URL` and `SMCP_NATS_CREDS`, or by the file that each `smcp up` of this user leaves, with
its NATS and the credential of an operator, which may only read.
"""

import asyncio
import json
import os
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from getpass import getuser
from pathlib import Path
from typing import Annotated, Final, TypeVar, get_args

import typer
from pydantic import BaseModel, ValidationError

from smcp_auth import api_keys as key_file
from smcp_auth.api_keys import KeyEntry, new_key
from smcp_auth.grants import UNLIMITED
from smcp_bus.audit import Event
from smcp_bus.audit_sinks import open_trail
from smcp_bus.bus import BusError, NoResponder, RequestTimedOut, describe
from smcp_bus.headers import ERROR
from smcp_bus.nats.bus import Bus, open_bus
from smcp_bus.nats.config import BusConfig, configured_credentials, load_credentials
from smcp_bus.operations import LevelAnswer
from smcp_bus.registry_contract import Offices, OfficesQuestion, OfficeSummary, Room, RoomMember, RoomQuestion
from smcp_bus.subjects import LOG_LEVEL, operators
from smcp_computer.control_commands import print_table, when
from smcp_computer.settings import states_directory
from smcp_proto.errors import ErrorBody
from smcp_proto.member_names import check_name
from smcp_proto.printable import printable_json
from smcp_proto.validation import malformed
from smcp_service.cli import parse_time, print_command
from smcp_service.lifecycle import Failure
from smcp_service.logging import configure_logging
from smcp_service.settings import LogLevel, ServiceSettings, SettingsError, load_settings

ANSWERS_S: Final = 0.5
"""How long processes may take to answer an operator (seconds): nobody knows how many there are."""
ANSWER_S: Final = 5.0
"""How long NATS, and then a registry, may take to answer (seconds)."""
PAGE: Final = 300
"""Offices or members in an answer, which has to be one message."""

RUNS: Final = "runs"
Model = TypeVar("Model", bound=BaseModel)

keys = typer.Typer(
    name="keys",
    help="Manage the API key file: who may connect to a gateway, and as whom. A gateway reads it when it changes.",
    no_args_is_help=True,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def advertise_run(url: str, credentials: Path, agents_url: str) -> AbstractContextManager[None]:
    """Let commands of this user find this run while the body runs, and forget those that were killed. Raises OSError:
    the file cannot be written."""
    from smcp_agent.connecting.options import private_file  # noqa: PLC0415 -- Socket.IO takes half a second to load

    said = {"url": url, "credentials": str(credentials.absolute()), "agents": agents_url}
    runs = states_directory() / RUNS
    for path in runs.glob("*.json"):
        with suppress(PermissionError, ValueError):  # another user's process
            try:
                os.kill(int(path.stem), 0)
            except ProcessLookupError:
                path.unlink(missing_ok=True)
    return private_file(runs / f"{os.getpid()}.json", json.dumps(said))


def command_config(settings: ServiceSettings, name: str) -> BusConfig:
    """The connection of a command, which ends soon if NATS cannot be reached."""
    return BusConfig(
        url=settings.nats_url,
        credentials=configured_credentials(settings.nats_creds),
        ca=settings.nats_ca,
        name=name,
        connect_timeout=ANSWER_S,
        patient=False,
    )


@asynccontextmanager
async def operator_bus() -> AsyncIterator[Bus]:
    """A bus with the credential of an operator. Raises Failure."""
    config, named = command_config(load_settings(ServiceSettings), "smcp-operator"), os.environ.get("SMCP_NATS_URL")
    if config.credentials is None and not named:
        beside = _find_local_run()
        config = replace(config, url=beside["url"], credentials=load_credentials(Path(beside["credentials"])))
    try:
        async with open_bus(config) as bus:
            yield bus
    except BusError as error:
        said = describe(error)
        raise Failure(said if "(SMCP_NATS_" in said else f"{said} (SMCP_NATS_URL, SMCP_NATS_CREDS)") from None


async def ask(bus: Bus, verb: str, question: BaseModel, answer: type[Model]) -> Model:
    """Ask the registries. Raises Failure."""
    subject, body = operators(bus.credential, verb), question.model_dump_json().encode()
    try:
        reply = await bus.request(subject, body, timeout=ANSWER_S)
    except RequestTimedOut:
        raise Failure("no registry answers in time") from None
    except NoResponder:
        why = "none runs, it is an older one, or NATS does not permit it"
        raise Failure(f"no registry answers: {why}") from None
    except BusError as error:
        raise Failure(str(error)) from None
    if ERROR in reply.headers:
        raise Failure(f"the registry refused: {ErrorBody.model_validate_json(reply.body).message}")
    return answer.model_validate_json(reply.body)


def _find_local_run() -> dict[str, str]:
    """The `smcp up` of this user that runs. Raises Failure: there is none, or several."""
    found: list[dict[str, str]] = []
    for path in (states_directory() / RUNS).glob("*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            os.kill(int(path.stem), 0)
            said = json.loads(path.read_text(encoding="utf-8"))
            if Path(said["credentials"]).is_file():
                found.append(said)
    if not found:
        other = "for another system set SMCP_NATS_URL, and SMCP_NATS_CREDS to the credential of an operator"
        raise Failure(f"no `smcp up` of this user runs here; {other}")
    if len(found) > 1:
        each = (
            f"SMCP_NATS_URL={run['url']} SMCP_NATS_CREDS={shlex.quote(run['credentials'])}  # {run['agents']}"
            for run in found
        )
        several = f"SMCP_NATS_URL: {len(found)} `smcp up` processes are running; set the variables of one:"
        raise SettingsError("\n  ".join([several, *each]))
    return found[0]


def offices(as_json: AsJson = False) -> None:
    """List the offices that have members: who is the Agent, since when, and how many Computers there are."""

    async def show(bus: Bus, stop: asyncio.Event) -> None:
        found: list[OfficeSummary] = []
        page = Offices(offices=[], more=True)
        while page.more:
            after = found[-1].office if found else ""
            page = await ask(bus, "offices", OfficesQuestion(after=after, limit=PAGE), Offices)
            found += page.offices
        if as_json:
            typer.echo(printable_json({"offices": [each.model_dump() for each in found]}, indent=None))
            return
        rows = [
            (each.office, each.agent or "-", when(each.since or "?") if each.agent else "-", str(each.computers))
            for each in found
        ]
        print_table("Office", {"Agent": 10, "Since": 10, "Computers": 9}, rows, "no office has members")

    _look(show)


def room(office: Annotated[str, typer.Argument(metavar="OFFICE")], as_json: AsJson = False) -> None:
    """List the members of an office, without taking a seat."""
    check_office(office)

    async def show(bus: Bus, stop: asyncio.Event) -> None:
        found: list[RoomMember] = []
        page = Room(office=office, members=[], more=True)
        while page.more:
            after = (found[-1].role, found[-1].name) if found else None
            page = await ask(bus, "room", RoomQuestion(office=office, after=after, limit=PAGE), Room)
            found += page.members
        if as_json:
            members = [each.model_dump() for each in found]
            typer.echo(printable_json({"office": page.office, "members": members}, indent=None))
            return
        rows = [
            (each.role, each.name, when(each.since or "?"), each.by, each.a2c_version or "-", "moving" * each.moving)
            for each in found
        ]
        columns = {"Name": 10, "Since": 10, "Credential": 10, "Version": 7, "State": 6}
        print_table("Role", columns, rows, f"the office {office!r} has no members")

    _look(show)


def log_level(
    level: Annotated[
        str | None, typer.Argument(help="debug, info, warning, error or critical. Without it: show the levels.")
    ] = None,
    credential: Annotated[str | None, typer.Option(help="Only of the processes with this credential.")] = None,
) -> None:
    """Show or set the log level of running processes, over NATS. SIGUSR1 switches one process to debug and back."""
    level = level and level.lower()
    if level is not None and level not in get_args(LogLevel):
        raise SettingsError(f"LEVEL: {level!r} is none of {', '.join(get_args(LogLevel))}")

    async def show(bus: Bus, stop: asyncio.Event) -> None:
        answers: list[bytes] = []
        inbox = f"{bus.inbox_prefix}.{bus.process}.answers"
        number = bus.attach(inbox, "", lambda subject, reply, head, body: answers.append(b"" if head else body))
        try:
            bus.send(LOG_LEVEL, inbox, b"", json.dumps({"level": level, "credential": credential}).encode())
            await asyncio.sleep(ANSWERS_S)
        finally:
            bus.unsubscribe_at_server(number)
            bus.detach(number)
        found = [LevelAnswer.model_validate_json(answer) for answer in answers if answer]
        found = [each for each in found if credential in (None, each.credential)]
        if not found:
            raise Failure("no such process answers (or this credential may not ask)")
        for each in sorted(found, key=lambda each: (each.service, each.credential)):
            typer.echo(f"{each.level:<8}  {each.service}  {each.credential}  {each.process}")

    _look(show)


def _look(show: Callable[[Bus, asyncio.Event], Awaitable[None]]) -> None:
    configure_logging("smcp", level="error")

    async def main(stop: asyncio.Event) -> None:
        async with operator_bus() as bus:
            await show(bus, stop)

    print_command(main)


def check_office(office: str) -> str:
    try:
        return check_name(office)
    except ValueError as error:
        raise SettingsError(f"OFFICE: {error}") from None


File = Annotated[
    Path,
    typer.Option("--file", "-f", envvar="SMCP_AUTH_KEYS", dir_okay=False, help="The file of keys; `add` creates it."),
]


@keys.command()
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
        bool, typer.Option("--delegates", help="For smcp-mcp: may call tools on behalf of users; no quota.")
    ] = False,
    subject: Annotated[
        str | None, typer.Option(help="The key's owner. A new key of the same subject takes over the old one's seat.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="WHEN", help="90d, 12h, 30m, a date, or a time like 2027-01-31T12:00+01:00.")
    ] = None,
) -> None:
    """Create a key and print it. It is shown only once; the file stores its hash."""
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
    said = f"{file} has its hash, under the id {entry.id}. The key is shown only once"
    typer.echo(f"{said}; its holder sets SMCP_TOKEN to it.", err=True)


@keys.command("list")
def list_keys(file: File) -> None:
    """List the keys: the owner of each, what it allows, and until when. The keys themselves are not shown."""
    entries = key_file.read(file)
    for entry in entries:
        typer.echo(_key_line(entry))
    if not entries:
        typer.echo("no keys: nobody may connect by one", err=True)


@keys.command("rm")
def remove(
    file: File,
    key: Annotated[str, typer.Argument(metavar="ID", help="The id of a key, or a subject: then all of its keys.")],
) -> None:
    """Remove a key. Gateways close its connections within two seconds."""
    entries = key_file.read(file)
    removed = [entry for entry in entries if entry.id == key] or [entry for entry in entries if entry.subject == key]
    if not removed:
        raise Failure(f"{file}: there is no key with the id or subject {key!r}")
    _recorded("removed", removed, lambda: key_file.remove(file, key))
    for entry in removed:
        typer.echo(f"removed {_key_line(entry)}")


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


def _key_line(entry: KeyEntry) -> str:
    """What it allows, without what is allowed to any key."""
    fields = entry.model_dump(mode="json", exclude_defaults=True, exclude={"id", "hash", "created"})
    said = (f"{name}: {', '.join(value) if isinstance(value, list) else value}" for name, value in fields.items())
    return "  ".join([entry.id, *said])
