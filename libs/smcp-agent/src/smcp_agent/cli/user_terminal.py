"""Asks the user of `smcp-agent call` what a tool or its Computer elicits: on standard error and standard input."""

import asyncio
import os
import select
import sys
from collections.abc import Mapping
from typing import Final, TypeVar

import typer
from rich.progress import Progress

from smcp_agent.cli.output import plain
from smcp_agent.results import InputAnswer, InputRequest
from smcp_proto.elicitation_dialogue import ACTIONS, ask_user

POLL_S: Final = 0.1
"""How often an open question looks for its answer: a thread that reads could not be cancelled."""
MAX_LINE: Final = 4096
"""Bytes of a line, as the kernel limits them."""

T = TypeVar("T")


def is_there() -> bool:
    """Whether somebody can be asked. On Windows nobody is: there, a line cannot be waited for without a thread."""
    return sys.platform != "win32" and sys.stdin.isatty() and sys.stderr.isatty()


class UserTerminal:
    """Answers elicitations (`on_input`); `shown` is hidden meanwhile. Ctrl-D dismisses an elicitation."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown

    async def answer(self, request: InputRequest) -> InputAnswer:
        self._shown.stop()
        try:
            if request.problem is not None:
                typer.echo(plain(f"The last answer was refused: {request.problem}"), err=True)
            if request.is_approval:
                action = await self.ask(plain(request.message), "[y/N] ", {**ACTIONS, "": "decline"})
                return request.accept() if action == "accept" else request.decline()
            said = await ask_user(self, plain(f"The tool {request.tool!r} of {request.computer!r} asks: "), request.raw)
            return InputAnswer(said["action"], said.get("content"))
        except EOFError:
            return request.cancel()
        finally:
            self._shown.start()

    async def ask(self, text: str, prompt: str, answers: Mapping[str, T]) -> T:
        """What the typed word stands for."""
        line = await self.line(text, prompt)
        while (word := line.strip().casefold()) not in answers:
            line = await self.line(f"Please say: {', '.join(filter(None, answers))}", prompt)
        return answers[word]

    async def line(self, text: str, prompt: str) -> str:
        """The next line. Raises EOFError."""
        typer.echo(f"{text}\n{prompt}", nl=False, err=True)
        while not select.select([sys.stdin], [], [], 0)[0]:  # noqa: ASYNC110 -- see POLL_S
            await asyncio.sleep(POLL_S)
        read = os.read(sys.stdin.fileno(), MAX_LINE)
        if not read:
            raise EOFError
        return read.decode(errors="replace").rstrip("\r\n")
