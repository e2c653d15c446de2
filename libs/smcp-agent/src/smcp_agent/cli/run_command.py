"""Runs a command of `smcp-agent` (one request; `watch` and `mcp` keep running), explains its errors and exits."""

import asyncio
import concurrent.futures
import getpass
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final, NamedTuple, TypeVar

import typer
from rich.progress import Progress

from smcp_agent.cli.output import print_error, print_event, print_hint, print_json
from smcp_agent.client import SmcpAgent
from smcp_agent.connecting.options import MAX_MESSAGE, MAX_PAYLOAD, Token
from smcp_agent.errors import (
    CannotConnect,
    JoinRefused,
    Malformed,
    McpError,
    NotAuthenticated,
    RateLimited,
    SmcpError,
    TimedOut,
    TooLarge,
    Unavailable,
    may_have_run,
)

Result = TypeVar("Result")

FAILED: Final = 1
WRONG_USAGE: Final = 2
STOPPED: Final = 128
"""A signal ended the command: the signal's number is added, as shells do."""
FIRST_TOOLS_S: Final = 5.0
"""How long `watch` waits for the tools that there are already, so that it does not report them as changes."""
COMPLETE_S: Final = 2.0
"""How long somebody who pressed the tab key waits."""
WHY_S: Final = 5.0
"""How long an explanation may hold up an answer that is there."""


@dataclass(frozen=True, slots=True)
class Options:
    """The global options."""

    urls: Sequence[str]
    office: str
    name: str
    json: bool
    max_payload: int
    """Bytes of the largest result."""
    token: Token | None = field(default=None, repr=False)

    @classmethod
    def chosen(
        cls, url: str, office: str, name: str | None, token: str, max_payload: int, *, as_json: bool
    ) -> "Options":
        urls = [each.strip() for each in url.split(",")]
        return cls(urls, office, default_name() if name is None else name, as_json, max_payload, token or None)

    def agent(self) -> SmcpAgent:
        max_message = self.max_payload + MAX_MESSAGE - MAX_PAYLOAD
        return SmcpAgent(self.urls, office=self.office, name=self.name, token=self.token, max_message=max_message)


def default_name() -> str:
    """A name that no other run has at the same time: user@host-pid."""
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
    chosen = Options.chosen(*(given[each] for each in ("url", "office", "name", "token", "max_payload")), as_json=False)

    async def names() -> list[str]:
        async with asyncio.timeout(COMPLETE_S), chosen.agent() as agent:
            return [each for each in await ask_names(agent) if each.startswith(beginning)]

    try:
        return asyncio.run(_detached(names()))
    except (SmcpError, TimeoutError):
        return []


async def no_tools(agent: SmcpAgent, computer: str) -> str:
    """Why a Computer lists no tools; empty where it lists some, or does not say soon: not all know the query."""
    with suppress(SmcpError, TimeoutError):
        async with asyncio.timeout(WHY_S):
            return "" if await agent.tools(computer) else await agent.why_no_tools(computer)
    return ""


class Answer(NamedTuple):
    """The output of a command."""

    json: Mapping[str, Any]
    show: Callable[[], None]
    """Prints it for people."""
    failed: bool = False


def ask(
    chosen: Options,
    shown: Progress,
    query: Callable[[SmcpAgent], Awaitable[Answer]],
    *,
    ids: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> None:
    """Run a command that makes one query within `timeout` seconds, and print the answer; `shown` is shown meanwhile.

    `ids` are those of a call, for its error: none where nothing was sent.
    """
    sent: dict[str, str] = {}

    async def work() -> bool:
        try:
            async with asyncio.timeout(timeout):
                with shown:
                    async with chosen.agent() as agent:
                        sent.update(ids or {})
                        answer = await query(agent)
        except TimeoutError:
            raise TimedOut(f"there was no answer within {timeout:g} s") from None
        if chosen.json:
            print_json(answer.json)
        else:
            answer.show()
        return not answer.failed

    run(chosen, work(), ids=sent)


async def follow(
    options: Options, computer: str | None, uris: Sequence[str], count: int | None, seconds: float | None
) -> bool:
    """Print changes until there were `count` or the time is up; False where the time was up before.

    Only changes of `computer` are shown, if it is named; its `uris` are subscribed to. A line on standard error says
    when the watch has begun.
    """
    async with options.agent() as agent:
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_TOOLS_S):
                await asyncio.gather(*map(agent.tools, agent.computers()), return_exceptions=True)
        stream = agent.events()
        if computer is not None:
            for uri in uris:
                await agent.subscribe_resource(computer, uri)
        there = ", ".join(agent.computers()) or "no Computer"
        print_hint(f"Watching the office {options.office!r} ({there}); ctrl-C ends it.")
        if computer is not None and computer not in agent.computers():
            print_hint(f"There is no Computer {computer!r} in the office yet: its changes are shown when it joins.")
        shown = 0
        try:
            async with asyncio.timeout(seconds):
                async for event in stream:
                    if computer is not None and getattr(event, "computer", computer) != computer:
                        continue
                    print_event(event, as_object=options.json)
                    shown += 1
                    if shown == count:
                        break
        except TimeoutError:
            return count is None
    return True


def run(
    chosen: Options, work: Coroutine[Any, Any, bool], *, ids: Mapping[str, str] | None = None, endless: bool = False
) -> None:
    """Run a command to its exit code; SDK errors are printed in one line.

    ctrl-C and SIGTERM cancel it: a call is cancelled, and the office left. For an `endless` command that is no failure.
    """
    signals = [signal.SIGINT]

    def terminate(number: int, frame: FrameType | None) -> None:
        signals.append(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)  # which asyncio turns into a cancellation

    before = [
        (signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler)),  # a shell's `&` has it ignored
        (signal.SIGTERM, signal.signal(signal.SIGTERM, terminate)),
    ]
    try:
        done = asyncio.run(_detached(work))
    except SmcpError as error:
        print_error(error, as_json=chosen.json, hint=_hint(error, chosen), ids=ids)
        raise typer.Exit(WRONG_USAGE if isinstance(error, Malformed) else FAILED) from error
    except KeyboardInterrupt as error:
        if endless:
            raise typer.Exit from error
        typer.echo("cancelled", err=True)
        raise typer.Exit(STOPPED + signals[-1]) from error
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    if not done:
        raise typer.Exit(FAILED)


class _DaemonThreads(concurrent.futures.ThreadPoolExecutor):
    """Runs each function in a thread that the end of the process does not wait for: a lookup may take minutes."""

    def submit(self, work: Callable[..., Result], /, *args: Any, **options: Any) -> concurrent.futures.Future[Result]:
        done: concurrent.futures.Future[Result] = concurrent.futures.Future()
        done.set_running_or_notify_cancel()

        def run() -> None:
            try:
                done.set_result(work(*args, **options))
            except Exception as error:  # noqa: BLE001 -- raised where it is awaited
                done.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return done


async def _detached(work: Coroutine[Any, Any, Result]) -> Result:
    asyncio.get_running_loop().set_default_executor(_DaemonThreads())
    return await work


def _hint(error: SmcpError, chosen: Options) -> str:
    match error:
        case JoinRefused(details={"field": _}):
            return (
                "A token says for which offices, roles and names it is: choose with --office (SMCP_OFFICE) and --name "
                "(SMCP_AGENT_NAME), or ask for another token."
            )
        case JoinRefused():
            return (
                f"There is one Agent per office. If another one is in {chosen.office!r}, end it or choose another "
                "office with --office (SMCP_OFFICE). smcp-mcp leaves it SMCP_MCP_IDLE_S (300 s) after the last request "
                "of an MCP client; `smcp up --no-mcp` starts without it."
            )
        case NotAuthenticated():
            return (
                "SMCP_TOKEN (--token) says who you are: a key of `smcp keys add`, or a JWT. If `smcp up` runs on "
                "this machine, use the URL that it printed; its key is then found without SMCP_TOKEN."
            )
        case McpError() if error.message.startswith("the MCP server ") and error.message.endswith(" failed"):
            return "What it said is in the log of the Computer."
        case RateLimited(details={"retry_after_s": int() | float() as wait}):
            return f"Try again in {wait:g} s."
        case CannotConnect():
            return "Is a gateway running there? `smcp up` starts one; --url (SMCP_URL) says where it listens."
        case TooLarge(details={"size": int(size), "limit": int(limit)}):
            what = "request" if "request" in error.message else "result"
            return (
                f"The {what} has {size} bytes; the limit is {limit}. SMCP_MAX_PAYLOAD, of the services and of this "
                "command, is the limit of a result, with its structured content. A tool call may have a quarter of "
                "it, and at least 1 MiB; other requests may have 64 KiB."
            )
        case Unavailable() if not may_have_run(error):
            return "This can pass: try again in a moment."
        case _:
            return ""
