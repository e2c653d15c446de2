"""Which Agent wants to hear of which resources of one Socket.IO Computer, and what that Computer announces of them.

A document is known without its query, which says how it is shown. A subscription counts from the moment when the
Computer is asked: what it announces before its answer is here is not lost. It ends when the Agent leaves, and after any
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
"""That one Agent may have at one Computer; above it 429."""
GATHER_S: Final = 0.1
"""Updates of one resource within it are told once, as native Computers do by default (seconds)."""
MOST_BYTES: Final = 256 * 1024
"""What may wait of one Computer. Above it one `resources/list_changed` replaces all of it."""
UPDATED: Final = "resources_updated"
LIST_CHANGED: Final = "resources_list_changed"
HEALING: Final = (NotInOffice, RateLimited, TimedOut, Unavailable)
"""Refusals that end by themselves."""

_log: Final = logging.getLogger("smcp_gateway.computers.subscriptions")


class Subscriptions:
    """(MCP server, digest of the URI) by Agent: an entry costs the same whatever an Agent writes into it. The server is
    None where the Agent named none."""

    def __init__(self, *, most: int = MAX_SUBSCRIPTIONS) -> None:
        self._most = most
        self._agents: dict[str, set[tuple[str | None, bytes]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._agents.values()))

    def add(self, agent: str, server: str | None, uri: str) -> Callable[[bool], None]:
        """The Computer is about to be asked. Returns what takes its answer: whether it granted that.

        Raises:
            RateLimited: the Agent has as many as it may have (`details.limit`).
        """
        mine, key = self._agents.setdefault(agent, set()), (server, _digest(uri))
        is_new = key not in mine
        if is_new and len(mine) >= self._most:
            details = {"smcp_code": SmcpCode.RATE_LIMITED.value, "limit": self._most}
            raise RateLimited("too many subscriptions at this Computer; end some of them first", details=details)
        mine.add(key)

        def settle(granted: bool) -> None:
            # `mine` is forgotten where the Agent has left meanwhile
            if granted:
                mine.add(key)
            elif is_new:
                mine.discard(key)

        return settle

    def end(self, agent: str, server: str | None, uri: str) -> None:
        """The Agent has unsubscribed; `server` None: at whichever server."""
        digest, mine = _digest(uri), self._agents.get(agent, set())
        mine -= {(at, subscribed) for at, subscribed in mine if subscribed == digest and server in (None, at)}

    def left(self, agent: str) -> bool:
        """The Agent has left the office; whether it had subscribed to something."""
        return bool(self._agents.pop(agent, None))

    def clear(self) -> bool:
        """End all; whether there were any."""
        had, self._agents = len(self) > 0, {}
        return had

    def agents(self, server: str | None, uri: str) -> Iterator[str]:
        """Who subscribed to the resource that changed, or to one that it is a part of.

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
"""Tells the office, given a verb and JSON. Raises BusError or SmcpError where it did not work."""
Later = Callable[[str, Callable[[], Awaitable[object]]], None]
"""`BackgroundTasks.until_done`."""


class Updates:
    """What one Computer announces of its resources, on its way to its office; the last word of a resource counts.

    Args:
        later: runs what tells, again and again until it works.
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
        """A resource changed: told at once, or within `GATHER_S` of the updates before."""
        if self._bytes + len(body) > MOST_BYTES:
            self.missed()
        else:
            self._add(key, UPDATED, body)

    def missed(self) -> None:
        """Drop what waits, and tell Agents that they missed something and are to subscribe again."""
        self._waiting.clear()
        self._bytes = 0
        self._add(MISSED_KEY, LIST_CHANGED, self._missed)

    async def flush(self) -> None:
        """Tell what waits now.

        Raises:
            BusError, SmcpError: it does not work now; what was not told waits on.
        """
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
                    _log.warning("an update cannot be told, and is dropped: %s", type(error).__name__)
                if self._waiting.get(key) is entry:  # else it was announced once more, or dropped
                    del self._waiting[key]
                    self._bytes -= len(entry[1])

    def end(self) -> None:
        """The Computer is no member here any more: what waits is tried once more."""
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
