"""The addresses of clients, and what one address may do before it is authenticated: how many connections it may have,
and how often it may present a wrong token.

The bytes of such connections, and the TCP connections below them, are bounded by `smcp_service.http_limits`.
"""

import asyncio
import ipaddress
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Final

from aiohttp import web

LIMIT: Final = 20
WINDOW_S: Final = 60.0
"""`LIMIT` in this time stop guessing, and not our clients: each tries its token at most six
times in a minute."""
ADDRESSES: Final = 10_000
"""The most addresses whose failures are counted; beyond it the address whose last failure is oldest is forgotten."""
CONNECT_S: Final = 10.0
"""How long a client may take to connect to the namespace, where it has to say who it is."""
_V6_NETWORK: Final = 64
"""Bits of an IPv6 address that count: its holder chooses the rest."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class LoginThrottle:
    """After `LIMIT` wrong tokens in `WINDOW_S` a source (an address, or an address and a key's id) has to wait."""

    def __init__(self) -> None:
        self._failed: OrderedDict[str, deque[float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failed)

    def failed(self, source: str, now: float) -> None:
        """Count a wrong token (`now`: a monotonic clock, seconds)."""
        self._failed.setdefault(source, deque(maxlen=LIMIT)).append(now)
        self._failed.move_to_end(source)
        if len(self._failed) > ADDRESSES:
            self._failed.popitem(last=False)

    def retry_after(self, source: str, now: float) -> int:
        """Whole seconds that the source has to wait; 0: it may try."""
        tries = self._failed.get(source, deque())
        while tries and tries[0] <= now - WINDOW_S:
            tries.popleft()
        if not tries:
            self._failed.pop(source, None)
        return max(math.ceil(tries[0] + WINDOW_S - now), 1) if len(tries) == LIMIT else 0


class Arrivals:
    """The connections that are not let in yet: each has a deadline, and each address may have so many. Made once for a
    gateway.

    Args:
        most: connections of one address; 0: any number.
        close: ends a connection whose time is up, if it still is not let in.
    """

    def __init__(self, most: int, close: Callable[[str], None]) -> None:
        self._most = most
        self._close = close
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._sources: dict[str, str] = {}
        self._of: Counter[str] = Counter()

    def has_room(self, source: str) -> bool:
        """Whether one more connection may come from there."""
        return not self._most or self._of[source] < self._most

    def opened(self, engine_id: str, source: str) -> None:
        self._sources[engine_id] = source
        self._of[source] += 1
        self.expect(engine_id, CONNECT_S)

    def expect(self, engine_id: str, seconds: float) -> None:
        """It has that many seconds from now, or less where it was so before."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(engine_id)
        if timer is None or timer.when() > loop.time() + seconds:
            self._stop(engine_id)
            self._timers[engine_id] = loop.call_later(seconds, self._late, engine_id)

    def ended(self, engine_id: str) -> None:
        """It is let in, or gone. Idempotent."""
        self._stop(engine_id)
        source = self._sources.pop(engine_id, None)
        if source is not None:
            self._of[source] -= 1
            if not self._of[source]:
                del self._of[source]

    def _stop(self, engine_id: str) -> None:
        timer = self._timers.pop(engine_id, None)
        if timer is not None:
            timer.cancel()

    def _late(self, engine_id: str) -> None:
        del self._timers[engine_id]
        self._close(engine_id)


def read_networks(text: str) -> tuple[Network, ...]:
    """Addresses and networks with commas between them: `10.0.0.0/8, ::1`. Raises ValueError: it names the wrong one."""
    networks = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            networks.append(ipaddress.ip_network(part))
        except ValueError:
            raise ValueError(f"{part!r} is not an IP address or a network like 10.0.0.0/8") from None
    return tuple(networks)


def client_address(remote: str | None, forwarded: Sequence[str], trusted: Sequence[Network]) -> str:
    """The address of a client: the TCP peer (`remote`), unless that is a trusted proxy. Then it is the last address of
    `X-Forwarded-For` that is not a trusted proxy; the client may have written those before it.

    Args:
        forwarded: the values of all headers `X-Forwarded-For`, in their order.
    """
    address = remote or ""
    hops = [hop.strip() for value in forwarded for hop in value.split(",")]
    while hops and (parsed := _parsed(address)) is not None and any(parsed in network for network in trusted):
        if not (hop := hops.pop()):
            break
        address = _without_port(hop)
    return address


def counted_as(address: str, trusted: Sequence[Network] = ()) -> str | None:
    """What connections from an address count as: an IPv6 address as its network, a trusted proxy as nothing (None)."""
    parsed = _parsed(address)
    if parsed is not None and any(parsed in network for network in trusted):
        return None
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((parsed, _V6_NETWORK), strict=False))
    return address[:64] if parsed is None else str(parsed)


def source_of(request: web.Request, trusted: Sequence[Network]) -> str:
    """The address that a request is counted under."""
    address = client_address(request.remote, request.headers.getall("X-Forwarded-For", []), trusted)
    return counted_as(address) or address


def _without_port(hop: str) -> str:
    # some proxies add the port, by which each connection would count as another address
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    host, _, port = hop.partition(":")
    return host if port.isdecimal() else hop  # an IPv6 address without brackets has no port


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return (parsed.ipv4_mapped or parsed) if isinstance(parsed, ipaddress.IPv6Address) else parsed
