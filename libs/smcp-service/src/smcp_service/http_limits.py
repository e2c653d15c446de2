"""Limits what HTTP clients may cost before they are authenticated, by a `Gate` before each connection.

`http_server` puts gates before aiohttp, `smcp_mcp` before uvicorn. A connection is unauthenticated until the
application calls `let_in` (for good) or `of_member` (for one request).
"""

import asyncio
import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, cast

from aiohttp import web

from smcp_service.settings import KIB, is_loopback

CONNECTION_BYTES: Final = 64 * KIB
"""Unanswered bytes of one unauthenticated connection: a token has 8 KiB at most, and a browser's headers no more."""
PER_ADDRESS: Final = 256
"""Unauthenticated connections from one address: many more than a proxy, or a computer room, begins in one moment."""
TOTAL_BYTES: Final = PER_ADDRESS * CONNECTION_BYTES
"""Unanswered bytes of all such connections together. Above it the largest is closed."""
HEAD_S: Final = 10.0
"""How long a request's headers may take. Those of a slow line take a second."""
IDLE_S: Final = 75.0
"""How long a connection may be silent between two requests: proxies reuse theirs for 60 s (nginx)."""
SWEEP_S: Final = 1.0
STEP: Final = 256
"""Bytes of an unauthenticated connection that are read in one round of the event loop. They may ask for ten times 0.4
ms in the next rounds, and a call of a member takes some ten."""
AT_ONCE: Final = 4
"""How many addresses have such a connection read in one round."""
CHUNK: Final = 128
"""Bytes of data for each chunk of a body, on average: HTTP parsers take some 12 µs for a chunk, however short it is."""
CHUNKS: Final = 256
"""Chunks beyond that which a connection may send: 3 ms."""

BUSY: Final = (
    b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n"
    b"Cache-Control: no-store\r\n\r\n"
)
_CHUNK: Final = re.compile(rb"\n[0-9A-Fa-f]++(?:[ \t;](?:[^\r\n]|\r(?!\n))*+)?\r\n")
"""The line before a chunk (RFC 9112, 7.1); h11 takes a CR in its extension. A body of JSON has no such lines."""
_HOST: Final = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^\s:@/\[\]]+)(?::\d{1,5})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRules:
    hosts: Collection[str] | None = None
    """Names in lower case that `Host` may say beside this machine's loopback; None: any."""
    origins: Collection[str] = ()
    """Origins of pages that may connect, beside the URL's own if its host is in `hosts` or loopback."""
    per_address: int = PER_ADDRESS
    counted_as: Callable[[str], str | None] = str
    """What an address counts as; None: not at all, since it is a proxy before many clients."""
    turned_away: Callable[[web.Request, int, str], None] = lambda request, status, why: None
    """Called with a request that is refused for its `Host`, `Origin` or `Content-Encoding`."""


class UnauthenticatedConnections:
    def __init__(self, rules: EdgeRules) -> None:
        self._per_address = rules.per_address
        self.counted_as = rules.counted_as
        self._gates: set[Gate] = set()
        self._by_address: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._unread: dict[object, deque[Gate]] = {}
        """Connections on which something waits to be read, by address; in the order of their turns."""
        self.bytes = 0
        self.closed: Counter[str] = Counter({"bytes": 0, "late": 0, "connections": 0})
        """How many were closed, by what they had too much of."""

    def __len__(self) -> int:
        return len(self._gates)

    def enter(self, gate: "Gate", *, checked: bool) -> bool:
        """Whether it may come in. `checked`: against the number of connections from its address."""
        if gate in self._gates or gate.is_closing:  # its end may come before that of a request, and it leaves once
            return True
        address = gate.address
        if address is not None:
            if checked and 0 < self._per_address <= self._by_address[address]:
                self.closed["connections"] += 1
                return False
            self._by_address[address] += 1
        self._gates.add(gate)
        if self._timer is None:  # without such connections nothing wakes the process
            self._timer = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)
        return True

    def leave(self, gate: "Gate") -> None:
        if gate not in self._gates:
            return
        self._gates.discard(gate)
        self.hold(gate, -gate.held)
        if gate.address is not None:
            self._by_address[gate.address] -= 1
            if not self._by_address[gate.address]:
                del self._by_address[gate.address]

    def hold(self, gate: "Gate", size: int) -> None:
        """That many bytes more. Above the limit of all, the largest connection is closed."""
        gate.held += size
        self.bytes += size
        if self.bytes > TOTAL_BYTES:
            max(self._gates, key=lambda each: each.held).close("bytes")

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def have_read(self, gate: "Gate") -> None:
        """Have what came on it read when it is its turn, and the turn of its address."""
        if not self._unread:
            asyncio.get_running_loop().call_soon(self._read_next)
        self._unread.setdefault(gate.address or gate, deque()).append(gate)

    def _read_next(self) -> None:
        for address, gates in list(islice(self._unread.items(), AT_ONCE)):
            del self._unread[address]
            if gates[0].read(STEP):
                gates.append(gates[0])
            gates.popleft()
            if gates:
                self._unread[address] = gates
        if self._unread:
            asyncio.get_running_loop().call_soon(self._read_next)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for gate in [each for each in self._gates if each.deadline <= now]:
            gate.close("bytes" if gate.over else "late")
        self._timer = loop.call_later(SWEEP_S, self._sweep) if self._gates else None


class Gate(asyncio.Protocol):
    """Between the transport of one connection and the protocol of the HTTP server, as long as it is unauthenticated."""

    def __init__(self, make: Callable[[], asyncio.Protocol], unauthenticated: UnauthenticatedConnections) -> None:
        self._make = make
        self.inner = asyncio.Protocol()
        """aiohttp's; one that does nothing for a connection that is refused at once."""
        self._unauthenticated = unauthenticated
        self._transport: asyncio.Transport
        self._answering = False
        self._member = self._was_member = False
        self._paused = False
        self._unread = bytearray()
        self.over = False
        """Too much has come, and it may be a member's."""
        self.address: str | None = None
        self._chunks = CHUNKS  # that may come beyond those that are large enough
        self.held = 0
        """Bytes that have come since everything was answered."""
        self.deadline = 0.0

    @property
    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.address = self._unauthenticated.counted_as(str(peer[0]) if isinstance(peer, tuple) and peer else "")
        if not self._unauthenticated.enter(self, checked=True):
            self._transport.write(BUSY)
            self._transport.close()
            return
        self._wait(HEAD_S)
        self.inner = inner = self._make()
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]
        self.eof_received = inner.eof_received  # type: ignore[method-assign]
        inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if not self._takes_chunks(data):
            self.close("bytes")
        if self._transport.is_closing():
            return
        if self._member:
            self.inner.data_received(data)
            return
        if not self.held and not self._answering:
            self._wait(HEAD_S)
        self._unauthenticated.hold(self, len(data))
        self._keep(data)
        if self.held <= CONNECTION_BYTES:
            return
        if self._answering:
            self.close("bytes")
        elif not self._transport.is_closing():
            # It may be a member's request: that is known when its headers are read, in the next turns of the loop.
            # They are read now: nothing large is kept until its turn.
            self.over = True
            self._wait(SWEEP_S)
            self.read(len(self._unread))
            if self._transport.is_reading():  # else aiohttp has paused it, and resumes it
                self._paused = True
                self._transport.pause_reading()

    def _keep(self, data: bytes) -> None:
        if not self._unread and not self._was_member:
            self._unauthenticated.have_read(self)
        self._unread += data
        if self._was_member:
            self.read(len(self._unread))

    def read(self, most: int) -> bool:
        """Read so much of what has come; returns whether there is more."""
        data = bytes(self._unread[:most])
        del self._unread[:most]  # without a copy of what is left
        if data and not self._transport.is_closing():
            self.inner.data_received(data)
        return bool(self._unread) and not self._transport.is_closing()

    def _takes_chunks(self, data: bytes) -> bool:
        """Whether its chunks are not too many and too small: all that come together are parsed in one go."""
        most = self._chunks + len(data) // CHUNK
        here = sum(1 for _ in islice(_CHUNK.finditer(data), most + 1))
        self._chunks = min(most - here, CHUNKS)
        return self._chunks >= 0

    def begin(self, *, member: bool) -> None:
        self._answering = True
        self._member = member
        if member:
            self._was_member = True
            self._unauthenticated.leave(self)
            self._resume()
        else:
            self._unauthenticated.enter(self, checked=False)
        if not self.over:  # else the time in which it may be refused goes on
            self.deadline = float("inf")

    def end(self) -> None:
        """The request is answered. An unauthenticated request that was too large is the last one."""
        self._answering = False
        if self.over:
            self._wait(SWEEP_S)
        else:
            self._unauthenticated.hold(self, len(self._unread) - self.held)
            self._wait(IDLE_S)

    def idle(self) -> None:
        """All requests are answered: the connection counts as unauthenticated until a member's next request."""
        self._member = False
        self.end()
        if not self._unauthenticated.enter(self, checked=True):
            self._transport.close()

    def let_in(self) -> None:
        """From now on the transport and aiohttp's protocol are connected directly."""
        self._unauthenticated.leave(self)
        self._transport.set_protocol(self.inner)
        self._resume()

    def close(self, why: str) -> None:
        if not self._transport.is_closing():
            self._unauthenticated.closed[why] += 1
        self._unauthenticated.leave(self)
        self._transport.abort()  # also if it waits for its client to read what was written: for ever

    def connection_lost(self, exc: Exception | None) -> None:
        self._unauthenticated.leave(self)
        self.inner.connection_lost(exc)

    def _wait(self, seconds: float) -> None:
        self.deadline = asyncio.get_running_loop().time() + seconds

    def _resume(self) -> None:
        self.over = False
        self.read(len(self._unread))
        if self._paused:
            self._paused = False
            self._transport.resume_reading()


def let_in(transport: asyncio.BaseTransport | None) -> None:
    """This connection is a member's, for good: nothing of this module bounds it any more. Idempotent."""
    if (gate := gate_of(transport)) is not None:
        gate.let_in()


def of_member(request: web.Request) -> None:
    """This request is a member's: it may be as large as the application wants."""
    if (gate := gate_of(request.transport)) is not None:
        gate.begin(member=True)


def put_before(transport: asyncio.BaseTransport, make: Callable[[asyncio.Protocol], asyncio.Protocol]) -> None:
    """Put a protocol between this connection, which is not let in yet, and aiohttp's, which `make` is given."""
    if (gate := gate_of(transport)) is not None:
        gate.inner = make(gate.inner)


def gate_of(transport: asyncio.BaseTransport | None) -> Gate | None:
    gate = None if transport is None else transport.get_protocol()
    return gate if isinstance(gate, Gate) else None


def forbidden_header(
    headers: Mapping[str, str], hosts: Collection[str] | None, origins: Collection[str]
) -> tuple[str, str] | None:
    """The header because of which a request is refused (`Host` or `Origin`), and why; see `EdgeRules`."""
    host, origin = headers.get("Host", "").lower(), headers.get("Origin", "").lower()
    named = _HOST.fullmatch(host)
    is_known = named is not None and (is_loopback(named["name"]) or named["name"] in (hosts or ()))
    if hosts is not None and not is_known:
        return "Host", "Host: this name is not allowed: see SMCP_ALLOWED_HOSTS"
    # websocket-client sends the URL that it connects to; by an unknown name it may be a page's (DNS rebinding)
    is_own = is_known and origin in (f"http://{host}", f"https://{host}")
    if "Origin" in headers and not is_own and origin not in origins:
        return "Origin", "Origin: pages of that origin may not connect: see SMCP_ALLOWED_ORIGINS"
    return None
