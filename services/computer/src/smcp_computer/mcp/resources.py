"""The resources of one connection to an MCP server: listed, read, subscribed to; raw JSON as the server sent it."""

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import mcp_types as types

from smcp_bus import exact_json
from smcp_computer.mcp.errors import BadAnswer, ServerTimedOut
from smcp_computer.mcp.sdk_adapter import REQUEST_S, Requests
from smcp_computer.mcp.subscriptions import Subscriptions

Json = Mapping[str, Any]
"""An object as MCP gives it: camelCase keys, nothing added or dropped."""

SUBSCRIBE_S: Final = 10.0
"""Shorter than a request: a silent server must not hold the few places for subscriptions."""
MAX_ITEMS: Final = 50_000
LIST_BYTES: Final = 16 * 1024 * 1024
"""Of one list with all its pages: 300 for each item. It stays in memory, in several times its bytes."""


@dataclass(frozen=True, slots=True)
class Features:
    subscribe: bool
    list_changed: bool


@dataclass(frozen=True, slots=True)
class Page:
    items: tuple[Any, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Listed:
    """A whole list: objects with a string as URI (or template), none twice; and what was left out, for the log."""

    items: tuple[Json, ...]
    problems: tuple[str, ...] = ()


class Resources:
    """Every method raises `ServerError`s: `RequestRefused`, `ServerTimedOut`, `ServerDied`, `BadAnswer`. Time-outs are
    seconds.
    """

    def __init__(self, requests: Requests, capability: types.ResourcesCapability, subscriptions: Subscriptions) -> None:
        self.features = Features(capability.subscribe is True, capability.list_changed is True)
        self._requests = requests
        self._subscriptions = subscriptions

    @property
    def server(self) -> str:
        return self._requests.server

    async def list_page(self, cursor: str | None = None, *, timeout: float = REQUEST_S) -> Page:
        return await self._page("resources/list", "resources", cursor, timeout)

    async def list_all(self, *, timeout: float = REQUEST_S) -> Listed:
        return await self._all("resources/list", "resources", "uri", timeout)

    async def all_templates(self, *, timeout: float = REQUEST_S) -> Listed:
        return await self._all("resources/templates/list", "resourceTemplates", "uriTemplate", timeout)

    async def read(self, uri: str, *, timeout: float = REQUEST_S) -> dict[str, Any]:
        """The result of `resources/read`. Its `contents` are a list; what is in it is not checked."""
        result = await self._requests.send("resources/read", {"uri": uri}, timeout=timeout)
        if not isinstance(result.get("contents"), list):
            raise BadAnswer(self.server, "sent contents that are no list")
        return result

    async def subscribe(self, uri: str) -> None:
        """Ask for `ResourceUpdated` of it as long as the connection lasts."""
        await self._in_time(self._subscriptions.subscribe(uri))

    async def unsubscribe(self, uri: str) -> None:
        await self._in_time(self._subscriptions.unsubscribe(uri))

    async def _in_time(self, asking: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(SUBSCRIBE_S):
                await asking
        except TimeoutError:
            raise ServerTimedOut(self.server, "did not answer in time") from None

    async def complete(self, params: Json, *, timeout: float = REQUEST_S) -> dict[str, Any]:
        """The result of `completion/complete`; `params` are MCP's (`ref`, `argument`, `context`)."""
        return await self._requests.send("completion/complete", params, timeout=timeout)

    async def _page(self, method: str, key: str, cursor: str | None, timeout: float) -> Page:
        params = {} if cursor is None else {"cursor": cursor}
        result = await self._requests.send(method, params, timeout=timeout)
        items, following = result.get(key), result.get("nextCursor")
        if not isinstance(items, list):
            raise BadAnswer(self.server, f"sent no list of {key}")
        if following is not None and not isinstance(following, str):
            raise BadAnswer(self.server, "sent a cursor that is no string")
        return Page(tuple(items), following)

    async def _all(self, method: str, key: str, name: str, timeout: float) -> Listed:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        found: dict[str, Json] = {}
        problems: list[str] = []
        size, cursor = 0, None
        while True:
            left = deadline - loop.time()
            if left <= 0:
                raise ServerTimedOut(self.server, f"did not list its {key} in time")
            page = await self._page(method, key, cursor, left)
            known = len(found)
            for item in page.items:
                identity = item.get(name) if isinstance(item, dict) else None
                if not isinstance(identity, str):
                    problems.append(f"an item of its {key} has no {name}; it is left out")
                elif identity in found:
                    problems.append(f"lists {self._requests.redactor.shown(identity)} twice; the first counts")
                else:
                    found[identity] = item
            cursor = page.next_cursor
            size += len(exact_json.written(page.items))
            if cursor is None:
                break
            if len(found) >= MAX_ITEMS or size > LIST_BYTES or (page.items and len(found) == known):
                problems.append(f"its list of {key} has no end; {min(len(found), MAX_ITEMS)} are taken")
                break
        return Listed(tuple(found.values())[:MAX_ITEMS], tuple(dict.fromkeys(problems)))
