"""What MCP clients hear of the office without asking: changed lists, and the resources that they watch.

A client of MCP 2025 hears of every changed list, and of resources by `resources/subscribe`, until its
connection ends. One of 2026 opens streams (`subscriptions/listen`). Each client has its own queue: one that does not
read delays nobody else. Below is `mcp.resources`, which knows the Computer of a URI; above is `mcp.bridge`.
"""

import asyncio
import logging
from collections import defaultdict
from typing import Any, Final

import anyio
import mcp_types as types
from mcp.server import Server, subscriptions
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import event_to_notification

from smcp_agent.client import SmcpAgent
from smcp_agent.errors import SmcpError
from smcp_agent.events import ResourceUpdated
from smcp_agent.mcp.resources import Context, OfficeResources, no_resource
from smcp_proto.uris import without_query

UNWATCH_S: Final = 5.0
"""How long a disconnect waits for Computers to confirm unsubscribes."""

logger = logging.getLogger(__name__)


class ClientSubscriptions:
    """The part of the office's MCP server that notifies its clients. Forgets a client when its connection ends."""

    def __init__(self, agent: SmcpAgent, server: Server[Any], resources: OfficeResources) -> None:
        self._agent = agent
        self._resources = resources
        self._bus = subscriptions.InMemorySubscriptionBus()
        self._stream = subscriptions.ListenHandler(self._bus)
        self._sessions: set[int] = set()
        """The connections of clients of MCP 2025, by the id of the object with what the client said at `initialize`."""
        self._watched: dict[str, tuple[str, str]] = {}
        """Computer and own URI of each resource that is watched, by the client's URI."""
        self._watchers: defaultdict[str, set[object]] = defaultdict(set)
        """The sessions and streams that watch a resource, by the client's URI."""
        server.add_notification_handler("notifications/initialized", types.NotificationParams, self._initialized)
        server.add_request_handler("resources/subscribe", types.SubscribeRequestParams, self._subscribe)
        server.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, self._unsubscribe)
        server.add_request_handler("subscriptions/listen", types.SubscriptionsListenRequestParams, self._listen)

    async def publish(self, change: subscriptions.ServerEvent) -> None:
        """Notify the clients that want to know of this change; waits for none of them."""
        await self._bus.publish(change)

    def meant(self, event: ResourceUpdated) -> set[str]:
        """The clients' URIs of the resource that changed."""
        changed = event.computer, without_query(event.uri)
        return {uri for uri, (computer, own) in self._watched.items() if (computer, without_query(own)) == changed}

    async def _initialized(self, context: Context, _: types.NotificationParams) -> None:
        """Notify a client of MCP 2025 until its connection ends: the MCP SDK cancels this then."""
        client = context.session.client_params
        session = id(client)
        if client is None or session in self._sessions:
            return
        waiting: set[subscriptions.ServerEvent] = set()
        changed = asyncio.Event()

        def take(change: subscriptions.ServerEvent) -> None:
            if not isinstance(change, subscriptions.ResourceUpdated) or session in self._watchers.get(change.uri, ()):
                waiting.add(change)
                changed.set()

        unsubscribe = self._bus.subscribe(take)
        self._sessions.add(session)
        try:
            while context.session.client_params is client:  # not after another `initialize` on the same connection
                while waiting:
                    await context.session.send_notification(event_to_notification(waiting.pop(), {}))
                changed.clear()
                await changed.wait()
        finally:
            unsubscribe()
            self._sessions.discard(session)
            await self._release(session, [uri for uri, watchers in self._watchers.items() if session in watchers])

    async def _subscribe(self, context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        session = id(context.session.client_params)
        if session not in self._sessions:
            raise MCPError(types.INVALID_REQUEST, "resources/subscribe has to come after notifications/initialized")
        await self._watch(context, params.uri, session)
        return types.EmptyResult()

    async def _unsubscribe(self, context: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        await self._unwatch(params.uri, id(context.session.client_params))
        return types.EmptyResult()

    async def _listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        stream = object()
        watched: list[str] = []
        try:
            for uri in params.notifications.resource_subscriptions or ():
                try:
                    await self._watch(context, uri, stream)
                    watched.append(uri)
                except MCPError as error:
                    logger.warning("%s cannot be watched: %s", uri, error.error.message)
            return await self._stream(context, params)
        finally:  # a client that closes its stream cancels this
            await self._release(stream, watched)

    async def _watch(self, context: Context, uri: str, watcher: object) -> None:
        self._watchers[uri].add(watcher)  # before the first await: another that stops watching must not unsubscribe
        try:
            if uri not in self._watched:
                self._watched[uri] = await self._resources.subscribe(context, uri)
            refused = not self._resources.may_ask(context, self._watched[uri][0])  # another client subscribed to it
        except BaseException:
            await self._release(watcher, [uri])
            raise
        if refused:
            await self._release(watcher, [uri])
            raise no_resource(uri)

    async def _unwatch(self, uri: str, watcher: object) -> None:
        watchers = self._watchers.get(uri, set())
        watchers.discard(watcher)
        if watchers:
            return
        self._watchers.pop(uri, None)
        if (watched := self._watched.pop(uri, None)) is not None:
            try:
                await self._agent.unsubscribe_resource(*watched)
            except SmcpError as error:
                logger.warning("%s may still be watched: %s", uri, error.message)

    async def _release(self, watcher: object, uris: list[str]) -> None:
        """End what a client that is gone watched."""
        with anyio.move_on_after(UNWATCH_S, shield=True):
            async with anyio.create_task_group() as group:
                for uri in uris:
                    group.start_soon(self._unwatch, uri, watcher)
