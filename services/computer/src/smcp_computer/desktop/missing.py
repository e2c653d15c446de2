"""Windows that desktops lacked, since their MCP server was slow or failed: tried again, and told once one is there.

Who has read a desktop keeps it until it is told that it changed (desktop.txt, 更新机制), and no MCP server says that it
answers again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from smcp_bus.backoff import Backoff
from smcp_computer.desktop.reading import AT_ONCE
from smcp_computer.mcp.errors import ServerDied, ServerError, ServerNotRunning

FIRST_S: Final = 1.0
"""The first pause before a server is tried again; they double up to `LONGEST_S` (seconds)."""
LONGEST_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of a try, by URI."""

    there: frozenset[str]
    """A desktop would show them now."""
    missing: frozenset[str]


TryAgain = Callable[[str, Collection[str] | None], Awaitable[Tried]]
"""Reads windows of a server as a desktop would: its name, and their URIs; None: all that it lists. Raises ServerError
where it does not list."""


@dataclass
class _Lacking:
    """Of one server. `backoff` goes on where the office was told in vain, so that telling it is no loop."""

    backoff: Backoff
    uris: dict[str, None] = field(default_factory=dict)
    """In the order in which they are tried."""
    whole: bool = False
    """It did not list."""
    pause: float = 0.0
    tried_at: float = float("-inf")
    """Loop time (seconds)."""
    due: float = 0.0
    """When the next try is (loop time)."""
    trying: bool = False

    def __bool__(self) -> bool:
        return self.whole or bool(self.uris)

    def forget(self) -> None:
        self.uris.clear()
        self.whole = False


class MissingWindows:
    """`run` must be running.

    Args:
        tell: has the office told that the desktop changed; `told` is called by whoever does so.
        first_s, longest_s: see `FIRST_S`.
    """

    def __init__(
        self,
        try_again: TryAgain,
        tell: Callable[[], None],
        *,
        first_s: float = FIRST_S,
        longest_s: float = LONGEST_S,
    ) -> None:
        self._try_again = try_again
        self._tell = tell
        self._first_s = first_s
        self._longest_s = longest_s
        self._lacking: dict[str, _Lacking] = {}
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def lacked(self, server: str, uris: Collection[str] | None) -> None:
        """A desktop was shown without these windows of a server; None: without any of its windows."""
        if uris is not None and not uris:
            return
        if (lacking := self._lacking.get(server)) is None:
            lacking = self._lacking[server] = _Lacking(Backoff(first_s=self._first_s, longest_s=self._longest_s))
        if not lacking:
            now = self._loop.time()
            if now - lacking.tried_at > 2 * lacking.pause:
                lacking.backoff.reset()
                lacking.pause = lacking.backoff.next()
            lacking.due = max(lacking.tried_at + lacking.pause, now + self._first_s / 2)
        if uris is None:
            lacking.whole = True
        else:
            lacking.uris.update(dict.fromkeys(uris))
        self._wake.set()

    def shown(self, server: str, uris: Collection[str]) -> None:
        """A desktop was shown with these: who was shown one without them is to be told soon."""
        lacking = self._lacking.get(server)
        if lacking and (lacking.whole or not lacking.uris.keys().isdisjoint(uris)):
            lacking.due = min(lacking.due, max(self._loop.time(), lacking.tried_at + self._first_s))
            self._wake.set()

    def relisted(self, server: str) -> None:
        """A server listed its resources anew, or came or went."""
        if (lacking := self._lacking.get(server)) is not None and lacking.whole:
            self.shown(server, ())

    def gone(self, server: str) -> None:
        """A server ended: that it comes back is told anyway."""
        if (lacking := self._lacking.get(server)) is not None:
            lacking.forget()

    def told(self) -> None:
        """The office is told that the desktop changed: what desktops lacked until now counts no more."""
        for lacking in self._lacking.values():
            lacking.forget()

    async def run(self) -> None:
        """Try again what is missing, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._wake.clear()
                waiting = {name: each for name, each in self._lacking.items() if each and not each.trying}
                for server, lacking in waiting.items():
                    if lacking.due <= self._loop.time():
                        lacking.trying = True
                        tasks.create_task(self._try(server, lacking), name=f"windows:{server}")
                due = min((each.due for each in waiting.values() if not each.trying), default=None)
                try:
                    async with asyncio.timeout_at(due):
                        await self._wake.wait()
                except TimeoutError:
                    pass

    async def _try(self, server: str, lacking: _Lacking) -> None:
        wanted = None if lacking.whole else [*lacking.uris][:AT_ONCE]
        try:
            tried = await self._try_again(server, wanted)
        except (ServerNotRunning, ServerDied):
            lacking.forget()
        except ServerError:
            pass  # the desktop that lacked it has warned of it
        else:
            self._tried(lacking, wanted, tried)
        lacking.trying, lacking.tried_at = False, self._loop.time()
        lacking.pause = lacking.backoff.next()
        lacking.due = lacking.tried_at + lacking.pause
        self._wake.set()

    def _tried(self, lacking: _Lacking, wanted: Collection[str] | None, tried: Tried) -> None:
        # the office may have been told, or the server have ended, meanwhile
        if wanted is None:
            is_there = lacking.whole and bool(tried.there)
            still = tried.missing if lacking.whole else frozenset()
            lacking.whole = False
        else:
            is_there = not lacking.uris.keys().isdisjoint(tried.there)
            still = tried.missing & lacking.uris.keys()
            for uri in wanted:  # what is not listed any more goes, too
                lacking.uris.pop(uri, None)
        lacking.uris.update(dict.fromkeys(still))
        if is_there:
            self._tell()
            self.told()
