"""Questions at a terminal."""

import asyncio
import logging
import os
import sys
import termios
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from smcp_computer.terminal import Terminal, TerminalGone
from smcp_service.logging import configure_logging
from smcp_testing.terminal_user import TerminalUser, terminal_user

ANSWERS = {"y": 1, "n": 2, "": 2}
T = TypeVar("T")


async def asked(terminal: Terminal, question: Coroutine[Any, Any, T]) -> T:
    async with terminal.turn:
        return await question


async def test_another_word_asks_again() -> None:
    async with terminal_user() as user:
        terminal = Terminal(user.device)
        asking = asyncio.create_task(asked(terminal, terminal.ask("Run?", "[y/N] ", ANSWERS)))
        await user.sees("[y/N] ")
        user.types("maybe\n")
        await user.sees("Please say: y, n\n[y/N] ")
        user.types("Y\n")
        assert await asyncio.wait_for(asking, 30) == 1


async def test_a_secret_is_not_shown_while_it_is_typed_and_what_follows_is() -> None:
    async with terminal_user() as user:
        terminal = Terminal(user.device)
        asking = asyncio.create_task(asked(terminal, terminal.line("The token", "token: ", hidden=True)))
        await user.sees("token: ")
        user.types("s3cret\n")
        assert await asyncio.wait_for(asking, 30) == "s3cret"
        assert termios.tcgetattr(user.device)[3] & termios.ECHO
        asking = asyncio.create_task(asked(terminal, terminal.line("Your region", "region: ")))
        await user.sees("region: ")
        user.types("eu\n")
        assert await asyncio.wait_for(asking, 30) == "eu"
        await user.sees("eu")
        assert "s3cret" not in user.shown


@pytest.mark.parametrize("typed", ["2", "US", "us"])
async def test_an_option_is_chosen_by_its_number_or_as_it_is(typed: str) -> None:
    async with terminal_user() as user:
        terminal = Terminal(user.device)
        asking = asyncio.create_task(asked(terminal, terminal.choose("Region", "> ", ["eu", "US"])))
        await user.sees("1) eu\n  2) US\n> ")
        user.types("3\n")
        await user.sees("Please say: eu, us, 1, 2\n> ")
        user.types(f"{typed}\n")
        assert await asyncio.wait_for(asking, 30) == "US"


async def test_the_enter_key_chooses_the_default() -> None:
    async with terminal_user() as user:
        terminal = Terminal(user.device)
        asking = asyncio.create_task(asked(terminal, terminal.choose("Region", "> ", ["eu", "us"], "eu")))
        await user.sees("2) us\n> ")
        user.types("\n")
        assert await asyncio.wait_for(asking, 30) == "eu"


async def test_questions_come_one_at_a_time_and_a_cancelled_one_is_withdrawn() -> None:
    async with terminal_user() as user:
        terminal = Terminal(user.device)
        first = asyncio.create_task(asked(terminal, terminal.line("First", "1> ")))
        await user.sees("1> ")
        second = asyncio.create_task(asked(terminal, terminal.line("Second", "2> ", hidden=True)))
        user.types("typed for the first")
        await user.sees("typed for the first")
        first.cancel()
        await user.sees("(withdrawn)\n")
        await user.sees("2> ")
        user.types("right\n")
        assert await asyncio.wait_for(second, 30) == "right"


@pytest.fixture
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers, root.level = handlers, level
    logging.captureWarnings(capture=False)


@pytest.mark.usefixtures("_logging_as_before")
async def test_log_lines_appear_above_an_open_question(monkeypatch: pytest.MonkeyPatch) -> None:
    async with terminal_user() as user:
        with open(os.dup(user.device), "w", buffering=1) as stderr:  # noqa: PTH123 -- a descriptor
            monkeypatch.setattr(sys, "stderr", stderr)
            configure_logging("test", stream=stderr, log_format="json")
            terminal = Terminal(user.device)
            asking = asyncio.create_task(asked(terminal, terminal.line("Your name", "name: ")))
            await user.sees("name: ")
            logging.getLogger("test").warning("from logging")
            await user.sees("\r\x1b[2K{")
            await user.sees("from logging")
            await user.sees("}\nname: ")
            user.types("me\n")
            assert await asyncio.wait_for(asking, 30) == "me"
            logging.getLogger("test").warning("afterwards")
            await user.sees("me\n{")


async def test_a_terminal_that_was_closed_ends_the_question() -> None:
    ours, theirs = os.openpty()
    terminal = Terminal(theirs)
    asking = asyncio.create_task(asked(terminal, terminal.ask("Run?", "[y/N] ", {"y": 1})))
    await asyncio.to_thread(os.read, ours, 1)  # it is asked
    os.close(ours)
    with pytest.raises(TerminalGone):
        await asyncio.wait_for(asking, 30)
    os.close(theirs)


async def test_a_process_that_ends_withdraws_its_questions_and_asks_no_more() -> None:
    async with terminal_user() as user:
        terminal = Terminal(user.device)
        asking = asyncio.create_task(asked(terminal, terminal.line("First", "1> ")))
        await user.sees("1> ")
        terminal.close()
        with pytest.raises(TerminalGone):
            await asyncio.wait_for(asking, 30)
        with pytest.raises(TerminalGone):
            await asyncio.wait_for(asked(terminal, terminal.line("Second", "2> ")), 30)


PROGRAM = """
import asyncio, os, sys
device = os.open(sys.argv[1], os.O_RDWR)  # the first one that a new session opens is its controlling terminal
if sys.argv[2] == "background":
    if child := os.fork():
        sys.exit(os.waitpid(child, 0)[1])
    os.setpgid(0, 0)
from smcp_computer.terminal import open_terminal
async def asked(terminal):
    async with terminal.turn:
        return await terminal.line("Who?", "> ")
with open_terminal() as terminal:
    print(asyncio.run(asked(terminal)) if terminal else None)
"""


async def program(user: TerminalUser, place: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, os.ttyname(user.device), place,
        stdin=DEVNULL, stdout=PIPE, stderr=PIPE, start_new_session=True,
    )  # fmt: skip


async def test_the_controlling_terminal_is_found_where_all_standard_streams_are_something_else() -> None:
    async with terminal_user() as user:
        process = await program(user, "foreground")
        await user.sees("Who?\n> ")
        user.types("me\n")
        assert await asyncio.wait_for(process.communicate(), 60) == (b"me\n", b"")


async def test_a_job_that_is_started_in_the_background_asks_nobody() -> None:
    async with terminal_user() as user:
        process = await program(user, "background")
        assert await asyncio.wait_for(process.communicate(), 60) == (b"None\n", b"")
        assert user.shown == ""
