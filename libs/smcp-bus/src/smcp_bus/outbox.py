"""The outbox of one Computer: notifications that its office has yet to hear, kept while they cannot be sent.

A newer notification of a key replaces a waiting one. After an error that may pass, a notification is sent again after
the others; after any other it is dropped, with one warning.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, NamedTuple

from smcp_bus import exact_json
from smcp_bus.bus import BodyTooLarge, BusError
from smcp_proto.backoff import Backoff
from smcp_proto.errors import NotInOffice, RateLimited, SmcpError, TimedOut, Unavailable
from smcp_proto.schemas.resources import MISSED

UPDATED: Final = "resources_updated"
LIST_CHANGED: Final = "resources_list_changed"
RESOURCES: Final = (UPDATED, LIST_CHANGED)

HEALING: Final = (NotInOffice, RateLimited, TimedOut, Unavailable)
"""Errors after which a retry may succeed."""
GATHER_S: Final = 0.1
"""From the first notification until it is sent with those that came meanwhile (seconds)."""
MOST_BYTES: Final = 256 * 1024
"""The limit on the bytes that wait. Above it, one `list_changed` replaces resource updates."""

_log: Final = logging.getLogger("smcp_bus.outbox")

Tell = Callable[[str, bytes], Awaitable[object]]
"""Given a verb and JSON: notifies the office. Raises SmcpError (refused), BusError (it may have been taken)."""
Start = Callable[[Callable[[], Coroutine[Any, Any, None]]], object]


class Key(NamedTuple):
    verb: str
    server: str | None = None
    uri: str = ""
    agent: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Notification:
    """Compared by identity: one that replaces another of the same content while that is sent is sent, too."""

    key: Key
    body: bytes


@dataclass(eq=False, repr=False)
class Outbox:
    """Needs no task of its own: it starts one while a notification waits."""

    tell: Tell
    start: Start
    _: KW_ONLY
    office: str
    computer: str
    may_tell: Callable[[], bool]
    """Whether the Computer is a member now. Call `resume` when it is one again."""
    _waiting: dict[Key, Notification] = field(default_factory=dict, init=False)
    """In the order in which they are sent; with the one that is being sent."""
    _bytes: int = field(default=0, init=False)
    _running: bool = field(default=False, init=False)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _backoff: Backoff = field(default_factory=lambda: Backoff(first_s=0.2, longest_s=5.0), init=False)
    _dropped: set[tuple[str, type[Exception]]] = field(default_factory=set, init=False)
    """The verbs and errors that were logged since the Computer became a member."""

    @property
    def waiting(self) -> frozenset[Notification]:
        return frozenset(self._waiting.values())

    def put(self, key: Key, body: bytes) -> None:
        """Send it later; it replaces a waiting one of the same key."""
        known = self._waiting.get(key)
        more = len(body) - (0 if known is None else len(known.body))
        if key.verb == UPDATED and self._bytes + more > MOST_BYTES:
            of = f" of MCP server {key.server!r}" if key.server else ""
            _log.warning("more resources%s change than can be sent one by one: Agents have to subscribe again", of)
            self.missed(key.server)
            return
        self._bytes += more
        self._waiting[key] = Notification(key, body)
        self._run_soon()

    def missed(self, server: str | None = None) -> None:
        """Agents may have missed updates of that MCP server, or of all, and have to subscribe again. Updates that
        wait are dropped: the Agent may be another one by now."""
        self.drop(lambda each: each.key.verb in RESOURCES and server in (None, each.key.server))
        if server is not None and self._bytes > MOST_BYTES:
            self.missed()
            return
        self.put(Key(LIST_CHANGED, server, MISSED), missed_body(self.office, self.computer, server))

    def drop(self, which: Callable[[Notification], bool]) -> None:
        """Drop what waits; what is being sent is not sent again."""
        for each in [each for each in self._waiting.values() if which(each)]:
            self._remove(each)

    def resume(self) -> None:
        self._backoff.reset()
        self._dropped.clear()
        self._run_soon()

    async def flush(self) -> None:
        """Send what waits now. Raises BusError, SmcpError: that one goes to the end, and the rest keeps waiting."""
        async with self._turn:
            for key in list(self._waiting):
                sent = self._waiting.get(key)
                if sent is None:
                    continue  # dropped meanwhile
                try:
                    await self.tell(key.verb, sent.body)
                except (BusError, SmcpError) as error:
                    if isinstance(error, (BusError, *HEALING)) and not isinstance(error, BodyTooLarge):
                        _log.warning("%s could not be sent: %s", key.verb, error)
                        if key in self._waiting:
                            self._waiting[key] = self._waiting.pop(key)
                        raise
                    if (cause := (key.verb, type(error))) not in self._dropped:
                        self._dropped.add(cause)
                        of = f" of MCP server {key.server!r}" if key.server else ""
                        _log.warning("%s%s cannot be sent, and is dropped: %s", key.verb, of, error)
                if self._waiting.get(key) is sent:  # else it was dropped, or replaced
                    self._remove(sent)

    def _remove(self, notification: Notification) -> None:
        del self._waiting[notification.key]
        self._bytes -= len(notification.body)

    def _run_soon(self) -> None:
        if self._waiting and not self._running:
            self._running = True
            self.start(self._run)

    async def _run(self) -> None:
        while self._waiting:
            await asyncio.sleep(GATHER_S)
            if not self.may_tell():
                break
            try:
                await self.flush()
            except (BusError, SmcpError):
                await asyncio.sleep(self._backoff.next())
            else:
                self._backoff.reset()
        self._running = False


def resources_body(
    office: str, computer: str, method: str, more: Mapping[str, object], params: Mapping[str, object] | None = None
) -> bytes:
    """The JSON of `resources/updated` or `resources/list_changed` (`method`); `more` is beside its payload."""
    payload: dict[str, object] = {"jsonrpc": "2.0", "method": f"notifications/resources/{method}"}
    if params is not None:
        payload["params"] = params
    return exact_json.written({"roomId": office, "computerId": computer, **more, "payload": payload})


def missed_body(office: str, computer: str, server: str | None = None) -> bytes:
    """The JSON of the `resources/list_changed` by which Agents subscribe again."""
    named = {} if server is None else {"serverId": server}
    return resources_body(office, computer, "list_changed", {**named, MISSED: True})
