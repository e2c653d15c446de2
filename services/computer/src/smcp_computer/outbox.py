"""The outbox: notifications that a Computer has yet to send to its office, kept while the connection is broken.

Notifications of one key are sent once. One that is refused for now goes to the end, and is tried again after a pause;
one that is refused for good is dropped, with one warning.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

import orjson

from smcp_bus import exact_json
from smcp_bus.backoff import Backoff
from smcp_bus.errors import BodyTooLarge, BusError
from smcp_proto.errors import NotInOffice, RateLimited, SmcpError, TimedOut, Unavailable
from smcp_proto.member_names import Role
from smcp_proto.schemas.resources import MISSED

_log = logging.getLogger("smcp_computer.outbox")

TOOL_LIST: Final = "update_tool_list"
CONFIG: Final = "update_config"
DESKTOP: Final = "update_desktop"
FINDER: Final = "update_finder"
CAPABILITIES: Final = "update_capabilities"
UPDATED: Final = "resources_updated"
LIST_CHANGED: Final = "resources_list_changed"
RESOURCES: Final = (UPDATED, LIST_CHANGED)

HEALING: Final = (NotInOffice, RateLimited, TimedOut, Unavailable)
"""Refusals that end by themselves. What is refused otherwise would be refused for ever."""
MOST_UNTOLD: Final = 1000
"""Notifications that wait. Above it, an update becomes a `list_changed` by which Agents subscribe again."""
MAX_TITLE: Final = 1000
"""Characters of a title that are told."""

_LIST_CHANGED: Final = {"jsonrpc": "2.0", "method": "notifications/resources/list_changed"}


class OfficeClient(Protocol):
    """The registry over NATS, or a gateway."""

    async def tell(self, office: str, role: Role, name: str, verb: str, body: bytes) -> None:
        """Send an event that becomes a notification. Raises SmcpError (refused), BusError (it may have been taken)."""


class Key(NamedTuple):
    verb: str
    server: str = ""
    uri: str = ""
    agent: str | None = None


class _Entry(NamedTuple):
    at: float
    """When it is told at the earliest (loop time)."""
    body: Callable[[], bytes]


class Outbox:
    """`run` must be running.

    Args:
        may_tell: whether this Computer is a member now.
        gather_s: changes of one kind that come within so many seconds are sent as one.
        content: what is sent beside this Computer's name, by verb.
    """

    def __init__(
        self,
        client: OfficeClient,
        office: str,
        name: str,
        *,
        may_tell: Callable[[], bool],
        gather_s: float,
        content: Mapping[str, Callable[[], Mapping[str, Any]]] = MappingProxyType({}),
    ) -> None:
        self._client = client
        self._office = office
        self._name = name
        self._may_tell = may_tell
        self._gather_s = gather_s
        self._content = content
        self._waiting: dict[Key, _Entry] = {}
        """In the order in which they are sent."""
        self._telling: Key | None = None
        """What is being sent, and has not been dropped meanwhile."""
        self._held_until = 0.0
        self._backoff = Backoff(first_s=0.2, longest_s=5.0)
        self._dropped: set[tuple[str, str, type[Exception]]] = set()
        """What was logged since this Computer became a member."""
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    @property
    def untold(self) -> frozenset[str]:
        """The verbs of what waits."""
        return frozenset(key.verb for key in self._waiting)

    def held(self) -> dict[str, int]:
        """How much waits, or is being told now."""
        return {"untold": len(self._waiting) + (self._telling is not None)}

    def changed(self, *verbs: str) -> None:
        """Queue `update_*` of this Computer itself."""
        for verb in verbs:
            self._add(Key(verb), partial(self._state, verb))

    def resource_updated(self, agent: str | None, server: str, uri: str, title: str | None) -> None:
        """A resource changed that the Agent has subscribed to. `title`: as the server's list has it."""
        key = Key(UPDATED, server, uri, agent)
        if len(self._waiting) >= MOST_UNTOLD and key not in self._waiting:
            _log.warning("MCP server %r reports more changes than can be passed on one by one", server)
            self.missed(server)
            return
        params = {"uri": uri}
        if title is not None:
            params["title"] = title[:MAX_TITLE].encode(errors="ignore").decode()
        payload = {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": params}
        self._add_envelope(key, payload, {} if agent is None else {"agent": agent})

    def list_changed(self, server: str) -> None:
        self._add_envelope(Key(LIST_CHANGED, server), _LIST_CHANGED, {})

    def missed(self, server: str | None) -> None:
        """Agents may have missed changes of a server, or of all, and are to subscribe again. Updates that wait are
        dropped: the Agent may be another one by now."""
        self._drop(lambda key: key.verb == UPDATED and server in (None, key.server))
        self._add_envelope(Key(LIST_CHANGED, server or "", MISSED), _LIST_CHANGED, {MISSED: True})

    def forget(self) -> frozenset[str]:
        """Drop updates of this Computer's state; return their verbs. Agents that see it enter ask for everything."""
        untold = self.untold.difference(RESOURCES)
        self._drop(lambda key: key.verb not in RESOURCES)
        return untold

    def resume(self) -> None:
        """This Computer is a member (again)."""
        self._held_until = self._loop.time() + self._gather_s  # those who hear it come back from the same break
        self._backoff.reset()
        self._dropped.clear()
        self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            due = self._due()
            if due is not None and due <= self._loop.time():
                await self._tell_first()
                continue
            try:
                async with asyncio.timeout_at(due):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _due(self) -> float | None:
        if not self._waiting or not self._may_tell():
            return None
        return max(self._held_until, next(iter(self._waiting.values())).at)

    async def _tell_first(self) -> None:
        key = self._telling = next(iter(self._waiting))
        entry = self._waiting.pop(key)  # a change while it is sent is sent again
        try:
            await self._client.tell(self._office, "computer", self._name, key.verb, entry.body())
        except (BusError, SmcpError) as error:
            if isinstance(error, BodyTooLarge) or not isinstance(error, (BusError, *HEALING)):
                cause = (key.verb, key.server, type(error))
                if cause not in self._dropped:
                    self._dropped.add(cause)
                    of = f" of MCP server {key.server!r}" if key.server else ""
                    _log.warning("%s%s cannot be told, and is dropped: %s", key.verb, of, error)
                return
            _log.warning("%s could not be told: %s", key.verb, error)
            self._held_until = self._loop.time() + self._backoff.next()
            if self._telling is not None:
                self._waiting.setdefault(key, entry)
        else:
            self._backoff.reset()
        finally:
            self._telling = None

    def _add(self, key: Key, body: Callable[[], bytes]) -> None:
        """`body` is called when it is sent; the one that was given last counts."""
        known = self._waiting.get(key)
        self._waiting[key] = _Entry(self._loop.time() + self._gather_s if known is None else known.at, body)
        self._wake.set()

    def _add_envelope(self, key: Key, payload: Mapping[str, Any], more: Mapping[str, Any]) -> None:
        envelope = {"roomId": self._office, "computerId": self._name, **more}
        if key.server:
            envelope["serverId"] = key.server
        self._add(key, partial(exact_json.written, {**envelope, "payload": payload}))

    def _drop(self, which: Callable[[Key], bool]) -> None:
        for key in [key for key in self._waiting if which(key)]:
            del self._waiting[key]
        if self._telling is not None and which(self._telling):
            self._telling = None

    def _state(self, verb: str) -> bytes:
        more = self._content[verb]() if verb in self._content else {}
        return orjson.dumps({"computer": self._name, **more})
