"""nats-py's client with what a bus needs beyond it. The only file that touches nats-py's inside.

Why not the public methods alone (nats-py 2.16):

- Messages pass through one queue and one task per subscription there; here a receiver is called where the message
  comes, so that nothing of an old connection is handled after its end was told, and an answer costs one
  future instead of two queues.
- `publish` may swallow a cancellation while its buffer is full, and keeps unsent commands over a reconnect; here
  writing is synchronous, and what was not sent when the connection broke is forgotten: its senders were told so.
- Any `-ERR` but a permission violation closes that client for good; here it reconnects.
- A late PONG whose waiter has gone kills the read loop there.
- Closing the transport waits there until a dead peer has taken what was written; here it is aborted.
- A server of a `tls://` URL that offers no TLS is told the password all the same there; here it is told nothing.
"""

import asyncio
import logging
import random
import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import ParseResult

from nats import errors as nats_errors
from nats.aio.client import Client, Server
from nats.aio.subscription import Subscription
from nats.protocol.parser import AWAITING_CONTROL_LINE

from smcp_bus.errors import ConnectionLost, NotConnected
from smcp_bus.nats.nodes import Nodes
from smcp_bus.nats.tcp import AbortingTransport
from smcp_bus.nats.wire import Denials, Messages, Receiver

_log = logging.getLogger(__name__)

_REFUSED: Final = re.compile(
    r"authorization violation|authorization failed|authentication (?:expired|revoked)", re.IGNORECASE
)
_GATHERED: Final = 16 * 1024
"""Bytes from which a message is written as it lies in memory, where copying it to one place costs more."""
_CONGESTED: Final = 4 * 1024 * 1024
"""Bytes waiting to be written from which on senders have to wait."""
_RECONNECT_S: Final = (0.05, 0.4)
"""Between two attempts: a random time in this range, so that a thousand clients do not come back at once."""


class NatsClient(Client):
    """One connection to nats-server that comes back by itself.

    Attributes:
        up: connected, subscribed, and told so.
        denials: what nats-server's permissions have refused.
        nodes: of the cluster, as it was told.
    """

    def __init__(
        self,
        on_up: Callable[[], None],
        on_down: Callable[[], None],
        on_denial: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._wire = AbortingTransport(self._take)
        self._transport = self._wire
        self._receivers: dict[int, Receiver] = {}
        self._messages = Messages(self._receivers, lambda: self.up)
        self._waiting: set[asyncio.Future[bool | None]] = set()
        self._on_up = on_up
        self._on_down = on_down
        self._on_denial = on_denial
        self._tried: set[str] = set()
        """The servers (`host:port`) that are not tried again before all others were."""
        self._closed: object = None
        """The socket's stream that was found closed: what it had read before says nothing of a connection."""
        self.denials = Denials()
        self.nodes = Nodes()
        self.up = False

    def choose_server(self, servers: list[Server], _info: dict[str, Any]) -> tuple[Server | None, float]:
        """For `connect(reconnect_to_server_handler=…)`: any server, after a pause with jitter.

        Of several the one that broke comes last, and none is tried again before all others were: each that is dead
        may take until the time-out.
        """
        fresh = [server for server in servers if server.uri.netloc not in self._tried]
        if not fresh:
            self._tried.clear()
            fresh = servers
        chosen = random.choice(fresh)  # noqa: S311 -- spreads load; no secret
        self._tried.add(chosen.uri.netloc)
        return chosen, random.uniform(*_RECONNECT_S)  # noqa: S311 -- as above

    @property
    def server(self) -> ParseResult | None:
        """The URL of the server that is connected to, or that is tried."""
        return None if self._current_server is None else self._current_server.uri

    @property
    def has_other_servers(self) -> bool:
        """Whether there is one to connect to beside that of the connection."""
        return len(self._server_pool) > 1

    # -- sending

    @property
    def congested(self) -> bool:
        """Whether so much waits to be written that a sender should `await room()` first."""
        return self._pending_data_size + self._wire.unwritten > _CONGESTED

    def send(self, subject: str, reply: str, head: bytes, body: bytes | memoryview) -> None:
        """Write one message; it leaves with this round of the loop, together with the others.

        The caller has checked `up`, the size, and that the subjects hold no white space.
        """
        size = len(head) + len(body)
        if head:
            start = b"HPUB %b %b %d %d\r\n" % (subject.encode(), reply.encode(), len(head), size)
        else:
            start = b"PUB %b %b %d\r\n" % (subject.encode(), reply.encode(), size)
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += len(body)
        if size < _GATHERED:
            self._write(b"".join((start, head, body, b"\r\n")))
        else:
            self._write(start + head, body, b"\r\n")

    def _write(self, *parts: bytes | memoryview) -> None:
        if self.up and not self._pending:
            # Not through nats-py's flusher: that is a turn of a task for each message.
            try:
                if len(parts) == 1:
                    self._wire.write(parts[0])  # type: ignore[no-untyped-call]
                else:
                    self._wire.writelines(parts)  # type: ignore[no-untyped-call]
            except RuntimeError:  # uvloop's, where the socket is closed and nats-py has not noticed yet
                self._closed = self._wire.stream
                self._mark_down()
            return
        command = b"".join(parts)
        self._pending.append(command)
        self._pending_data_size += len(command)
        queue = self._flush_queue
        if queue is not None and queue.empty():
            queue.put_nowait(self._loop.create_future())

    async def room(self) -> None:
        """Wait until what was written so far has gone to the socket.

        Raises:
            NotConnected: the connection broke meanwhile.
        """
        queue = self._flush_queue
        if not self.up or queue is None:
            raise NotConnected("not connected to nats-server")
        written: asyncio.Future[bool | None] = self._loop.create_future()
        self._waiting.add(written)
        try:
            await queue.put(written)
            if await written is False:
                raise NotConnected("not connected to nats-server")
            await self._wire.drain()  # type: ignore[no-untyped-call]
        except OSError:
            raise NotConnected("not connected to nats-server") from None
        finally:
            self._waiting.discard(written)

    async def round_trip(self) -> None:
        """Wait until nats-server has taken all that was sent before.

        Raises:
            NotConnected: it is not connected now.
            ConnectionLost: the connection broke meanwhile.
        """
        if not self.up:
            raise NotConnected("not connected to nats-server")
        pong: asyncio.Future[bool | None] = self._loop.create_future()
        self._waiting.add(pong)
        try:
            await self._send_ping(pong)
            if await pong is False:
                raise ConnectionLost("the connection to nats-server broke")
        finally:
            self._waiting.discard(pong)

    # -- subscribing

    def attach(self, subject: str, queue: str, receive: Receiver) -> int:
        """Subscribe; again after every reconnect, until `detach`. Returns the subscription's number."""
        self._sid += 1
        sid = self._sid
        self._receivers[sid] = receive
        self._subs[sid] = Subscription(self, sid, subject, queue=queue)
        self._write(f"SUB {subject} {queue} {sid}\r\n".encode())
        return sid

    def unsubscribe_at_server(self, sid: int) -> None:
        """Tell nats-server to send no more; what is on its way still arrives."""
        if self.up:
            self._write(f"UNSUB {sid}\r\n".encode())

    def detach(self, sid: int) -> None:
        """Forget the subscription."""
        self._receivers.pop(sid, None)
        self._subs.pop(sid, None)

    # -- what nats-py calls

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        self.nodes.hear(info)
        await super()._process_info(info, initial_connection)
        if addresses := info.get("connect_urls"):
            # nats-py keeps for ever what it was told once; each attempt with what is dead may take until the time-out
            self._server_pool[:] = [
                server
                for server in self._server_pool
                if not server.discovered or server is self._current_server or server.uri.netloc in addresses
            ]

    def _connect_command(self) -> bytes:
        if self.server is not None and self.server.scheme == "tls" and not self._wire.encrypted:
            raise nats_errors.Error("nats: the server has no TLS, and its URL begins with tls://")
        command: bytes = super()._connect_command()
        return command

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        if not self.up:
            self._mark_up()
        receive = self._receivers.get(sid)
        if receive is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        receive(subject, reply, headers or b"", data)

    def _take(self, came: bytes) -> bytes:
        parser = self._ps
        if parser.buf or parser.state != AWAITING_CONTROL_LINE:
            return came  # it goes on with what nats-py has begun to read
        return self._messages.take(came)

    async def _process_op_err(self, e: Exception) -> None:
        self._mark_down()
        await super()._process_op_err(e)

    async def _process_err(self, err_msg: str) -> None:
        if "permissions violation" in err_msg:
            self.denials.hear(err_msg)
            self._on_denial(err_msg)
            return
        error = nats_errors.Error(f"nats: {err_msg}")
        if not is_refusal(err_msg):  # that is said once it has answered the next attempt, too
            _log.error("nats-server said: %s", err_msg)
        await self._process_op_err(error)

    async def _send_ping(self, future: "asyncio.Future[Any] | None" = None) -> None:
        # Through the buffer, where nats-py writes straight to the transport: a ping must not overtake what was
        # sent before it, nor another ping.
        self._pongs.append(self._loop.create_future() if future is None else future)
        self._write(b"PING\r\n")

    async def _process_pong(self) -> None:
        if not self._pongs:
            return
        pong = self._pongs.pop(0)
        if not pong.done():
            pong.set_result(None)
        self._pongs_received += 1
        self._pings_outstanding = 0

    async def reconnected(self) -> None:
        """For `connect(reconnected_cb=…)`."""
        self._mark_up()

    async def disconnected(self) -> None:
        """For `connect(disconnected_cb=…)`."""
        self._mark_down()

    def _mark_up(self) -> None:
        # The first message of a new connection may come before nats-py says that it has reconnected. By then the
        # subscriptions have been written: nats-py does so without a pause after it sets its status.
        if not self.up and self._status == Client.CONNECTED and self._wire.stream is not self._closed:
            self.up = True
            self._on_up()

    def _mark_down(self) -> None:
        if not self.up:
            return
        self.up = False
        self._tried = set() if self.server is None else {self.server.netloc}
        self._messages.forget()
        self._pending.clear()
        self._pending_data_size = 0
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(False)
        self._on_down()

    async def shut(self, timeout: float) -> None:
        """Send what is buffered, at most `timeout` seconds long, and close for good."""
        try:
            async with asyncio.timeout(timeout):
                if self.up:
                    await self.round_trip()
        except (TimeoutError, NotConnected, ConnectionLost):
            pass
        self._mark_down()
        # Nothing is left to write: nats-py would wait for a dead peer to take it.
        self._pending.clear()
        self._pending_data_size = 0
        await self.close()


def is_refusal(text: str) -> bool:
    """Whether nats-server says with `text` that it does not take the credential (any more)."""
    return _REFUSED.search(text) is not None
