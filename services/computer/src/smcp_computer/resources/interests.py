"""Who wants to know when a resource changes: one subscription at the MCP server, however many holders it has."""

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from smcp_computer.mcp.backoff import Backoff
from smcp_computer.mcp.errors import ServerError, ServerNotRunning, ServerTimedOut
from smcp_computer.mcp.events import ResourcesSubscribed, ServerEvent, ServerEvents, ServerGone, ServerReady
from smcp_computer.mcp.resources import SUBSCRIBE_S, Resources
from smcp_computer.mcp.supervisor import Supervisor
from smcp_computer.resources.causes import Causes

_log = logging.getLogger("smcp_computer.resources")

DESKTOP: Final = "desktop"
FINDER: Final = "finder"


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a server does not tell of a resource."""

    error: ServerError
    asked: float
    """When it was asked (loop time)."""


@dataclass
class _Interest:
    """In the resources of one server."""

    supervisor: Supervisor
    holders: dict[str, set[Hashable]] = field(default_factory=dict)
    """By URI."""
    new: set[tuple[str, Hashable]] = field(default_factory=set)
    """URIs and holders who wait for the answer to their `hold`: what they have not read yet they do not miss."""
    waiting: Counter[tuple[str, Hashable]] = field(default_factory=Counter)
    """How many calls of `hold` wait, by URI and holder: one that is given up must not end what another asks for."""
    life: Resources | None = None
    """The connection at which the following is so."""
    subscribed: set[str] = field(default_factory=set)
    failed: dict[str, _Failure] = field(default_factory=dict)
    """Not asked for again by itself in this life; but what timed out is."""
    dirty: asyncio.Event = field(default_factory=asyncio.Event)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Interests:
    """Restored when a server was started again. Each subscription that was made is an event. `run` must be running."""

    def __init__(self, supervisors: Mapping[str, Supervisor], events: ServerEvents) -> None:
        self._interests = {name: _Interest(supervisor) for name, supervisor in supervisors.items()}
        self._causes = Causes(_log)
        self._events = events
        events.listen(self._on_event)

    def holders(self, server: str, uri: str) -> frozenset[Hashable]:
        interest = self._interests.get(server)
        return frozenset(interest.holders.get(uri, ())) if interest is not None else frozenset()

    def subscribed(self, server: str) -> frozenset[str]:
        """What the server, in its present life, has agreed to tell of."""
        interest = self._interests[server]
        return frozenset(interest.subscribed) if interest.life is interest.supervisor.resources else frozenset()

    async def hold(self, holder: Hashable, server: str, uri: str) -> None:
        """Have the server tell of a resource for `holder`, until `release`; also in its later lives.

        Raises:
            ServerError: it does not; nothing is held then.
        """
        interest = self._interests.get(server)
        if interest is None or interest.supervisor.resources is None:
            raise ServerNotRunning(server, "is not ready, or has no resources")
        came, key = asyncio.get_running_loop().time(), (uri, holder)
        if holder not in interest.holders.setdefault(uri, set()):
            interest.holders[uri].add(holder)
            interest.new.add(key)
        interest.waiting[key] += 1
        try:
            await self._settle(interest, anew=(uri, came))
        finally:
            interest.waiting[key] -= 1
            is_held, is_last = uri in interest.subscribed, not interest.waiting[key]
            failed = interest.failed.get(uri)
            if is_last:
                del interest.waiting[key]
            if is_held or is_last:
                interest.new.discard(key)
            if is_last and not is_held:
                self._let_go(interest, holder, uri)
            if not is_held and failed is None:
                interest.dirty.set()  # given up before the server answered: whoever else holds it still waits
        if not is_held:
            raise failed.error if failed is not None else ServerNotRunning(server, "went away before it answered")

    async def release(self, holder: Hashable, server: str, uri: str) -> None:
        """End what `hold` began; the server is told where nobody else holds it. Does nothing where it is not held."""
        interest = self._interests.get(server)
        if interest is not None and holder in interest.holders.get(uri, ()):
            self._let_go(interest, holder, uri)

    def drop(self, holder: Hashable) -> None:
        """End all that `holder` holds, in the background."""
        for interest in self._interests.values():
            for uri in [uri for uri, holders in interest.holders.items() if holder in holders]:
                self._let_go(interest, holder, uri)

    def want(self, holder: Hashable, server: str, uris: Collection[str]) -> None:
        """Hold exactly these of the server, in the background; what the server refuses is a warning."""
        interest = self._interests[server]
        wanted = set(uris)
        for uri in [uri for uri, holders in interest.holders.items() if holder in holders and uri not in wanted]:
            self._let_go(interest, holder, uri)
        for uri in wanted:
            interest.holders.setdefault(uri, set()).add(holder)
        interest.dirty.set()

    async def run(self) -> None:
        """Keep the servers told, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for name, interest in self._interests.items():
                tasks.create_task(self._keep(interest), name=f"interests:{name}")

    async def _keep(self, interest: _Interest) -> None:
        backoff = Backoff(first_s=1.0, longest_s=60.0)
        while True:
            late = [uri for uri, failure in interest.failed.items() if isinstance(failure.error, ServerTimedOut)]
            if not late:
                backoff.reset()
            try:
                async with asyncio.timeout(backoff.next() if late else None):
                    await interest.dirty.wait()
            except TimeoutError:
                for uri in late:
                    interest.failed.pop(uri, None)
            interest.dirty.clear()
            await self._settle(interest)

    async def _settle(self, interest: _Interest, *, anew: tuple[str, float] | None = None) -> None:
        """Subscribe to what is held and unsubscribe from what is not.

        Args:
            anew: a URI that is asked for again where the server refused it before; and since when that is wanted (loop
                time): who came before the server was asked shares the answer.
        """
        loop = asyncio.get_running_loop()
        async with interest.turn:
            resources = interest.supervisor.resources
            if resources is not interest.life:
                interest.life = resources
                interest.subscribed.clear()
                interest.failed.clear()
            if resources is None:
                return
            if anew is not None and (earlier := interest.failed.get(anew[0])) is not None and earlier.asked < anew[1]:
                del interest.failed[anew[0]]
            idle = interest.subscribed - interest.holders.keys()
            interest.subscribed -= idle
            await resources.unsubscribe(*sorted(idle))
            missing = [uri for uri in interest.holders if uri not in interest.subscribed | interest.failed.keys()]
            asked = loop.time()
            failed = await resources.subscribe_all(missing, timeout=SUBSCRIBE_S)
            if interest.supervisor.resources is not resources:
                return
            made = [uri for uri in missing if uri not in failed]
            interest.subscribed.update(made)
            interest.failed.update({uri: _Failure(error, asked) for uri, error in failed.items()})
            self._tell(resources.server, interest, made)
        for error in failed.values():
            self._causes.warn(resources.server, f"does not tell of changes of a resource: it {error.what}")

    def _tell(self, server: str, interest: _Interest, made: Iterable[str]) -> None:
        before = {
            uri: frozenset(holder for holder in interest.holders.get(uri, ()) if (uri, holder) not in interest.new)
            for uri in made
        }
        if before:
            self._events.tell(ResourcesSubscribed(server, before))

    def _let_go(self, interest: _Interest, holder: Hashable, uri: str) -> None:
        holders = interest.holders.get(uri, set())
        holders.discard(holder)
        if not holders:
            interest.holders.pop(uri, None)
            interest.failed.pop(uri, None)
            interest.dirty.set()

    def _on_event(self, event: ServerEvent) -> None:
        interest = self._interests.get(event.server)
        if interest is not None and isinstance(event, ServerReady | ServerGone):
            interest.dirty.set()
            if isinstance(event, ServerReady):
                self._causes.forget(event.server)
