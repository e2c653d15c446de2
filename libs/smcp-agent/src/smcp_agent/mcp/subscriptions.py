"""What MCP clients hear of the office without asking: changed lists, and the resources that they watch.

A client of MCP 2025 hears of every changed list, and of resources by `resources/subscribe`, until its
connection ends. One of 2026 opens streams (`subscriptions/listen`). A client that does not read delays nobody else.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import anyio
import mcp_types as types
from mcp.server import Server, subscriptions
from mcp.server.context import CallNext, HandlerResult
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import event_to_notification

from smcp_agent.client import SmcpAgent
from smcp_agent.errors import RateLimited, SmcpError
from smcp_agent.events import ResourceUpdated
from smcp_agent.mcp.resources import LIST_S, Context, OfficeResources, no_resource
from smcp_proto.uris import without_query

Watcher = Callable[[int], None]
"""The session of a client of MCP 2025, or a stream of one of 2026: counts the resources that it watches. It gets the
change of their number, and raises RateLimited above the limit."""
WatchCounter = Callable[[Context], Watcher]
"""Makes a new watcher at the first request of a connection or stream."""

logger = logging.getLogger(__name__)


class ClientSubscriptions:
    """The part of the office's MCP server that notifies its clients. Forgets a client when its connection ends."""

    def __init__(
        self, agent: SmcpAgent, server: Server[Any], resources: OfficeResources, watch_counter: WatchCounter
    ) -> None:
        self._agent = agent
        self._resources = resources
        self._watch_counter = watch_counter
        self.bus = subscriptions.InMemorySubscriptionBus()
        """Notifies the clients that want to know of a change; waits for none of them."""
        self._stream = subscriptions.ListenHandler(self.bus)
        self._sessions: dict[int, tuple[Watcher, anyio.CancelScope]] = {}
        """The connections of clients of MCP 2025, by the id of the object with what the client said at `initialize`;
        each with the block that notifies it."""
        self._watched: dict[str, tuple[str, str]] = {}
        """Computer and own URI of each resource that is watched, by the client's URI."""
        self._watchers: defaultdict[str, set[Watcher]] = defaultdict(set)
        """The watchers of each resource, by the client's URI, including those that wait for the Computer's answer."""
        server.middleware.append(self._forget_before)
        server.add_notification_handler("notifications/initialized", types.NotificationParams, self._initialized)
        server.add_request_handler("resources/subscribe", types.SubscribeRequestParams, self._subscribe)
        server.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, self._unsubscribe)
        server.add_request_handler("subscriptions/listen", types.SubscriptionsListenRequestParams, self._listen)

    def meant(self, event: ResourceUpdated) -> set[str]:
        """The clients' URIs of the resource that changed."""
        changed = event.computer, without_query(event.uri)
        return {uri for uri, (computer, own) in self._watched.items() if (computer, without_query(own)) == changed}

    async def _forget_before(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Stop notifying a client by what it said before, when it says `initialize` again."""
        before = ctx.session.client_params
        answer = await call_next(ctx)
        if ctx.method == "initialize" and before is not None and id(before) in self._sessions:
            self._sessions[id(before)][1].cancel()
        return answer

    async def _initialized(self, context: Context, _: types.NotificationParams) -> None:
        """Notify a client of MCP 2025 until its connection ends: the MCP SDK cancels this then."""
        client = context.session.client_params
        session = id(client)
        if client is None or session in self._sessions:
            return
        watcher, notifying = self._sessions[session] = self._watch_counter(context), anyio.CancelScope()
        waiting: set[subscriptions.ServerEvent] = set()
        changed = asyncio.Event()

        def take(change: subscriptions.ServerEvent) -> None:
            if not isinstance(change, subscriptions.ResourceUpdated) or watcher in self._watchers.get(change.uri, ()):
                waiting.add(change)
                changed.set()

        unsubscribe = self.bus.subscribe(take)
        try:
            with notifying:
                while True:
                    while waiting:
                        await context.session.send_notification(event_to_notification(waiting.pop(), {}))
                    changed.clear()
                    await changed.wait()
        finally:
            unsubscribe()
            del self._sessions[session]
            await self._release(watcher)

    async def _subscribe(self, context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        session = self._sessions.get(id(context.session.client_params))
        if session is None:
            raise MCPError(types.INVALID_REQUEST, "resources/subscribe has to come after notifications/initialized")
        watcher = session[0]
        self._add(params.uri, watcher)
        await self._watch(context, params.uri, watcher)
        return types.EmptyResult()

    async def _unsubscribe(self, context: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        if (session := self._sessions.get(id(context.session.client_params))) is not None:
            await self._unwatch(params.uri, session[0])
        return types.EmptyResult()

    async def _listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        stream = self._watch_counter(context)
        uris = set(params.notifications.resource_subscriptions or ())
        try:
            for uri in uris:
                self._add(uri, stream)
            for uri in list(uris):
                try:
                    await self._watch(context, uri, stream)
                except MCPError as error:
                    logger.warning("%s cannot be watched: %s", uri, error.error.message)
                    uris.remove(uri)  # else the stream would have what another client hears of it
            wanted = params.notifications.model_copy(update={"resource_subscriptions": sorted(uris) or None})
            return await self._stream(context, params.model_copy(update={"notifications": wanted}))
        finally:  # a client that closes its stream cancels this
            await self._release(stream)

    def _add(self, uri: str, watcher: Watcher) -> None:
        """Before the Computer is asked, so that another watcher which stops does not unsubscribe meanwhile. Raises
        MCPError: the client watches as many resources as it may."""
        if watcher in self._watchers.get(uri, ()):
            return
        try:
            watcher(1)
        except RateLimited as error:
            message = f"error 429: {uri} cannot be watched: {error.message}; unsubscribe from others first"
            raise MCPError(types.INTERNAL_ERROR, message, error.details) from None
        self._watchers[uri].add(watcher)

    async def _watch(self, context: Context, uri: str, watcher: Watcher) -> None:
        """Subscribe for a watcher that `_add` has added. Raises MCPError."""
        try:
            if (watched := self._watched.get(uri)) is None:
                found = await self._resources.subscribe(context, uri)
                watched = self._watched.setdefault(uri, found)
                if watched != found:  # another client, which may ask other Computers, was faster
                    await self._unsubscribe_from(found)
        except BaseException:
            await self._release(watcher, uri)
            raise
        if not self._resources.may_ask(context, watched[0]):  # another client subscribed to it
            await self._release(watcher, uri)
            raise no_resource(uri)
        if watcher not in self._watchers.get(uri, ()):  # it has unsubscribed meanwhile
            await self._unwatch(uri, watcher)

    async def _unwatch(self, uri: str, watcher: Watcher) -> None:
        watchers = self._watchers.get(uri, set())
        if watcher in watchers:
            watchers.remove(watcher)
            watcher(-1)
        if watchers:
            return
        self._watchers.pop(uri, None)
        if (watched := self._watched.pop(uri, None)) is not None:
            await self._unsubscribe_from(watched)

    async def _unsubscribe_from(self, watched: tuple[str, str]) -> None:
        try:
            await self._agent.unsubscribe_resource(*watched)
        except SmcpError as error:
            logger.warning("%s at %r may still be watched: %s", watched[1], watched[0], error.message)

    async def _release(self, watcher: Watcher, *uris: str) -> None:
        """Remove a watcher from these resources, or from all if none is given."""
        mine = uris or [uri for uri, watchers in self._watchers.items() if watcher in watchers]
        with anyio.move_on_after(LIST_S, shield=True):
            async with anyio.create_task_group() as group:
                for uri in mine:
                    group.start_soon(self._unwatch, uri, watcher)
