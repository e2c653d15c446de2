"""The other replicas of this service, to which requests are passed on."""

import asyncio
import io
import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from socket import SOCK_STREAM
from typing import Final
from urllib.parse import urlsplit

import aiohttp
import anyio
from mcp_types import INVALID_REQUEST
from yarl import URL

from smcp_mcp.buffered_request import PASSED_ON, BufferedRequest

CONNECT_S: Final = 1.0
"""A peer that takes longer to accept a connection is skipped: replicas are near each other."""
SILENT_S: Final = 45.0
"""A peer that sends nothing for so long hangs: the MCP SDK sends a ping every 15 s on each stream and in each call."""
KEPT_S: Final = 15.0
"""How long an unused connection to a peer is kept, which is less than the peer keeps it: a request on a connection that
the peer is closing would look like a call that was broken off."""
MAX_KNOWN_PEERS: Final = 10_000
"""Offices whose peer is remembered: some 3 MB. Above it the oldest is forgotten, and found again when needed."""
_ONE_HOP: Final = frozenset(
    {"connection", "content-length", "date", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", PASSED_ON}
)
"""Headers about one connection (RFC 9110, 7.6.1), and those that the next hop writes itself."""

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Peer:
    url: URL
    """With the address of one replica in place of a name."""
    name: str
    """The name that its certificate is for."""


class Peers:
    def __init__(self, urls: Sequence[str], http: aiohttp.ClientSession) -> None:
        self._urls = urls
        self._http = http
        self.known: dict[str, Peer] = {}
        """By office, the peer that held its seat last."""
        self.passed_on: Counter[str] = Counter(
            dict.fromkeys(("answered", "refused", "not_held", "unreachable", "broken"), 0)
        )
        """Attempts to pass a request on to a peer, by outcome."""

    async def addresses(self) -> list[Peer]:
        """All replicas; this process may be among them."""
        found = await asyncio.gather(*map(_resolve, self._urls))
        return [peer for peers in found for peer in peers]

    async def pass_on(self, exchange: BufferedRequest, office: str, peer: Peer) -> bool:
        """Have a peer answer a request. False: it does not hold the seat of the office, or cannot be reached."""
        outcome = "answered"  # also if the client disconnects
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                await exchange.disconnected()
                group.cancel_scope.cancel()

            group.start_soon(watch)
            outcome = await self._forward(exchange, office, peer)
            self.passed_on[outcome] += 1
            group.cancel_scope.cancel()
        if outcome not in ("not_held", "unreachable"):
            return True
        self.known.pop(office, None)
        return False

    async def _forward(self, exchange: BufferedRequest, office: str, peer: Peer) -> str:
        request = exchange.request
        headers = [(name, value) for name, value in request.headers.items() if name not in _ONE_HOP]
        path = request.scope["raw_path"].decode("ascii")
        query = request.scope["query_string"].decode("ascii")
        url = peer.url.with_path(path, encoded=True)
        try:
            async with self._http.request(
                request.method,
                URL(f"{url}?{query}" if query else str(url), encoded=True),
                headers=[*headers, (PASSED_ON, "1")],
                data=io.BytesIO(exchange.body) if exchange.body else None,
                allow_redirects=False,
                server_hostname=peer.name if url.scheme == "https" else None,
            ) as response:
                if response.status == 421:  # Misdirected Request (RFC 9110)
                    return "not_held"
                if response.status < 400:  # else it may be a peer without the seat that refused the token
                    self.known[office] = peer
                    if len(self.known) > MAX_KNOWN_PEERS:
                        del self.known[next(iter(self.known))]
                passed = [pair for pair in response.raw_headers if pair[0].lower().decode() not in _ONE_HOP]
                await exchange.start(response.status, [(name.lower(), value) for name, value in passed])
                async for chunk in response.content.iter_any():
                    await exchange.send_body(chunk, more=True)
                await exchange.send_body(b"", more=False)
                return "answered"
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            _log.info("a peer cannot be reached", extra={"peer": str(peer.url), "error": type(error).__name__})
            return "unreachable"
        except ValueError:  # aiohttp refuses the control characters in headers that uvicorn lets pass
            return await exchange.refuse(400, "a header has a control character", code=INVALID_REQUEST)
        except (aiohttp.ClientError, TimeoutError) as error:
            _log.warning("a peer broke off its answer", extra={"peer": str(peer.url), "error": type(error).__name__})
            await exchange.break_off("the replica that held the office is gone")
            return "broken"


async def _resolve(url: str) -> list[Peer]:
    parts = urlsplit(url)
    name = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(name, port, type=SOCK_STREAM)
    except OSError as error:
        _log.warning("the peers have no address", extra={"host": name, "error": error.strerror})
        return []
    addresses = sorted({str(address[0]) for *_, address in found})
    return [Peer(URL.build(scheme=parts.scheme, host=address, port=port), name) for address in addresses]


@asynccontextmanager
async def open_peers(urls: Sequence[str]) -> AsyncIterator[Peers]:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENT_S)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_S)
    async with aiohttp.ClientSession(
        timeout=timeout, connector=connector, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
    ) as http:
        yield Peers(urls, http)
