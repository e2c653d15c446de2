"""Asks the user at the terminal that the Computer runs in."""

import asyncio
import json
import os
import sys
import termios
import unicodedata
from collections.abc import Mapping
from typing import Any, Final, TextIO

from smcp_computer.tools.naming import ToolRef

LONGEST: Final = 600
"""Characters of the parameters that are shown."""
_YES: Final = frozenset({"y", "yes"})


def terminal() -> "Terminal | None":
    """The terminal of this process, if it has one to read from and to write to."""
    if sys.stdin.isatty() and sys.stderr.isatty():
        return Terminal(sys.stdin.fileno(), sys.stderr)
    return None


class Terminal:
    """Args:
    source: the descriptor that is read; a terminal in its usual, line-wise mode.
    out: where questions are written.
    """

    def __init__(self, source: int, out: TextIO) -> None:
        self._source = source
        self._out = out

    async def ask(self, ref: ToolRef, agent: str, params: Mapping[str, Any]) -> bool:
        """Anything but `y` or `yes` is a no. Cancelling withdraws the question."""
        termios.tcflush(self._source, termios.TCIFLUSH)  # what was typed before is no answer to this
        self._write(f"\n{question(ref, agent, params)}\nRun it? [y/N] ")
        try:
            answer = await self._line()
        except asyncio.CancelledError:
            self._write("(withdrawn)\n")
            raise
        return answer.strip().casefold() in _YES

    async def _line(self) -> str:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._source, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._source)
        return os.read(self._source, 4096).decode(errors="replace")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def question(ref: ToolRef, agent: str, params: Mapping[str, Any]) -> str:
    """What is shown. The Agent's text cannot move the cursor or colour anything."""
    shown = printable(json.dumps(params, ensure_ascii=False))
    if len(shown) > LONGEST:
        shown = f"{shown[:LONGEST]}… ({len(shown)} characters)"
    return (
        f"The Agent {printable(agent)!r} wants to run {printable(ref.tool)!r} of {printable(ref.server)!r} with {shown}"
    )


def printable(text: str) -> str:
    """`text` with everything that is not simply a character on the line replaced."""
    return "".join("�" if unicodedata.category(character).startswith("C") else character for character in text)
