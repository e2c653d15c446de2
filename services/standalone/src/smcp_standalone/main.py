"""The command `smcp`: the whole system for a newcomer, and what an operator needs to spread it out."""

import json
import os
import shlex
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smcp_service.cli import SHORT_HELP, check_config_option, run_app, serve_command, version_option
from smcp_standalone import audit_command, nats_server, operator_commands

if TYPE_CHECKING:
    from smcp_standalone.app import System
    from smcp_standalone.settings import UpOptions

app = typer.Typer(
    name="smcp",
    help="A2C-SMCP: Agents use the tools of Computers that share an office.",
    no_args_is_help=True,
    add_completion=False,
    context_settings=SHORT_HELP,
)
app.add_typer(operator_commands.keys)
app.add_typer(audit_command.app)
for look in (operator_commands.offices, operator_commands.room, audit_command.watch, operator_commands.log_level):
    app.command()(look)


@app.callback()
def options(version: Annotated[bool, version_option("smcp-standalone", "smcp")] = False) -> None:
    """A2C-SMCP: Agents use the tools of Computers that share an office."""


@app.command("trace")
def show_trace() -> None:
    """Print the trace of a call: its spans as a tree, with times, processes and errors."""
    # only for `smcp --help`: `__main__` runs `trace_command` itself


@app.command("up")
def run_up(
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Where Agents connect; 0: a free one (default: 8000). [SMCP_GATEWAY_PORT]"),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="The Computer's MCP servers (JSON). Without it: mcp-server-time, where uvx is there."),
    ] = None,
    office: Annotated[str, typer.Option(help="The office that the Computer joins.")] = "home",
    name: Annotated[str, typer.Option(help="The Computer's name there.")] = "computer",
    data: Annotated[
        Path | None, typer.Option(help="The directory for rooms and credentials. Without it they are not kept.")
    ] = None,
    hosts: Annotated[
        Path | None, typer.Option(help="Who else may connect to the embedded nats-server: a file as for nats-config.")
    ] = None,
    insecure: Annotated[
        bool | None, typer.Option("--insecure", help="Accept clients without a key, also from other machines.")
    ] = None,
    mcp_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Where MCP clients connect; 0: a free one (default: --port + 1). [SMCP_MCP_PORT]"
        ),
    ] = None,
    mcp: Annotated[
        bool, typer.Option("--mcp/--no-mcp", help="Whether MCP clients can use the office over HTTP.")
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON when everything is ready, for programs.")
    ] = False,
    check_config: Annotated[bool, check_config_option()] = False,
) -> None:
    """Run everything on this machine: nats-server, registry, gateway and a Computer. ctrl-C stops it."""
    from smcp_standalone import settings as up  # noqa: PLC0415 -- it takes a second to load, and other commands need none of it

    chosen = up.UpOptions(office, name, port, config, data, hosts, insecure, mcp, mcp_port)
    if check_config and data is not None:  # nothing is written there
        sample = data / up.SAMPLE
        chosen = replace(chosen, data=None, config=sample if config is None and sample.exists() else config)
    with up.up_directory(chosen.data) as directory:
        settings = up.load_up_settings(chosen, directory)
        up.up_model(chosen)  # reports mistakes in `--hosts` before anything starts
        if not check_config:
            settings = up.with_key(settings, directory)
        from smcp_computer.config.inputs import take_secrets  # noqa: PLC0415 -- as the next one
        from smcp_computer.mcp.process import kill_children  # noqa: PLC0415 -- as the next one
        from smcp_computer.mcp.reaper import hide_memory  # noqa: PLC0415 -- as the next one
        from smcp_standalone import app as system_app  # noqa: PLC0415 -- takes seconds to load; mistakes are reported before

        hide_memory()
        environ = take_secrets()

        @asynccontextmanager
        async def open_and_tell() -> AsyncIterator["System"]:
            if not as_json:
                typer.echo("Starting (the first start of an MCP server may download it) ...")
            async with system_app.open_system(chosen, settings, directory, environ) as system:
                key, asks_who = settings.key, settings.gateway.auth_configured
                typer.echo(_ready_line(system) if as_json else _greeting(system, chosen, key=key, asks_who=asks_who))
                yield system

        serve_command(
            "smcp",
            settings.gateway,
            open_and_tell,
            check_config=check_config,
            parts=tuple(each for each in (settings.registry, settings.computer, settings.mcp) if each is not None),
            unread=up.UNREAD,
            at_once=kill_children,
        )


@app.command("nats-config")
def nats_config(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The offices and hosts (YAML).")],
    out: Annotated[Path, typer.Option(help="The directory to write into.")] = Path(),
) -> None:
    """Write nats-server's configuration and a credential for each process. A second run keeps the secrets."""
    model = nats_server.read_model(file)
    written = nats_server.write(model, out)
    typer.echo(f"{written.conf}  (start it with: nats-server -c {shlex.quote(str(written.conf))})")
    for name, path in written.credentials.items():
        typer.echo(f"{path}  (SMCP_NATS_CREDS for {name})")


def _ready_line(system: "System") -> str:
    """For programs: no key stands in it, since it may get into a log."""
    from smcp_agent.connecting.options import key_file  # noqa: PLC0415 -- as for `up`

    file, seat = key_file(system.url), system.computer.seat
    said: dict[str, object] = {
        "url": system.url,
        "nats_url": system.nats.url,
        "mcp_url": system.mcp_url,
        "office": seat.office,
        "computer": seat.computer,
        "servers": [*system.computer.fleet.supervisors],
        "failed": system.failed,
        "key_file": str(file) if file.is_file() else None,
        "pid": os.getpid(),
    }
    return json.dumps(said)


def _greeting(system: "System", chosen: "UpOptions", *, key: str | None, asks_who: bool) -> str:
    url, office, computer = (shlex.quote(part) for part in (system.url, chosen.office, chosen.name))
    beside = Path(sys.executable).parent / "smcp-agent"
    is_found = shutil.which(beside.name) is not None or not beside.is_file()  # by its name, in another terminal
    agent = f"{shlex.quote(beside.name if is_found else str(beside))} --url {url} --office {office}"
    all_servers = system.computer.fleet.supervisors
    servers = [f"{name} (is not ready, see above)" if name in system.failed else name for name in all_servers]
    lines = [
        "",
        "A2C-SMCP is up.",
        f"  Agents connect to  {system.url}  (Socket.IO, namespace /smcp)",
        f"  MCP clients        {system.mcp_url or 'none: --no-mcp, or SMCP_TOKEN is missing (a key with --delegates)'}",
        f"  Office             {chosen.office}",
        f"  Computer           {chosen.name}",
        f"  MCP servers        {', '.join(servers) or 'none'}",
    ]
    if chosen.config is None:
        lines.append("                     (a sample; give your own with --config FILE)")
    if key is not None:
        lines.append(f"  Key of this run    {key}")
        lines.append(
            "                     (smcp-agent and the SDK find it on this machine; other clients send it as token)"
        )
    elif asks_who:
        lines.append("  Token              required: set SMCP_TOKEN or pass --token")
    if chosen.hosts is not None:
        credentials = next(iter(system.nats.credentials.values())).parent
        lines.append(f"  Other hosts        {system.nats.url}, credentials in {credentials}")
    lines.append(f"  Tool calls         {system.computer.confirmation.policy}")
    for each in system.computer.fleet.statuses(usage=False):
        warnings = (*each.warnings, *system.computer.pins.warnings(each.name))
        lines += [f"  Warning            {each.name}: {warning}" for warning in warnings]
    lines += ["", "Try it from another terminal:", f"  {agent} list", f"  {agent} tools {computer}"]
    if chosen.config is None and "time" in all_servers:
        lines.append(f"  {agent} call {computer} get_current_time timezone=Asia/Shanghai")
    if system.mcp_url is not None:
        token = key or "TOKEN"
        header = f" --header 'Authorization: Bearer {token}'" if key or asks_who else ""
        lines += ["In Claude Code:", f"  claude mcp add --transport http smcp {shlex.quote(system.mcp_url)}{header}"]
    return "\n".join([*lines, "", "ctrl-C stops everything.", ""])


def main() -> None:
    run_app(app)
