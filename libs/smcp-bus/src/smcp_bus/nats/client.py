"""One connection to nats-server that comes back by itself: its servers, the bus's subscriptions, and sending."""

import asyncio
import json
import logging
import random
import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import ParseResult

from nats.aio.client import Client, Server
from nats.js import JetStreamContext

from smcp_bus.errors import ConnectionLost, NotConnected
from smcp_bus.nats.socket import Socket
from smcp_bus.nats.wire import Denials, Receiver

_log = logging.getLogger(__name__)

_REFUSED: Final = re.compile(
    r"authorization violation|authorization failed|authentication (?:expired|revoked)", re.IGNORECASE
)
_FIRST_NUMBER: Final = 1_000_000_000
"""Of the bus's subscriptions on this connection; nats-py numbers its own from 1."""
_GATHERED: Final = 16 * 1024
"""Bytes from which a message is written as it lies in memory, where copying it to one place costs more."""
_CONGESTED: Final = 4 * 1024 * 1024
"""Bytes waiting to be written from which on senders have to wait."""
_RECONNECT_S: Final = (0.05, 0.4)
"""Between two attempts: a random time in this range, so that a thousand clients do not come back at once."""


class NatsClient:
    """nats-py's connection, its reconnecting and its JetStream, with the bus's own subscriptions and sending.

    Attributes:
        denials: what nats-server's permissions have refused.
        node_left_at: when it was heard last that a node of the cluster is there no more (loop time); None: never, or
            the server stands alone or tells no addresses (`no_advertise`).
    """

    def __init__(
        self, on_up: Callable[[], None], on_down: Callable[[], None], on_denial: Callable[[str], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._receivers: dict[int, Receiver] = {}
        self._subscribed: dict[int, bytes] = {}
        self._number = _FIRST_NUMBER
        self._on_up = on_up
        self._on_down = on_down
        self._on_denial = on_denial
        self._standing = asyncio.Event()
        self._tried: set[str] = set()
        """The servers (`host:port`) that are not tried again before all others were."""
        self._configured: frozenset[str] | None = None
        self._advertised: frozenset[str] = frozenset()
        """Addresses of the cluster's nodes, as the server said last (`connect_urls` of its INFO)."""
        self._socket = Socket(self._receivers, self._came_up, self._went_down, self._heard)
        self._nats = Client()
        self._socket.carry(self._nats)
        self.denials = Denials()
        self.node_left_at: float | None = None

    # -- its life

    async def connect(self, **options: Any) -> None:
        """As nats-py's `connect`; returns when messages can be sent."""
        await self._nats.connect(reconnect_to_server_handler=self.choose_server, **options)
        await self._standing.wait()

    async def shut(self, timeout: float) -> None:
        """Send what is buffered, at most `timeout` seconds long, and close for good."""
        try:
            async with asyncio.timeout(timeout):
                if self.up:
                    await self.round_trip()
        except (TimeoutError, NotConnected, ConnectionLost):
            pass
        await self._socket.end(self._nats)

    @property
    def up(self) -> bool:
        """Connected, subscribed, and told so."""
        return self._socket.up

    @property
    def max_payload(self) -> int:
        return self._nats.max_payload

    def jetstream(self) -> JetStreamContext:
        return self._nats.jetstream()

    def _came_up(self) -> None:
        self._socket.send(b"".join(self._subscribed.values()))
        self._standing.set()
        self._on_up()

    def _went_down(self) -> None:
        self._standing.clear()
        self._tried = set() if self.server is None else {self.server.netloc}
        self._on_down()

    # -- the servers

    @property
    def server(self) -> ParseResult | None:
        return self._socket.server

    @property
    def servers(self) -> list[ParseResult]:
        """Those that are tried when the connection breaks: the configured ones, and the nodes that are there now."""
        return [uri for uri in self._nats.servers if self._is_there(uri)]

    def choose_server(self, servers: list[Server], _info: dict[str, Any]) -> tuple[Server | None, float]:
        """For nats-py's `reconnect_to_server_handler`: any server, after a pause with jitter.

        Of several the one that broke comes last, and none is tried again before all others were: each that is dead
        may take until the time-out. nats-py keeps for ever what it was told once, so nodes that left are skipped.
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
            self._refused(line[len(b"-ERR") :].decode("utf-8", "replace").strip().lower())
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

    def _refused(self, text: str) -> None:
        if "permissions violation" in text:
            self.denials.hear(text)
            self._on_denial(text)
            return
        if not is_refusal(text):  # that is said once it has answered the next attempt, too
            _log.error("nats-server said: %s", text)
        self._socket.close()

    # -- sending

    @property
    def congested(self) -> bool:
        return self._socket.unwritten > _CONGESTED

    def send(self, subject: str, reply: str, head: bytes, body: bytes | memoryview) -> None:
        """Write one message; it leaves with this round of the loop, together with the others.

        The caller has checked `up`, the size, and that the subjects hold no white space.
        """
        size = len(head) + len(body)
        if head:
            start = b"HPUB %b %b %d %d\r\n" % (subject.encode(), reply.encode(), len(head), size)
        else:
            start = b"PUB %b %b %d\r\n" % (subject.encode(), reply.encode(), size)
        if size < _GATHERED:
            self._socket.send(b"".join((start, head, body, b"\r\n")))
        else:
            self._socket.send(start + head, body, b"\r\n")

    async def room(self) -> None:
        """Wait until most of what was written has gone to the kernel.

        Raises:
            NotConnected: the connection broke meanwhile.
        """
        if not await self._socket.room():
            raise NotConnected("not connected to nats-server")

    async def round_trip(self) -> None:
        """Wait until nats-server has taken all that was sent before.

        Raises:
            NotConnected: it is not connected now.
            ConnectionLost: the connection broke meanwhile.
        """
        if not self.up:
            raise NotConnected("not connected to nats-server")
        if not await self._socket.ping():
            raise ConnectionLost("the connection to nats-server broke")

    # -- subscribing

    def attach(self, subject: str, queue: str, receive: Receiver) -> int:
        """Subscribe; again after every reconnect, until `detach`. Returns the subscription's number."""
        self._number += 1
        number = self._number
        self._receivers[number] = receive
        self._subscribed[number] = line = f"SUB {subject} {queue} {number}\r\n".encode()
        if self.up:
            self._socket.send(line)
        return number

    def unsubscribe_at_server(self, number: int) -> None:
        """Tell nats-server to send no more; what is on its way still arrives."""
        if self.up:
            self._socket.send(f"UNSUB {number}\r\n".encode())

    def detach(self, number: int) -> None:
        self._receivers.pop(number, None)
        self._subscribed.pop(number, None)


def is_refusal(text: str) -> bool:
    """Whether nats-server says with `text` that it does not take the credential (any more)."""
    return _REFUSED.search(text) is not None
