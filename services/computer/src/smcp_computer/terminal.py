"""The controlling terminal of this process, where its user answers questions.

It is `/dev/tty`, which is there also where standard error goes to a file or a pipe. Questions come one at a time:
whoever asks holds `Terminal.turn`. Cancelling withdraws one. While one is open, log lines appear above it.

SIGHUP says that the terminal was closed, which ends the process. From elsewhere it has the configuration read again.
"""

import asyncio
import errno
import os
import select
import signal
import sys
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Final, TypeVar

from smcp_proto.printable import printable
from smcp_service.logging import rewritten_logs

DEVICE: Final = "/dev/tty"
POLL_S: Final = 0.1
"""How often an open question looks for its answer: nothing reports that a job came to the foreground, and kqueue cannot
wait for `/dev/tty`."""
MAX_LINE: Final = 4096
"""Bytes of a line, as the kernel limits them."""
YES_OR_NO: Final[Mapping[str, bool]] = {"y": True, "yes": True, "n": False, "no": False, "": False}
_ERASE_LINE: Final = "\r\x1b[2K"

T = TypeVar("T")


class TerminalGone(Exception):
    """The terminal was closed, and nobody can be asked any more."""


@contextmanager
def open_terminal() -> Iterator["Terminal | None"]:
    """The controlling terminal. None: there is none, or this process was started in its background."""
    try:
        descriptor = os.open(DEVICE, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # a job that goes to the background may ask on, and is not stopped
    try:
        terminal = Terminal(descriptor)
        yield terminal if terminal.in_foreground() else None
    finally:
        os.close(descriptor)


class Terminal:
    """Asks and reads at the descriptor of a terminal in its usual, line-wise mode. All methods raise TerminalGone."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._closed = False
        self.turn = asyncio.Lock()
        """To be held while asking: questions that belong together come in one turn."""

    def close(self) -> None:
        """Withdraw an open question, and ask no more: the process ends."""
        self._closed = True

    def in_foreground(self) -> bool:
        """Whether the user's lines go to this process. A job in the background that reads is stopped by the kernel."""
        try:
            return os.tcgetpgrp(self._descriptor) == os.getpgrp()
        except OSError as error:
            if error.errno == errno.ENOTTY:  # no controlling terminal: no jobs
                return True
            raise TerminalGone from error

    async def ask(self, text: str, prompt: str, answers: Mapping[str, T]) -> T:
        """Show `text`, and return what the user's word stands for; another word asks again. The words are in lower
        case; the empty one is for the Enter key."""
        words = ", ".join(word for word in answers if word)
        return await self._answer(text, prompt, lambda line: answers[line.strip().casefold()], f"Please say: {words}")

    async def line(self, text: str, prompt: str, *, hidden: bool = False) -> str:
        """`hidden`: it is not shown while it is typed."""
        return await self._answer(text, prompt, str, "", hidden=hidden)

    async def choose(self, text: str, prompt: str, options: Sequence[str], default: str | None = None) -> str:
        """One of the options, chosen by its number or as it is; by the Enter key `default`, if there is one."""
        numbered = {str(number): option for number, option in enumerate(options, 1)}
        listed = "".join(f"\n  {number}) {printable(option)}" for number, option in numbered.items())
        answers = {option.casefold(): option for option in options} | numbered
        return await self.ask(f"{text}{listed}", prompt, answers | ({} if default is None else {"": default}))

    async def _answer(
        self, text: str, prompt: str, meaning: Callable[[str], T], wrong: str, *, hidden: bool = False
    ) -> T:
        """Ask until `meaning` raises no LookupError."""
        assert self.turn.locked()
        try:
            same = sys.stderr.isatty()
            above = rewritten_logs(lambda lines: f"{_ERASE_LINE}{lines}{prompt}") if same else nullcontext()
            with self._reading(hidden=hidden), above:
                self._write(f"\n{text}\n{prompt}")
                try:
                    while True:
                        line = await self._line()
                        if hidden:
                            self._write("\n")
                        try:
                            return meaning(line)
                        except LookupError:
                            self._write(f"{wrong}\n{prompt}")
                except asyncio.CancelledError:
                    self._write("(withdrawn)\n")
                    raise
        except (OSError, termios.error) as error:
            raise TerminalGone from error

    @contextmanager
    def _reading(self, *, hidden: bool) -> Iterator[None]:
        """What was typed before is not an answer to this question."""
        termios.tcflush(self._descriptor, termios.TCIFLUSH)
        before = termios.tcgetattr(self._descriptor)
        if hidden:
            silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, silent)
        try:
            yield
        finally:
            if hidden:
                termios.tcsetattr(self._descriptor, termios.TCSADRAIN, before)

    async def _line(self) -> str:
        while not (self.in_foreground() and select.select([self._descriptor], [], [], 0)[0]):
            await asyncio.sleep(POLL_S)
            if self._closed:
                raise TerminalGone
        return os.read(self._descriptor, MAX_LINE).decode(errors="replace").rstrip("\r\n")

    def _write(self, text: str) -> None:
        os.write(self._descriptor, text.encode(errors="replace"))


@contextmanager
def hangups(reload: Callable[[], object]) -> Iterator[None]:
    """SIGHUP calls `reload` while the body runs, and does nothing after it: the process is ending then.

    SIGHUP that says that the terminal was closed stops the process, as it would without this. One that is ignored
    (nohup) stays ignored.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        yield
        return
    loop, had_terminal = asyncio.get_running_loop(), _has_terminal()

    def on_hangup() -> None:
        if had_terminal and not _has_terminal():
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            reload()

    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    try:
        yield
    finally:
        loop.add_signal_handler(signal.SIGHUP, lambda: None)


def _has_terminal() -> bool:
    try:
        os.close(os.open(DEVICE, os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
