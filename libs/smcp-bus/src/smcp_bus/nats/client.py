"""One connection to nats-server that comes back by itself: its servers, its watchers, subscribing and sending."""

import asyncio
import json
import logging
import random
import re
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final
from urllib.parse import ParseResult, unquote, urlsplit

from nats import errors as nats_errors
from nats.aio.client import Client, Server
from nats.js import JetStreamContext

from smcp_bus import bus
from smcp_bus.bus import BusError, ConnectionState, NotConnected
from smcp_bus.nats.config import BusConfig, renewed
from smcp_bus.nats.socket import Socket
from smcp_bus.nats.wire import Receiver

_log = logging.getLogger(__name__)

_REFUSAL: Final = re.compile(
    r"authorization violation|authorization failed|authentication (?:expired|revoked)", re.IGNORECASE
)
_REFUSED: Final = "refused"
_FIRST_NUMBER: Final = 1_000_000_000
"""Of the bus's own subscriptions; nats-py numbers its from 1."""
LONGEST_SUBJECT: Final = 3500
"""Characters. nats-server disconnects a client whose line has more than 4096."""
MAX_CHUNK: Final = 512 * 1024
"""Bytes of a body that go in one message; a larger one goes in chunks."""
_HEADROOM: Final = 16 * 1024
"""Bytes of a message that are reserved for its headers."""
_CONGESTED: Final = 4 * 1024 * 1024
"""Bytes waiting to be written from which on senders have to wait."""
_RECONNECT_S: Final = (0.05, 0.4)
"""Between two attempts: a random time in this range, so that a thousand clients do not come back at once."""
_REFUSED_PAUSE_S: Final = (0.2, 0.8)
"""The same where a credential was refused."""
_NO_CREDENTIAL: Final = "asks for a credential, and there is none (SMCP_NATS_CREDS)"
_SLOW_PAUSE_S: Final = 0.5
"""Messages that are dropped within it are reported once."""
FLUSH_S: Final = 5.0
"""How long `publish` waits for room on a congested connection, and `flush` for nats-server."""
_LAST_WORDS_S: Final = 1.0
"""How long closing waits for nats-server to take what was sent."""


class NatsClient:
    """nats-py's connection, its reconnecting and its JetStream, with the bus's own subscriptions and sending.

    Args:
        lost: called when the connection broke, after the watchers.
        denied: called with nats-server's words (in lower case) when its permissions refused something.

    Attributes:
        node_left_at: when it was heard last that a node of NATS' cluster is there no more (loop time); None: never, or
            NATS does not say. Who was connected to it serves nothing until it has found another one.
        max_payload: bytes of a message that nats-server takes.
        chunk: bytes of a body that go in one message to it.
    """

    def __init__(self, config: BusConfig, *, lost: Callable[[], None], denied: Callable[[str], None]) -> None:
        self.config = config
        self._loop = asyncio.get_running_loop()
        self._on_lost = lost
        self._on_denied = denied
        self._receivers: dict[int, Receiver] = {}
        self._subscribed: dict[int, bytes] = {}
        self._number = _FIRST_NUMBER
        self._watchers: list[bus.Watcher] = []
        self._slow_timer: asyncio.TimerHandle | None = None
        self._standing = asyncio.Event()
        self._opening: asyncio.Timeout | None = None
        """When the first connection is given up, while it is made."""
        self._closing = False
        self._last_error: Exception | None = None
        self._trouble = ""
        """The last logged reason for having no connection; empty while there is one."""
        self._tried: set[str] = set()
        """The servers (`host:port`) that are not tried again before all others were."""
        self._configured: frozenset[str] | None = None
        self._advertised: frozenset[str] = frozenset()
        """Addresses of the cluster's nodes, as the server said last (`connect_urls` of its INFO)."""
        self._socket = Socket(self._receivers, self._came_up, self._went_down, self._heard)
        self._nats = Client()
        self._socket.carry(self._nats)
        self.node_left_at: float | None = None
        self.connections = 0
        """How many there were: nats-server forgets with each what may be answered."""
        self.max_payload = self._nats.max_payload
        self.chunk = MAX_CHUNK

    @property
    def server(self) -> ParseResult | None:
        return self._socket.server

    @property
    def connected(self) -> bool:
        """Connected, subscribed, and the watchers know it."""
        return self._socket.up

    @property
    def problem(self) -> str | None:
        """Why it is not connected: a few words for `/readyz`, without names or addresses."""
        if self.connected:
            return None
        return "nats-server refuses the credential" if self._trouble == _REFUSED else "not connected"

    def jetstream(self, *, timeout: float = 5.0) -> JetStreamContext:
        """JetStream over the same connection, for the registry alone. `timeout` is that of each request (seconds)."""
        return self._nats.jetstream(timeout=timeout)

    async def connect(self, inbox_prefix: str) -> None:
        """Connect. A nats-server that refuses the credential is asked again until it takes it.

        Raises:
            OSError: the file of certificates cannot be read (`ssl.SSLError`: it holds none).
            NotConnected: nothing answered within the time that the configuration gives; says where and why.
        """
        config = self.config
        options: dict[str, Any] = {
            "servers": config.url.split(","),
            "name": config.name,
            "error_cb": self._error,
            "reconnect_to_server_handler": self.choose_server,
            "connect_timeout": 2,
            "reconnect_time_wait": 0.1,
            "max_reconnect_attempts": -1,
            "ping_interval": config.ping_interval,
            "max_outstanding_pings": 2,
            "pending_size": 0,  # nothing is kept while there is no connection
            "inbox_prefix": inbox_prefix,
        }
        if config.ca is not None:
            options["tls"] = ssl.create_default_context(cafile=config.ca)
        if config.credentials is not None:
            credentials = config.credentials
            options.update(user=lambda: renewed(credentials).login, password=lambda: renewed(credentials).secret)
        elif any(urlsplit(url).password is not None for url in config.url.split(",")):
            # asked for each attempt, which may go to any of the servers; nats-py sends them as they stand in the URL
            options.update(
                user=lambda: unquote(getattr(self.server, "username", None) or ""),
                password=lambda: unquote(getattr(self.server, "password", None) or ""),
            )
        try:
            async with asyncio.timeout(config.connect_timeout) as self._opening:
                await self._nats.connect(**options)
                while True:
                    await self._standing.wait()
                    bus.raise_if_cancelled()
                    with suppress(NotConnected, bus.ConnectionLost):  # it broke: wait for another one
                        await self.flush(config.connect_timeout)
                        break
        except (TimeoutError, BusError, nats_errors.Error) as error:
            await self._socket.end(self._nats)
            cause = bus.describe(self._last_error or error).removeprefix("nats: ")
            why = f"could not be reached within {config.connect_timeout:g} s: {cause}"
            raise NotConnected(
                f"nats-server at {config.hosts} {self._objection if self._trouble == _REFUSED else why}"
            ) from error
        except BaseException:
            self._closing = True  # it is given up by the caller: no word about a connection that broke
            await self._socket.end(self._nats)
            raise
        finally:
            self._opening = None

    async def disconnect(self) -> None:
        self._closing = True
        if self._slow_timer is not None:
            self._slow_timer.cancel()
        with suppress(BusError):
            await self.flush(_LAST_WORDS_S)
        await self._socket.end(self._nats)

    def _came_up(self) -> None:
        self.connections += 1
        self.max_payload = most = self._nats.max_payload
        self.chunk = min(MAX_CHUNK, max(most - _HEADROOM, most // 2))
        self._socket.send(b"".join(self._subscribed.values()))
        self._standing.set()
        if self._trouble:
            _log.info("connected to nats-server" if self._opening else "connected to nats-server again")
        self._last_error, self._trouble = None, ""
        self._tell(ConnectionState.UP)

    def _went_down(self) -> None:
        self._standing.clear()
        self._tried = set() if self.server is None else {self.server.netloc}
        if not self._closing:
            _log.warning("the connection to nats-server broke; connecting again")
            self._trouble = "broke"
        self._tell(ConnectionState.DOWN)
        self._on_lost()

    async def _error(self, error: Exception) -> None:
        if isinstance(error, nats_errors.SlowConsumerError):
            _log.error("nats-py dropped a message: %s", error)
            self.dropped()
            return
        if self._last_error is None or not isinstance(error, TimeoutError):  # a time-out gives no reason
            self._last_error = error
        _log.debug("nats-py: %r", error)
        opening = self._opening
        if not _REFUSAL.search(str(error)):
            if self._trouble == _REFUSED:
                self._trouble = "unreachable"
            return
        if self._trouble != _REFUSED and (self._trouble or opening is not None):
            if self.config.patient:  # one line for each turn of an outage: there are several attempts a second
                words = "nats-server at %s %s; connecting again until it is taken"
                _log.warning(words, self.config.hosts, self._objection)
            self._trouble = _REFUSED
        if opening is not None and not opening.expired():
            # it is there: that was waited for
            opening.reschedule(self._loop.time() + self.config.connect_timeout * self.config.patient)
            await asyncio.sleep(random.uniform(*_REFUSED_PAUSE_S))  # noqa: S311 -- spreads load; no secret

    @property
    def _objection(self) -> str:
        credentials = self.config.credentials
        return f"refuses {credentials}" if credentials else _NO_CREDENTIAL

    def watch(self, watcher: bus.Watcher) -> Callable[[], None]:
        self._watchers.append(watcher)

        def stop() -> None:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

        return stop

    def dropped(self) -> None:
        """A message was dropped on the way in: tell the watchers soon, once for all that are dropped until then."""
        if self._slow_timer is None or self._slow_timer.when() <= self._loop.time():
            self._slow_timer = self._loop.call_later(_SLOW_PAUSE_S, self._tell, ConnectionState.SLOW)

    def _tell(self, what: ConnectionState) -> None:
        for watcher in list(self._watchers):
            try:
                watcher(what)
            except Exception:  # noqa: BLE001 -- one that fails must not keep the others from closing their gates
                _log.exception("a watcher of the connection failed")

    def choose_server(self, servers: list[Server], _info: dict[str, Any]) -> tuple[Server | None, float]:
        """For nats-py's `reconnect_to_server_handler`: any server, after a pause with jitter.

        Of several the one that broke comes last, and none is tried again before all others were: each that is dead
        may take until the time-out. nats-py never forgets a node, so nodes that left are skipped.
        """
        there = [server for server in servers if self._is_there(server.uri)] or servers
        fresh = [server for server in there if server.uri.netloc not in self._tried]
        if not fresh:
            self._tried.clear()
            fresh = there
        chosen = random.choice(fresh)  # noqa: S311 -- spreads load; no secret
        self._tried.add(chosen.uri.netloc)
        return chosen, random.uniform(*_RECONNECT_S)  # noqa: S311 -- as above

    def _is_there(self, uri: ParseResult) -> bool:
        netloc = uri.netloc
        return netloc in (self._configured or ()) or netloc in self._advertised or uri == self.server

    def _heard(self, line: bytes) -> None:
        if not line.startswith(b"INFO "):
            self._objected(line[len(b"-ERR") :].decode("utf-8", "replace").strip().lower())
            return
        if self._configured is None:  # nats-py has not read it yet, and knows what was configured alone
            self._configured = frozenset(uri.netloc for uri in self._nats.servers)
        try:
            addresses = frozenset(json.loads(line[len(b"INFO ") :]).get("connect_urls") or ())
        except ValueError:
            return  # nats-py says what is wrong with it
        if not addresses:
            return  # a server that stands alone, or that tells no addresses
        if self._advertised - addresses:
            self.node_left_at = self._loop.time()
        self._advertised = addresses

    def _objected(self, text: str) -> None:
        if "permissions violation" in text:
            self._on_denied(text)
            return
        if not _REFUSAL.search(text):  # that is said once it has answered the next attempt, too
            _log.error("nats-server said: %s", text)
        self._socket.close()

    @property
    def congested(self) -> bool:
        return self._socket.unwritten > _CONGESTED

    def check(self, subject: str, size: int, head: int) -> None:
        """Raise as `Bus.publish` where so many bytes cannot go to `subject` now, and ValueError where that is none."""
        if not self._socket.up:
            raise NotConnected("not connected to nats-server")
        if subject.split() != [subject] or len(subject) > LONGEST_SUBJECT:
            raise ValueError(f"a subject has 1 to {LONGEST_SUBJECT} characters, and no white space")
        if head + size > self.max_payload:
            raise bus.BodyTooLarge(size, self.max_payload - head)

    def send(self, subject: str, reply: str, head: bytes, body: bytes | memoryview) -> None:
        """Write one message that was checked, with this round of the loop. Dropped where there is no connection."""
        if not self._socket.up:
            return
        size = len(head) + len(body)
        if head:
            start = f"HPUB {subject} {reply} {len(head)} {size}\r\n".encode()
        else:
            start = f"PUB {subject} {reply} {size}\r\n".encode()
        self._socket.send(start, head, body, b"\r\n")

    def send_later(self, call: Callable[[], None]) -> None:
        """Have `call` send when this round of the loop ends; that is written before what is sent after this."""
        self._socket.send_later(call)

    async def wait_writable(self, deadline: float) -> None:
        """Wait until most of what was written has gone to the kernel. Raises NotConnected: the connection broke, or
        `deadline` (loop time) has passed."""
        try:
            async with asyncio.timeout_at(deadline):
                while self.congested:
                    if not await self._socket.wait_writable():
                        raise NotConnected("not connected to nats-server")
        except TimeoutError as error:
            raise NotConnected("nats-server does not take what is sent") from error

    async def flush(self, timeout: float = FLUSH_S) -> None:
        """Wait until nats-server has taken all that was sent before. Raises NotConnected, ConnectionLost,
        RequestTimedOut: it may not have."""
        if not self.connected:
            raise NotConnected("not connected to nats-server")
        try:
            async with asyncio.timeout(timeout):
                if not await self._socket.ping():
                    raise bus.ConnectionLost("the connection to nats-server broke")
        except TimeoutError as error:
            raise bus.RequestTimedOut("nats-server did not answer in time") from error

    def attach(self, subject: str, queue: str, receive: Receiver) -> int:
        """Subscribe; again after every reconnect, until `detach`. Returns the subscription's number."""
        self._number += 1
        number = self._number
        self._receivers[number] = receive
        self._subscribed[number] = line = f"SUB {subject} {queue} {number}\r\n".encode()
        if self.connected:
            self._socket.send(line)
        return number

    def unsubscribe_at_server(self, number: int) -> None:
        """Tell nats-server to send no more; what is on its way still arrives."""
        if self.connected:
            self._socket.send(f"UNSUB {number}\r\n".encode())

    def detach(self, number: int) -> None:
        self._receivers.pop(number, None)
        self._subscribed.pop(number, None)
