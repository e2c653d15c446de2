"""Runs a command of `smcp-agent` (one request; `watch` and `mcp` keep running), explains its errors and exits."""

import asyncio
import getpass
import math
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final, NamedTuple

import typer
from rich.progress import Progress

from smcp_agent.cli.output import print_error, print_event, print_hint, print_json
from smcp_agent.client import SmcpAgent
from smcp_agent.connecting.options import Token
from smcp_agent.errors import CannotConnect, JoinRefused, Malformed, NotAuthenticated, SmcpError, TokenUnavailable
from smcp_agent.events import Disconnected, Event

FAILED: Final = 1
WRONG_USAGE: Final = 2
STOPPED: Final = 128
"""A signal ended the command: the signal's number is added, as shells do."""
ENDING: Final = (signal.SIGTERM,) if sys.platform == "win32" else (signal.SIGTERM, signal.SIGHUP)
"""They end a command as ctrl-C does, unless they are ignored, as `nohup` has it."""
LOST_S: Final = 2.0
"""Seconds before a lost connection is reported: after a gateway's restart, or at another gateway, it is back sooner."""
HELP_S: Final = 2.0
"""How long a completion may take, and the reason why there are no tools."""
HINTS: Final[Mapping[object, str]] = {
    "office_id": "--office (SMCP_OFFICE) says which office.",
    NotAuthenticated: "Give your key or token by --token (SMCP_TOKEN). The key of your own `smcp up` is found without.",
    JoinRefused: "An Agent leaves when its program ends; an MCP client over HTTP some minutes after its last request.",
    CannotConnect: "Is a gateway running there? `smcp up` starts one; --url (SMCP_URL) says where it listens.",
}


@dataclass(frozen=True, slots=True)
class Options:
    urls: Sequence[str]
    office: str
    name: str
    json: bool
    token: Token | None = field(default=None, repr=False)

    @classmethod
    def chosen(cls, url: str, office: str, name: str | None, token: str, *, as_json: bool) -> "Options":
        urls = [each.strip() for each in url.split(",")]
        return cls(urls, office, default_name() if name is None else name, as_json, token or None)

    def agent(self, max_away: float = math.inf) -> SmcpAgent:
        return SmcpAgent(self.urls, office=self.office, name=self.name, token=self.token, max_away=max_away)


def default_name() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        user = "cli"
    name = f"{user}@{socket.gethostname()}-{os.getpid()}"
    return "".join(character for character in name if character.isprintable())[-128:]


def completions(
    context: typer.Context, beginning: str, ask_names: Callable[[SmcpAgent], Awaitable[Sequence[str]]]
) -> list[str]:
    """Shell completion: the names with this prefix. Empty if it cannot join: an office has one seat for an Agent."""
    given = context.find_root().params
    chosen = Options.chosen(*(given[each] for each in ("url", "office", "name", "token")), as_json=False)

    async def names() -> list[str]:
        async with asyncio.timeout(HELP_S), chosen.agent() as agent:
            return [each for each in await ask_names(agent) if each.startswith(beginning)]

    try:
        with asyncio.Runner() as runner:
            return runner.run(names())
    except (SmcpError, TimeoutError):
        return []


class Answer(NamedTuple):
    json: Mapping[str, Any]
    show: Callable[[], None]
    failed: bool = False


def ask(
    chosen: Options,
    shown: Progress,
    query: Callable[[SmcpAgent], Awaitable[Answer]],
    *,
    ids: Mapping[str, str] | None = None,
) -> None:
    """Run a query with the progress `shown`, and print its answer. `ids`: of a call that was sent, for its error."""

    async def work() -> bool:
        loop = asyncio.get_running_loop()
        with shown:
            async with chosen.agent() as agent:

                def tell_if_lost(event: Event) -> None:  # for some seconds: a call waits for another connection
                    if isinstance(event, Disconnected):
                        said = f"The connection is lost ({event.reason}); retrying ..."
                        loop.call_later(LOST_S, lambda: None if agent.connected else print_hint(said))

                agent.on_event(tell_if_lost)
                answer = await query(agent)
        if chosen.json:
            print_json(answer.json)
        else:
            answer.show()
        return not answer.failed

    run(chosen, work(), ids=ids)


async def follow(options: Options, seconds: float | None) -> None:
    async with options.agent() as agent:
        stream = agent.events()
        there = ", ".join(agent.computers())
        print_hint(f"Watching the office {options.office!r}{there and f' ({there})'}; ctrl-C ends it.")
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                async for event in stream:
                    print_event(event, as_object=options.json)


def run(
    chosen: Options, work: Coroutine[Any, Any, object], *, ids: Mapping[str, str] | None = None, endless: bool = False
) -> None:
    """Run a command to its exit code; it failed where it returns False. ctrl-C, SIGTERM and SIGHUP cancel it: a call is
    cancelled, and the office left. For an `endless` command that is not a failure."""
    signals = [int(signal.SIGINT)]

    def terminate(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        signal.raise_signal(signal.SIGINT)  # which asyncio turns into a cancellation

    before = [(signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))]  # a shell's `&` has it ignored
    before += [(each, signal.signal(each, terminate)) for each in ENDING if signal.getsignal(each) != signal.SIG_IGN]
    try:
        with asyncio.Runner() as runner:
            done = runner.run(work)
    except SmcpError as error:
        hint = HINTS.get(str(error.details.get("field"))) or HINTS.get(type(error), "")
        print_error(error, as_json=chosen.json, hint=hint, ids=ids)
        raise typer.Exit(WRONG_USAGE if isinstance(error, Malformed | TokenUnavailable) else FAILED) from error
    except KeyboardInterrupt as error:
        if endless:
            raise typer.Exit from error
        typer.echo("cancelled", err=True)
        raise typer.Exit(STOPPED + signals[-1]) from error
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    if done is False:
        raise typer.Exit(FAILED)
