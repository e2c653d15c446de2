"""Who wants to know when a resource changes: one subscription at the MCP server, however many holders it has."""

import asyncio
import logging
from collections.abc import Collection, Hashable, Mapping
from typing import Final

from smcp_bus.backoff import Backoff
from smcp_computer.mcp.errors import NotTold, ServerError, ServerNotRunning
from smcp_computer.mcp.events import (
    ResourcesSubscribed,
    ResourcesUnsubscribed,
    ServerEvent,
    ServerEvents,
    ServerGone,
    ServerReady,
)
from smcp_computer.mcp.resources import SUBSCRIBE_S, Resources
from smcp_computer.mcp.supervisor import Supervisor
from smcp_computer.resources.causes import Causes
from smcp_computer.resources.interest import Failure, Interest

_log = logging.getLogger("smcp_computer.resources")

DESKTOP: Final = "desktop"
FINDER: Final = "finder"

RETRY_S: Final = 1.0
"""The first pause before a server is asked again for subscriptions that failed; it doubles up to `RETRY_LONGEST_S`."""
RETRY_LONGEST_S: Final = 60.0
GATHER_S: Final = 0.1
"""Subscriptions that are made within it are told as one."""


class Interests:
    """Restored when a server was started again, asked for again where it failed. Each subscription that was made is an
    event. `run` must be running.
    """

    def __init__(self, supervisors: Mapping[str, Supervisor], events: ServerEvents) -> None:
        self._interests = {name: Interest(supervisor) for name, supervisor in supervisors.items()}
        self._causes = Causes(_log)
        self._events = events
        events.listen(self._on_event)

    def holders(self, server: str, uri: str) -> frozenset[Hashable]:
        """Who wants to know of that resource of that MCP server."""
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
        life = interest.supervisor.resources if interest is not None else None
        if interest is None or life is None:
            raise ServerNotRunning(server, "is not ready, or has no resources")
        came, key = asyncio.get_running_loop().time(), (uri, holder)
        if holder not in interest.holders.setdefault(uri, set()):
            interest.holders[uri].add(holder)
            interest.new.add(key)
        interest.waiting[key] += 1
        try:
            await self._answer(interest, life, uri, came)
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
        held = {uri for uri, holders in interest.holders.items() if holder in holders}
        for uri in held - wanted:
            self._let_go(interest, holder, uri)
        for uri in wanted:
            interest.holders.setdefault(uri, set()).add(holder)
        interest.dirty.set()

    async def run(self) -> None:
        """Keep the servers told, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for name, interest in self._interests.items():
                tasks.create_task(self._keep(interest), name=f"interests:{name}")

    async def _keep(self, interest: Interest) -> None:
        backoff = Backoff(first_s=RETRY_S, longest_s=RETRY_LONGEST_S)
        loop = asyncio.get_running_loop()
        due: float | None = None
        async with asyncio.TaskGroup() as tasks:
            interest.tasks = tasks
            try:
                while True:
                    if interest.failed:
                        due = loop.time() + backoff.next() if due is None else due
                    elif not interest.asking:
                        backoff.reset()
                        due = None
                    try:
                        async with asyncio.timeout_at(due):
                            await interest.dirty.wait()
                    except TimeoutError:
                        pass
                    interest.dirty.clear()
                    if due is not None and due <= loop.time():
                        due = None
                        interest.failed.clear()
                    self._begin(interest)
            finally:
                interest.tasks = None
                interest.settled(tuple(interest.answers))
                if interest.telling is not None:
                    interest.telling.cancel()

    async def _answer(self, interest: Interest, life: Resources, uri: str, came: float) -> None:
        """Wait until the server has answered for a URI that is held, or is gone.

        Args:
            came: since when that is wanted (loop time). Who came before the server was asked shares the answer; it is
                asked again where it refused before.
        """
        while interest.tasks is not None and interest.supervisor.resources is life:
            if (earlier := interest.failed.get(uri)) is not None and earlier.asked < came:
                del interest.failed[uri]
            self._begin(interest)
            if uri not in interest.asking and uri not in interest.ending:
                return
            await interest.answers.setdefault(uri, asyncio.Event()).wait()

    def _begin(self, interest: Interest) -> None:
        """Have the server asked for what is held, and told of what is not; in the background."""
        resources = interest.connection()
        if resources is None or interest.tasks is None:
            return
        if idle := interest.subscribed - interest.holders.keys():
            interest.subscribed -= idle
            interest.ending |= idle
            interest.tasks.create_task(self._end(interest, resources, idle))
        if missing := interest.missing():
            interest.asking.update(missing)
            asked = asyncio.get_running_loop().time()
            interest.tasks.create_task(self._ask(interest, resources, missing, asked))

    async def _end(self, interest: Interest, resources: Resources, uris: Collection[str]) -> None:
        await resources.unsubscribe(*sorted(uris))
        if interest.life is resources:
            interest.settled(uris)
            interest.dirty.set()  # who holds one of them by now

    async def _ask(self, interest: Interest, resources: Resources, uris: Collection[str], asked: float) -> None:
        def answered(uri: str, error: ServerError | None) -> None:
            if interest.connection() is resources:
                self._answered(interest, uri, None if error is None else Failure(error, asked))

        await resources.subscribe_all(uris, answered, timeout=SUBSCRIBE_S)
        if interest.connection() is resources:
            self._tell(interest)
            interest.dirty.set()  # what failed is to be planned

    def _answered(self, interest: Interest, uri: str, failure: Failure | None) -> None:
        if failure is None:
            interest.subscribed.add(uri)
            holders = interest.holders.get(uri, ())
            interest.untold[uri] = frozenset(holder for holder in holders if (uri, holder) not in interest.new)
            if interest.telling is None:
                interest.telling = asyncio.get_running_loop().call_later(GATHER_S, self._tell, interest)
        elif uri in interest.holders:
            self._fail(interest, uri, failure)
        interest.settled([uri])
        if uri not in interest.holders:
            interest.dirty.set()  # it was given up meanwhile

    def _fail(self, interest: Interest, uri: str, failure: Failure) -> None:
        interest.failed[uri] = failure
        what = f"does not tell of changes of a resource: it {failure.error.what}"
        self._causes.warn(interest.supervisor.name, what)

    def _tell(self, interest: Interest) -> None:
        if interest.telling is not None:
            interest.telling.cancel()
            interest.telling = None
        if interest.connection() is not None and interest.untold:
            before, interest.untold = interest.untold, {}
            self._events.tell(ResourcesSubscribed(interest.supervisor.name, before))

    def _let_go(self, interest: Interest, holder: Hashable, uri: str) -> None:
        holders = interest.holders.get(uri, set())
        holders.discard(holder)
        if not holders:
            interest.holders.pop(uri, None)
            interest.failed.pop(uri, None)
            interest.dirty.set()

    def _on_event(self, event: ServerEvent) -> None:
        interest = self._interests.get(event.server)
        if interest is None:
            return
        match event:
            case ServerReady() | ServerGone():
                interest.dirty.set()
                if isinstance(event, ServerReady):
                    self._causes.forget(event.server)
            case ResourcesUnsubscribed(server, uris):
                why = Failure(NotTold(server, "tells of it no more"), asyncio.get_running_loop().time())
                for uri in uris & interest.subscribed:
                    interest.subscribed.discard(uri)
                    interest.untold.pop(uri, None)
                    if uri in interest.holders:
                        self._fail(interest, uri, why)
                interest.dirty.set()
            case _:
                pass
