"""The subscriptions of Agents to resources of one Socket.IO Computer, and the updates that the Computer announces.

URIs are compared without their query, which only selects a rendering. A subscription counts from the moment when the
Computer is asked, so that no update before its answer is lost. It ends when the Agent leaves, and after any
interruption: then the Agent is told to subscribe again (ADR 0019).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from hashlib import blake2b
from typing import Final, NamedTuple

import orjson

from smcp_bus.errors import BodyTooLarge, BusError
from smcp_proto.errors import NotInOffice, RateLimited, SmcpError, TimedOut, Unavailable
from smcp_proto.schemas.resources import MISSED, SmcpCode
from smcp_proto.uris import resources_above, without_query

MAX_SUBSCRIPTIONS: Final = 1000
"""Of one Agent at one Computer; above it 429."""
GATHER_S: Final = 0.1
"""Updates of one resource within it are sent once, as native Computers do by default (seconds)."""
MOST_BYTES: Final = 256 * 1024
"""Of one Computer's waiting updates. Above it one `resources/list_changed` replaces them."""
UPDATED: Final = "resources_updated"
LIST_CHANGED: Final = "resources_list_changed"
HEALING: Final = (NotInOffice, RateLimited, TimedOut, Unavailable)
"""Errors after which a retry may succeed."""

_log: Final = logging.getLogger("smcp_gateway.computers.subscriptions")


class Subscriptions:
    """(MCP server, digest of the URI) by Agent; the digest bounds the size of an entry. The server is None where the
    Agent named none."""

    def __init__(self, *, most: int = MAX_SUBSCRIPTIONS) -> None:
        self._most = most
        self._agents: dict[str, set[tuple[str | None, bytes]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._agents.values()))

    def add(self, agent: str, server: str | None, uri: str) -> Callable[[bool], None]:
        """Add a subscription before the Computer is asked. Returns a function that takes whether it granted it.

        Raises:
            RateLimited: the Agent has `details.limit` subscriptions already.
        """
        mine, key = self._agents.setdefault(agent, set()), (server, _digest(uri))
        is_new = key not in mine
        if is_new and len(mine) >= self._most:
            details = {"smcp_code": SmcpCode.RATE_LIMITED.value, "limit": self._most}
            raise RateLimited("too many subscriptions at this Computer; end some of them first", details=details)
        mine.add(key)

        def settle(granted: bool) -> None:
            # `mine` is unused when the Agent has left meanwhile
            if granted:
                mine.add(key)
            elif is_new:
                mine.discard(key)

        return settle

    def end(self, agent: str, server: str | None, uri: str) -> None:
        """The Agent has unsubscribed; `server` None: at any server."""
        digest, mine = _digest(uri), self._agents.get(agent, set())
        mine -= {(at, subscribed) for at, subscribed in mine if subscribed == digest and server in (None, at)}

    def left(self, agent: str) -> bool:
        """The Agent has left the office. Returns whether it had subscriptions."""
        return bool(self._agents.pop(agent, None))

    def clear(self) -> bool:
        """End all. Returns whether there were any."""
        had, self._agents = len(self) > 0, {}
        return had

    def agents(self, server: str | None, uri: str) -> Iterator[str]:
        """The Agents that subscribed to the changed resource, or to one that contains it.

        Args:
            server: the MCP server that announces it; None, or a subscription without one, means any.
        """
        digests = {_digest(each) for each in (uri, *resources_above(uri))} if self._agents else set()
        for agent, mine in self._agents.items():
            if any(each in digests and (server is None or at in (None, server)) for at, each in mine):
                yield agent


def granted(answer: bytes) -> bool:
    try:
        envelope = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return False
    payload = envelope.get("payload") if isinstance(envelope, dict) else None
    return isinstance(payload, dict) and payload.get("error") is None and payload.get("result") is not None


def _digest(uri: str) -> bytes:
    return blake2b(without_query(uri).encode(errors="surrogatepass"), digest_size=16).digest()


class Key(NamedTuple):
    agent: str
    server: str | None
    uri: str


MISSED_KEY: Final = Key("", None, MISSED)
Tell = Callable[[str, bytes], Awaitable[object]]
"""Given a verb and JSON: tells the office. Raises BusError or SmcpError."""
Later = Callable[[str, Callable[[], Awaitable[object]]], None]
"""`BackgroundTasks.until_done`."""


class Updates:
    """The outbox of one Computer's resource updates. A newer update of a resource replaces a waiting one.

    Args:
        later: runs a task, again until it succeeds.
    """

    def __init__(self, tell: Tell, later: Later, *, office: str, computer: str) -> None:
        self._tell = tell
        self._later = later
        self._missed = missed_body(office, computer)
        self._waiting: dict[Key, tuple[str, bytes]] = {}
        self._bytes = 0
        self._telling = False
        self._ended = False
        self._turn = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: Key, body: bytes) -> None:
        """A resource changed: sent at once, or `GATHER_S` after the updates before."""
        if self._bytes + len(body) > MOST_BYTES:
            self.missed()
        else:
            self._add(key, UPDATED, body)

    def missed(self) -> None:
        """Drop what waits, and tell Agents that they missed updates and have to subscribe again."""
        self._waiting.clear()
        self._bytes = 0
        self._add(MISSED_KEY, LIST_CHANGED, self._missed)

    async def flush(self) -> None:
        """Send what waits now. Raises BusError, SmcpError: the rest keeps waiting."""
        async with self._turn:
            for key in list(self._waiting):
                entry = self._waiting.get(key)
                if entry is None:
                    continue  # dropped meanwhile
                try:
                    await self._tell(*entry)
                except (SmcpError, BodyTooLarge) as error:
                    if isinstance(error, HEALING):
                        raise
                    _log.warning("an update cannot be sent, and is dropped: %s", type(error).__name__)
                if self._waiting.get(key) is entry:  # else it was replaced or dropped
                    del self._waiting[key]
                    self._bytes -= len(entry[1])

    def end(self) -> None:
        """The Computer is no longer a member here: try what waits once more."""
        self._ended = True

    def _add(self, key: Key, verb: str, body: bytes) -> None:
        self._bytes += len(body) - len(self._waiting.get(key, ("", b""))[1])
        self._waiting[key] = verb, body
        if not self._telling:
            self._telling = True
            self._later("telling of updates", self._tell_all)

    async def _tell_all(self) -> None:
        try:
            while self._waiting:
                await self.flush()
                await asyncio.sleep(GATHER_S)
        except (BusError, SmcpError):
            if not self._ended:
                raise
            self._waiting.clear()
        self._telling = False


def missed_body(office: str, computer: str) -> bytes:
    payload = {"jsonrpc": "2.0", "method": "notifications/resources/list_changed"}
    return orjson.dumps({"roomId": office, "computerId": computer, "payload": payload, MISSED: True})
