"""Subscriptions to resources of one MCP server.

Servers of the 2025 era get one `resources/subscribe` per resource. Servers of the 2026 era get one stream
(`subscriptions/listen`) whose filter cannot be changed: for other resources a new stream is opened before the old one
is closed, so that no update is lost. A new stream may leave out resources of the one before (`ResourcesUnsubscribed`).
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import anyio
import anyio.abc
import mcp_types as types
from mcp.client import Client
from mcp.client.subscriptions import ResourcesListChanged, SubscriptionLost, ToolsListChanged
from mcp.client.subscriptions import ResourceUpdated as Updated
from mcp.client.subscriptions import ServerEvent as Change
from mcp.shared.exceptions import MCPError

from smcp_bus.backoff import Backoff
from smcp_computer.mcp.errors import NotTold, ServerDied, ServerError, ServerTimedOut
from smcp_computer.mcp.events import (
    ResourcesChanged,
    ResourcesUnsubscribed,
    ResourceUpdated,
    ServerEvent,
    ToolsChanged,
)
from smcp_computer.mcp.sdk import Requests

AT_ONCE: Final = 8
"""Requests to subscribe that one server gets at a time, of those that are asked for together."""

Answered = Callable[[str, ServerError | None], None]
"""Called once for each URI, as soon as the server has answered for it, with why it failed. It must not block."""


class Subscriptions(Protocol):
    async def subscribe(self, uris: Collection[str], answered: Answered, *, timeout: float) -> None:
        """Ask for all of them, until each is answered.

        Args:
            timeout: seconds for all together.
        """
        ...

    async def unsubscribe(self, uris: Collection[str], *, timeout: float) -> None: ...


class RequestedSubscriptions:
    """By `resources/subscribe`, one resource at a time: servers of the 2025 era."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def subscribe(self, uris: Collection[str], answered: Answered, *, timeout: float) -> None:
        await self._all("resources/subscribe", uris, answered, timeout)

    async def unsubscribe(self, uris: Collection[str], *, timeout: float) -> None:
        await self._all("resources/unsubscribe", uris, lambda uri, error: None, timeout)

    async def _all(self, method: str, uris: Collection[str], answered: Answered, timeout: float) -> None:
        deadline = asyncio.get_running_loop().time() + timeout
        left = iter(uris)

        async def one_by_one() -> None:
            for uri in left:
                rest = deadline - asyncio.get_running_loop().time()
                try:
                    if rest <= 0:
                        raise ServerTimedOut(self._requests.server, "did not answer in time")
                    await self._requests.send(method, {"uri": uri}, timeout=rest)
                except ServerError as error:
                    answered(uri, error)
                else:
                    answered(uri, None)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(AT_ONCE, len(uris))):
                tasks.create_task(one_by_one())


_log = logging.getLogger("smcp_computer.mcp.listen")

RELISTEN_S: Final = 1.0
"""The first pause before a stream that broke, or could not be opened, is opened again."""
LONGEST_S: Final = 30.0
"""The pauses grow up to this one, until a stream lives."""
LIVED_S: Final = 10.0
"""A stream that was open for so long is not taken to be one that always ends."""
DRAIN_S: Final = 0.5
"""How long the old stream is read beside the new one: over HTTP what was told on it before may come after."""


@dataclass(frozen=True)
class _Asked:
    uris: frozenset[str]
    outcome: asyncio.Future[dict[str, ServerError]] = field(default_factory=asyncio.Future)

    def settle(self, failed: dict[str, ServerError]) -> None:
        if not self.outcome.done():
            self.outcome.set_result(failed)


class ListenStream:
    """Subscriptions of a server of the 2026 era. `run` must be running.

    Args:
        tools, resources: whether the server tells when these lists change.
    """

    def __init__(
        self, requests: Requests, client: Client, notify: Callable[[ServerEvent], None], *, tools: bool, resources: bool
    ) -> None:
        self._requests = requests
        self._server = requests.server
        self._client = client
        self._notify = notify
        self._tools = tools
        self._resources = resources
        self._wanted: set[str] = set()
        self._granted: set[str] = set()
        """Those of them that the server has agreed to tell of."""
        self._asked: list[_Asked] = []
        self._wake = asyncio.Event()
        self._open: anyio.CancelScope | None = None
        self._drained: anyio.CancelScope | None = None
        """Of the stream that the open one has replaced."""
        self._changed = tools or resources
        """Another stream is needed than the open one."""
        self._due: float | None = None
        """When a stream is opened again, where there is none (loop time)."""
        self._backoff = Backoff(first_s=RELISTEN_S, longest_s=LONGEST_S)
        self._lost = False
        """A stream broke: what changed since was told to nobody."""
        self._closed: ServerError | None = None
        """Why there never will be a stream again."""

    async def subscribe(self, uris: Collection[str], answered: Answered, *, timeout: float) -> None:
        closed = self._closed
        failed = await self._failed(uris, timeout) if closed is None else dict.fromkeys(uris, closed)
        for uri in uris:
            answered(uri, failed.get(uri))

    async def _failed(self, uris: Collection[str], timeout: float) -> dict[str, ServerError]:
        asked = _Asked(frozenset(uris))
        self._wanted |= asked.uris
        self._asked.append(asked)
        self._change()
        try:
            async with asyncio.timeout(timeout):
                failed = await asked.outcome
        except TimeoutError:
            failed = dict.fromkeys(asked.uris, ServerTimedOut(self._server, "did not answer in time"))
        self._wanted -= failed.keys()
        return failed

    async def unsubscribe(self, uris: Collection[str], *, timeout: float) -> None:
        self._wanted -= set(uris)
        self._granted -= set(uris)
        self._change()

    def _change(self) -> None:
        self._changed = True
        self._wake.set()

    async def run(self) -> None:
        """Keep the stream open until cancelled, or until the server says that it has none."""
        try:
            async with anyio.create_task_group() as tasks:
                while self._closed is None:
                    await self._needed()
                    await self._reopen(tasks)
            self._tells_no_more_of(frozenset(self._granted))
        finally:
            self._closed = self._closed or ServerDied(self._server, "went away before it answered")
            for asked in self._asked:
                asked.settle(dict.fromkeys(asked.uris, self._closed))

    async def _needed(self) -> None:
        """Return when a stream has to be opened: another one is needed, or the pause after a failure is over."""
        while not self._changed:
            try:
                async with asyncio.timeout_at(self._due):
                    await self._wake.wait()
            except TimeoutError:
                self._due = None
                break
            self._wake.clear()
        self._changed = False

    async def _reopen(self, tasks: anyio.abc.TaskGroup) -> None:
        uris, asked = sorted(self._wanted), tuple(self._asked)
        honored: frozenset[str] = frozenset()
        left_out: frozenset[str] = frozenset()
        why: ServerError = NotTold(self._server, "does not tell when this resource changes")
        if uris or self._tools or self._resources:
            try:
                honored = await tasks.start(self._stream, uris)
            except MCPError as error:
                why = self._refused(error)
                self._retry()
            except (SubscriptionLost, TimeoutError):
                why = ServerTimedOut(self._server, "did not open a stream of changes")
                self._retry()
            else:
                if self._open is None and not honored:  # it ended without a word: that says nothing of the resources
                    why = ServerTimedOut(self._server, "ended its stream of changes at once")
                else:
                    left_out = frozenset(self._granted.intersection(uris)) - honored
        else:
            self._replace(None)
        self._asked = self._asked[len(asked) :]
        for one in asked:
            if not one.outcome.done():
                self._granted |= one.uris & honored
            one.settle(dict.fromkeys(one.uris - honored, why))
        if self._open is not None and self._lost:
            self._lost = False
            self._catch_up()
        self._tells_no_more_of(left_out)

    def _tells_no_more_of(self, uris: frozenset[str]) -> None:
        self._wanted -= uris
        self._granted -= uris
        if uris:
            self._notify(ResourcesUnsubscribed(self._server, uris))

    async def _stream(self, uris: Sequence[str], *, task_status: anyio.abc.TaskStatus[frozenset[str]]) -> None:
        is_open, loop = False, asyncio.get_running_loop()
        began = loop.time()
        with anyio.CancelScope() as scope:
            try:
                async with self._client.listen(
                    tools_list_changed=self._tools,
                    resources_list_changed=self._resources,
                    resource_subscriptions=uris,
                ) as events:
                    is_open, began = True, loop.time()
                    self._replace(scope)  # before it is read: it may end at once
                    task_status.started(frozenset(events.honored.resource_subscriptions or ()))
                    async for event in events:
                        self._tell(event)
            except (SubscriptionLost, MCPError):
                if not is_open:
                    raise
        if scope is self._open and not scope.cancel_called:
            self._open = None
            self._lost = True
            if loop.time() - began >= LIVED_S:
                self._backoff.reset()
            self._retry()

    def _refused(self, error: MCPError) -> ServerError:
        why = self._requests.translated(error)
        if error.code == types.METHOD_NOT_FOUND:
            _log.info("MCP server %r does not tell when its lists change", self._server)
            why = self._closed = NotTold(self._server, "does not tell when its resources change")
        elif isinstance(why, ServerDied):
            self._closed = why
        return why

    def _replace(self, scope: anyio.CancelScope | None) -> None:
        old, self._open = self._open, scope
        if self._drained is not None:
            self._drained.cancel()  # one at a time, however often other resources are asked for
        self._drained = old
        if old is not None:
            old.deadline = anyio.current_time() + DRAIN_S
        if scope is not None:
            self._due = None

    def _retry(self) -> None:
        if self._open is None and self._due is None:
            self._due = asyncio.get_running_loop().time() + self._backoff.next()
            self._wake.set()

    def _tell(self, change: Change) -> None:
        match change:
            case ToolsListChanged():
                self._notify(ToolsChanged(self._server))
            case ResourcesListChanged():
                self._notify(ResourcesChanged(self._server))
            case Updated(uri=uri):
                self._notify(ResourceUpdated(self._server, uri))
            case _:
                pass

    def _catch_up(self) -> None:
        """Anything may have changed while there was no stream."""
        if self._tools:
            self._notify(ToolsChanged(self._server))
        if self._resources:
            self._notify(ResourcesChanged(self._server))
        for uri in sorted(self._wanted):
            self._notify(ResourceUpdated(self._server, uri))
