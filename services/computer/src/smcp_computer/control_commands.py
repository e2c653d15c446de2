"""The commands of `smcp-computer` that ask a Computer which runs on this host for this user, over its control socket.

`control` is the other end, over HTTP. The commands print tables for people, JSON for programs (`--json`), and warnings
to standard error.
"""

import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from smcp_computer.settings import LOGS, SOCKET, states_directory
from smcp_proto.printable import did_you_mean, plain, printable_json
from smcp_service.lifecycle import Failure, counted
from smcp_service.settings import SettingsError

ANSWER_S: Final = 30.0
"""How long a Computer may take, beside the time of a call of a tool."""
GREETING_S: Final = 2.0
"""How long one may take to say who it is: another one may hang."""
POLL_S: Final = 0.25
"""How often `logs -f` looks at the file: nobody reads faster."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Said = Mapping[str, Any]
"""An answer of `control`."""

app = typer.Typer()


@dataclass(frozen=True)
class RunningComputer:
    directory: Path
    office: str = ""
    name: str = ""

    def ask(self, method: str, *path: str, body: object = None, timeout: float = ANSWER_S) -> Any:
        """Raises SettingsError: the Computer does not understand the request; Failure: it refuses it, or is silent."""
        import httpx2  # noqa: PLC0415 -- a running Computer does not need it in its memory

        url = f"http://localhost/{'/'.join(quote(part, safe='') for part in path)}"
        # no TLS: it would read all authorities
        transport = httpx2.HTTPTransport(uds=str(self.directory / SOCKET), verify=False)
        try:
            with httpx2.Client(transport=transport, timeout=timeout, trust_env=False) as client:
                response = client.request(method, url, json=body)
            said = response.json()
        except httpx2.TimeoutException:
            raise Failure(f"the Computer did not answer within {timeout:g} s") from None
        except (httpx2.TransportError, ValueError) as error:
            raise Failure(f"the Computer does not answer: {error}") from None
        if response.is_error:
            raise (SettingsError if response.status_code == HTTPStatus.BAD_REQUEST else Failure)(said["error"])
        return said


class NoneRuns(Failure):
    """No Computer that runs here matches."""


def find(office: str | None, name: str | None) -> RunningComputer:
    """The one that runs with that office and name; None: any. Raises NoneRuns; Failure: there are several."""
    given = {"office": office or os.environ.get("SMCP_OFFICE"), "name": name or os.environ.get("SMCP_NAME")}
    here = running()
    fitting = [each for each in here if all(value in (None, getattr(each, field)) for field, value in given.items())]
    if len(fitting) == 1:
        return fitting[0]
    choices = "".join(f"\n  --office {each.office} --name {each.name}" for each in fitting or here)
    if fitting:
        raise Failure(f"several Computers run here; say which one:{choices}")
    if here:
        asked = " ".join(f"--{field} {value}" for field, value in given.items() if value is not None)
        raise NoneRuns(f"no Computer of this user runs here with {asked}; there are:{choices}")
    raise NoneRuns(
        "no Computer of this user runs here, or it has not started yet: `smcp-computer run` starts one; "
        "SMCP_STATE_DIR says where its socket is, if it was started with it"
    )


def running() -> list[RunningComputer]:
    """Those that answer, by office and name."""
    given = os.environ.get("SMCP_STATE_DIR")
    found = []
    for directory in [Path(given)] if given else states_directory().glob("*"):
        with suppress(Failure):  # nobody listens there any more
            said = RunningComputer(directory).ask("GET", "status", timeout=GREETING_S)
            found.append(RunningComputer(directory, said["office"], said["name"]))
    return sorted(found, key=lambda each: (each.office, each.name))


def _known_servers(context: typer.Context) -> list[str]:
    """For the completion of a shell, which shows no errors."""
    with suppress(Failure):
        computer = find(context.params.get("office"), context.params.get("name"))
        return [each["name"] for each in computer.ask("GET", "status")["servers"]]
    return []


Office = Annotated[str | None, typer.Option(help="The Computer's office, where several run here. [SMCP_OFFICE]")]
Name = Annotated[str | None, typer.Option(help="The Computer's name, where several run here. [SMCP_NAME]")]
Server = Annotated[
    str, typer.Argument(metavar="SERVER", help="An MCP server's name in the file.", autocompletion=_known_servers)
]


def print_json(value: object) -> None:
    typer.echo(printable_json(value))


def print_status(said: Said) -> None:
    state = "stopping" if said["stopping"] else "ready" if said["ready"] else "not ready"
    calls = counted(said["calls"], "call")
    typer.echo(plain(f"{said['name']} in {said['office']}: {state}, {calls} running, process {said['pid']}"))
    for what, why in said["problems"].items():
        if why != said["config_problem"]:
            warn(f"{what}: {why}")
    if said["config_problem"]:
        warn(f"{said['config']} is invalid, the previous one stays in use: {said['config_problem']}")
    rows = [
        (
            each["name"],
            each["state"],
            when(each["since"]),
            str(each["restarts"]),
            str(each["tools"]),
            str(each["calls"]),
            "" if each["pid"] is None else str(each["pid"]),
            "" if each["cpu_s"] is None else f"{each['cpu_s']:.1f} s",
            "" if each["memory_bytes"] is None else f"{each['memory_bytes'] / 1e6:.0f} MB",
            each["reason"],
        )
        for each in said["servers"]
    ]
    numbers = {"Restarts": 8, "Tools": 5, "Running": 7, "PID": 7, "CPU": 8, "Memory": 8}
    columns = {"State": 8, "Since": 10, **numbers, "Reason": 20}
    empty = f"No MCP servers: {said['config']} names none; `smcp-computer servers add` adds one."
    print_table("Server", columns, rows, empty)
    if failing := [each["name"] for each in said["servers"] if each["reason"]]:
        warn(f"More about why: {', '.join(f'smcp-computer logs {shlex.quote(each)}' for each in failing)}")
    for each in said["servers"]:
        for warning in each["warnings"]:
            warn(f"{each['name']}: {warning}")
    for warning in said.get("warnings", ()):  # of a change of the file
        warn(f"warning: {warning}")


def print_table(first: str, others: Mapping[str, int], rows: Sequence[Sequence[str]], empty: str) -> None:
    """As `smcp_agent.cli.output` prints it, which loads rich: a running Computer does not need that in its memory."""
    from smcp_agent.cli import output  # noqa: PLC0415

    output.print_table(first, others, rows, empty)


def warn(text: str) -> None:
    typer.secho(plain(text), fg="yellow", err=True)


def when(time: float | str) -> str:
    """A time for people (Unix seconds or RFC 3339), in this machine's zone, which it says; other text as it is."""
    try:
        read = datetime.fromisoformat(time) if isinstance(time, str) else datetime.fromtimestamp(time, UTC)
        return read.astimezone().isoformat(" ", "seconds")
    except (ValueError, OverflowError):
        return str(time)


def _asks(command: str, show: Callable[[Said], None], what: str) -> None:
    """Define a command that sends one request to the running Computer and shows the answer."""

    @app.command(command, help=what)
    def ask(office: Office = None, name: Name = None, as_json: Json = False) -> None:
        (print_json if as_json else show)(find(office, name).ask("GET", command))


def _show_tools(said: Said) -> None:
    rows = [(each["name"], each["server"], each["description"]) for each in said["tools"]]
    print_table("Tool", {"Server": 10, "Description": 20}, rows, "No tools: `smcp-computer status` says why.")


def _show_inputs(said: Said) -> None:
    rows = [(each["id"], each["source"] or "nowhere: it has no value", each["description"]) for each in said["inputs"]]
    print_table("Input", {"Value from": 20, "Description": 20}, rows, "No inputs.")


def _show_history(said: Said) -> None:
    rows = [
        (when(call["at"]), server, call["tool"], call["agent"], call["outcome"], f"{call['ms']:.0f} ms", call["why"])
        for server, calls in said["servers"].items()
        for call in calls
    ]
    columns = {"Server": 10, "Tool": 10, "Agent": 10, "Outcome": 10, "Took": 8, "Why": 10}
    print_table("At", columns, sorted(rows), "No calls yet.")


_asks("status", print_status, "How the running Computer and its MCP servers are.")
_asks("tools", _show_tools, "The tools as Agents see them.")
_asks("inputs", _show_inputs, "The inputs, and where their values come from; no value is shown.")
_asks("history", _show_history, "The recent calls of tools, and those that run.")


@app.command()
def call(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="As `tools` lists it.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE|@FILE|-",
            help="Its parameters, converted by its schema. KEY=@FILE reads one value from a file; @FILE reads a JSON "
            "object of parameters from a file, `-` from standard input.",
        ),
    ] = None,
    params: Annotated[str, typer.Option(metavar="JSON", help="Its parameters, a JSON object.")] = "{}",
    timeout: Annotated[int, typer.Option(min=1, max=3600, metavar="SECONDS", help="How long it may take.")] = 60,
    office: Office = None,
    name: Name = None,
    as_json: Json = False,
) -> None:
    """Call a tool as an Agent does, with approval and an entry in the history. ctrl-C cancels it."""
    from smcp_agent.cli.parameters import convert_texts, read_parameters  # noqa: PLC0415 -- a running Computer does not need it in its memory

    given, texts = read_parameters(params, words or ())
    computer = find(office, name)
    listed = computer.ask("GET", "tools")["tools"] if texts else []
    schema: Said = next((each["params_schema"] for each in listed if each["name"] == tool), {})
    asked = {"tool_name": tool, "params": given | convert_texts(texts, schema), "timeout": timeout}
    result = computer.ask("POST", "call", body=asked, timeout=timeout + ANSWER_S)
    (print_json if as_json else print_result)(result)
    if result.get("isError"):
        raise typer.Exit(1)


def print_result(result: Said) -> None:
    from smcp_agent.results import as_text, content_block  # noqa: PLC0415 -- as above

    for block in result["content"]:
        typer.echo(plain(as_text(content_block(block))))


@app.command()
def logs(
    server: Server,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Also print new lines as they are written, until ctrl-C.")
    ] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Number of lines to print.")] = 100,
    office: Office = None,
    name: Name = None,
    as_json: Json = False,
) -> None:
    """What an MCP server writes to its standard error, and why it ended."""
    from smcp_computer.mcp.server_log import log_file  # noqa: PLC0415 -- it takes a second to load

    directory = find(office, name).directory / LOGS
    path = log_file(directory, server)
    if not path.exists():
        known = sorted(each.stem for each in directory.glob("*.log"))
        there = f"{did_you_mean(server, known)}; there are: {', '.join(known) or 'none'}"
        raise Failure(f"there is no log of an MCP server {server!r}{there}; {path} does not exist")
    if follow:
        signal.signal(signal.SIGINT, lambda *_: os._exit(0))  # as of all commands that only ctrl-C ends
    for line in _log_lines(path, lines, follow=follow):
        typer.echo(printable_json({"server": server, "line": line}, indent=None) if as_json else plain(line))


def _log_lines(path: Path, last: int, *, follow: bool) -> Iterator[str]:
    """The last lines, and then what is added. A file that was replaced, since it was full, is read from its start."""
    file = path.open(encoding="utf-8", errors="replace")
    try:
        yield from (line.rstrip("\n") for line in file.readlines()[-last:] if last)
        while follow:
            while line := file.readline():
                yield line.rstrip("\n")
            time.sleep(POLL_S)
            if path.exists() and path.stat().st_ino != os.fstat(file.fileno()).st_ino:
                file.close()
                file = path.open(encoding="utf-8", errors="replace")
    finally:
        file.close()
