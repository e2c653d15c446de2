"""Somebody at a pseudo-terminal: sees what is shown there, and types."""

import asyncio
import os
import pty
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

PATIENCE_S: Final = 30.0


class TerminalUser:
    """`device` is the descriptor of the terminal's other end, for who asks."""

    def __init__(self, ours: int, device: int) -> None:
        self._ours = ours
        self.device = device
        self.shown = ""
        """All of it, since the beginning."""
        self._looked_at = 0
        self._more = asyncio.Event()

    async def sees(self, text: str) -> None:
        """Return when `text` is shown, after what was waited for before."""
        async with asyncio.timeout(PATIENCE_S):
            while (at := self.shown.find(text, self._looked_at)) < 0:
                self._more.clear()
                await self._more.wait()
        self._looked_at = at + len(text)

    def types(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def look(self) -> None:
        """Read what is there."""
        try:
            self.shown += os.read(self._ours, 65536).decode(errors="replace").replace("\r\n", "\n")
        except OSError:  # nobody has the other end open any more
            asyncio.get_running_loop().remove_reader(self._ours)
        self._more.set()


@asynccontextmanager
async def terminal_user() -> AsyncIterator[TerminalUser]:
    ours, device = pty.openpty()
    user = TerminalUser(ours, device)
    loop = asyncio.get_running_loop()
    loop.add_reader(ours, user.look)
    try:
        yield user
    finally:
        loop.remove_reader(ours)
        os.close(ours)
        os.close(device)
