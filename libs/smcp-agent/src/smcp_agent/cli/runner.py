"""Runs a command of `smcp-agent` to its exit code, and explains its errors."""

import asyncio
import getpass
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Annotated, Any, Final, NamedTuple

import typer

from smcp_agent.cli.output import mebibytes, print_error, print_hint, print_json, working
from smcp_agent.client import SmcpAgent
from smcp_agent.connecting.options import MAX_MESSAGE
from smcp_agent.errors import (
    CannotConnect,
    JoinRefused,
    Malformed,
    McpError,
    NotAuthenticated,
    NotFound,
    RateLimited,
    SmcpError,
    TimedOut,
    TooLarge,
    Unavailable,
    may_have_run,
)

DONE: Final = 0
FAILED: Final = 1
WRONG_USAGE: Final = 2
INTERRUPTED: Final = 130
"""By ctrl-C, as shells say it."""
TERMINATED: Final = 143
"""By SIGTERM, as shells say it."""


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


class _Terminated(Exception):
    """SIGTERM came."""


def agent_for(options: Options) -> SmcpAgent:
    """The Agent that runs a command."""
    return SmcpAgent(
        options.url, office=options.office, name=options.name, token=options.token, max_message=options.max_message
    )


@contextmanager
def knowing(agent: SmcpAgent, computer: str) -> Iterator[None]:
    """Say of a Computer that is not there which ones are."""
    try:
        yield
    except NotFound as error:
        others = agent.computers()
        if computer in others:
            raise
        there = f"There are: {', '.join(others)}." if others else "There is none at all."
        message = f"there is no Computer {computer!r} in the office {agent.office!r}."
        raise NotFound(f"{message}{did_you_mean(computer, others)} {there}", details=error.details) from error


@asynccontextmanager
async def asking(agent: SmcpAgent, computer: str, server: str | None) -> AsyncIterator[None]:
    """As `knowing`, and say of an MCP server that is not there which ones the Computer has."""
    with knowing(agent, computer):
        try:
            yield
        except NotFound as error:
            names = [] if server is None or computer not in agent.computers() else await _servers(agent, computer)
            if server is None or not names or server in names:
                raise
            message = f"the Computer {computer!r} has no MCP server {server!r}."
            there = f"It has: {', '.join(names)}."
            raise NotFound(f"{message}{did_you_mean(server, names)} {there}", details=error.details) from error


async def _servers(agent: SmcpAgent, computer: str) -> list[str]:
    try:
        return sorted((await agent.get_config(computer)).servers)
    except SmcpError:
        return []  # then what was said before has to do


def did_you_mean(name: str, names: Sequence[str]) -> str:
    """A sentence with the names that are near to it, and a space before it; empty where none is."""
    near = [repr(each) for each in get_close_matches(name, names, n=3)]
    return f" Did you mean {' or '.join(near)}?" if near else ""


class Answer(NamedTuple):
    """What a command has found out."""

    json: Mapping[str, Any] | None
    """For programs; None: it is shown to both in the same way."""
    show: Callable[[], None]
    """Prints it for people."""
    hint: str = ""
    failed: bool = False


def ask(
    chosen: Options,
    what: str,
    question: Callable[[SmcpAgent], Awaitable[Answer]],
    ids: Mapping[str, str] | None = None,
    *,
    timeout: float | None = None,
) -> None:
    """Run a command that asks one question, and print the answer. `ids` and `timeout` are those of `run`.

    Args:
        what: goes on meanwhile, for people.
    """

    async def work() -> bool:
        with working(what):
            async with agent_for(chosen) as agent:
                answer = await question(agent)
        if chosen.json and answer.json is not None:
            print_json(answer.json)
        else:
            answer.show()
        if answer.hint:
            print_hint(answer.hint)
        return not answer.failed

    run(chosen, work(), ids, timeout=timeout)


def run(
    chosen: Options,
    work: Coroutine[Any, Any, bool],
    ids: Mapping[str, str] | None = None,
    *,
    timeout: float | None = None,
    endless: bool = False,
) -> None:
    """Run a command to its exit code; errors that belong to the trade are printed, never traced back.

    ctrl-C and SIGTERM cancel it: a call is cancelled, and the office left.

    Args:
        ids: of the call, for the error.
        timeout: seconds for all of it.
        endless: it runs until it is told to end, so that is no failure.
    """
    # while it runs, ctrl-C is asyncio's
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        done = asyncio.run(_until_told(_within(work, timeout)))
    except SmcpError as error:
        print_error(error, as_json=chosen.json, hint=_hint(error, chosen), ids=ids)
        raise typer.Exit(WRONG_USAGE if isinstance(error, Malformed) else FAILED) from error
    except (KeyboardInterrupt, _Terminated) as told:
        if endless:
            raise typer.Exit(DONE) from told
        typer.echo("cancelled", err=True)
        raise typer.Exit(TERMINATED if isinstance(told, _Terminated) else INTERRUPTED) from told
    finally:
        signal.signal(signal.SIGINT, before)
    if not done:
        raise typer.Exit(FAILED)


async def _within(work: Awaitable[bool], seconds: float | None) -> bool:
    """Raises TimedOut where that is not enough."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await work
    except TimeoutError:
        if not limit.expired():
            raise
        raise TimedOut(f"there was no answer within {seconds:g} s") from None


async def _until_told(work: Awaitable[bool]) -> bool:
    """Raises _Terminated after SIGTERM, when the work has come to its end."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    told = False

    def end() -> None:
        nonlocal told
        told = True
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, end)
    try:
        return await work
    except asyncio.CancelledError:
        if told:
            raise _Terminated from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def _hint(error: SmcpError, chosen: Options) -> str:
    match error:
        case JoinRefused(details={"why": str(why)}) if why.startswith("the token "):
            return (
                "A token says for which offices, roles and names it is: choose with --office (SMCP_OFFICE) and --name "
                "(SMCP_AGENT_NAME), or ask for another token."
            )
        case JoinRefused():
            return (
                f"There is one Agent per office. If another one is in {chosen.office!r}, end it or choose another "
                "office with --office (SMCP_OFFICE)."
            )
        case NotAuthenticated():
            return "SMCP_TOKEN (--token) says who you are: a key of `smcp keys add`, or a JWT."
        case McpError() if error.message.startswith("the MCP server ") and error.message.endswith(" failed"):
            return "What it said is in the log of the Computer."
        case RateLimited(details={"retry_after_s": int() | float() as wait}):
            return f"Try again in {wait:g} s."
        case CannotConnect():
            return (
                "Is a gateway running there? `smcp up` starts one; --url (SMCP_URL) says where it listens, with "
                "https:// where TLS is spoken."
            )
        case TooLarge(details={"size": int(size), "limit": int(limit)}):
            return (
                f"It has {mebibytes(size)}, and at most {mebibytes(limit)} are carried: SMCP_MAX_PAYLOAD sets that, in "
                "bytes, for the services and for this command. The structured content of a result counts, too."
            )
        case Unavailable() if not may_have_run(error):
            return "That is for now: try again in a moment."
        case _:
            return ""
