"""The guard of the gateway: nobody is let in without a token, and nobody stays longer than it lasts.

A token may come with the first HTTP request (`Authorization: Bearer`) or in the `auth` object of Socket.IO's CONNECT
(`token`). A wrong one in the header is refused with HTTP 401 before Socket.IO sees the request. A client that sends no
header may still have the other: it is refused where it connects to the namespace, and its connection is closed.
"""

import asyncio
import ipaddress
import logging
import math
import re
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aiohttp import web

from smcp_gateway.auth.authority import Authority
from smcp_gateway.auth.client_address import Network, client_address
from smcp_gateway.auth.principal import NotAccepted, Principal
from smcp_proto.errors import Malformed, NotAuthenticated, RateLimited, SmcpError, Unavailable

HEADER: Final = "Authorization"
FIELD: Final = "token"
"""Of `auth`."""
_BEARER: Final = re.compile(r"bearer +(?P<token>\S.*?)\s*", re.IGNORECASE)
_PRINCIPAL: Final = web.RequestKey("principal", Principal)
_PRESENTED: Final = web.RequestKey("token", str)
"""Under which the request keeps what its header said."""
_UNQUOTED: Final = re.compile(r"[^\x20-\x21\x23-\x5b\x5d-\x7e]")
"""What may not stand between the quotes of a header's parameter (RFC 6750, 3)."""

_log: Final = logging.getLogger("smcp_gateway.auth")


class Guard:
    """Args:
    authority: knows who holds a token.
    proxies: whose `X-Forwarded-For` is believed.
    """

    def __init__(self, authority: Authority, proxies: Sequence[Network] = ()) -> None:
        self.authority = authority
        self._proxies = proxies
        self._attempts = Attempts()

    async def check(self, request: web.Request) -> web.Response | None:
        """Look at a request that begins a connection; the answer that refuses it, or None: Socket.IO may see it."""
        token = bearer(request.headers.get(HEADER))
        try:
            if token is None:
                self._bear(self._address(request))
            else:
                request[_PRINCIPAL] = await self._authenticate(request, token)
                request[_PRESENTED] = token
        except SmcpError as error:
            return refused(error)
        return None

    async def admit(self, request: web.Request, auth: object) -> Principal:
        """Who connects to the namespace.

        Args:
            request: the one that began the connection.
            auth: what was sent with CONNECT.

        Raises:
            NotAuthenticated: no token, or one that is not accepted.
            RateLimited: too many of them came from there. `details.retry_after_s`
            Malformed: `auth.token` is no text, or another one than the header's.
            Unavailable: that cannot be found out now.
        """
        said = auth.get(FIELD) if isinstance(auth, Mapping) else None
        if said is not None and not isinstance(said, str):
            raise Malformed(f"auth.{FIELD}: is not a string", details={"field": f"auth.{FIELD}"})
        known: Principal | None = request.get(_PRINCIPAL)
        if known is None:
            return await self._authenticate(request, said)
        if said is not None and said != request.get(_PRESENTED):
            raise Malformed(
                f"auth.{FIELD}: is not the token of the header {HEADER}", details={"field": f"auth.{FIELD}"}
            )
        if (over := self.authority.ended(known)) is not None:
            raise NotAuthenticated(over)
        return known

    async def _authenticate(self, request: web.Request, token: str | None) -> Principal:
        address = self._address(request)
        self._bear(address)
        try:
            return await self.authority.authenticate(_present(token))
        except NotAuthenticated as error:
            self._attempts.failed(address, _now())
            why = f"{error.message}: {error.why}" if isinstance(error, NotAccepted) else error.message
            _log.info("a client was refused: %s", why, extra={"address": address})
            raise

    def _bear(self, address: str) -> None:
        if wait := self._attempts.retry_after(address, _now()):
            raise RateLimited("too many wrong tokens came from this address", details={"retry_after_s": wait})

    def _address(self, request: web.Request) -> str:
        return client_address(request.remote, request.headers.getall("X-Forwarded-For", []), self._proxies)


def bearer(header: str | None) -> str | None:
    """The token of an `Authorization` header (RFC 6750, 2.1); None: there is none, or it is of another scheme."""
    match = _BEARER.fullmatch(header or "")
    return None if match is None else match["token"]


def _present(token: str | None) -> str:
    if not token:
        raise NotAuthenticated(
            f"a token is needed: auth.{FIELD} of Socket.IO's CONNECT, or the header {HEADER}: Bearer"
        )
    return token


def refused(error: SmcpError) -> web.Response:
    """The HTTP answer of a refusal: the flat error, and what HTTP says beside it."""
    headers = {"Cache-Control": "no-store"}
    match error:
        case NotAuthenticated():
            said = _UNQUOTED.sub("?", error.message)
            headers["WWW-Authenticate"] = f'Bearer error="invalid_token", error_description="{said}"'
        case RateLimited(details={"retry_after_s": wait}):
            headers["Retry-After"] = str(wait)
        case Unavailable():
            headers["Retry-After"] = "1"
    body: dict[str, Any] = error.body().model_dump()
    return web.json_response(body, status=int(error.code), headers=headers)


def _now() -> float:
    return asyncio.get_running_loop().time()


LIMIT: Final = 20
WINDOW_S: Final = 60.0
ADDRESSES: Final = 10_000
"""That are remembered; of more the one that was wrong longest ago is forgotten."""
_V6_NETWORK: Final = 64
"""Bits of an IPv6 address that count: the rest is its holder's to choose."""


class Attempts:
    """Args:
    limit: wrong tries in `window_s` seconds after which an address has to wait.
    addresses: how many are remembered.
    """

    def __init__(self, *, limit: int = LIMIT, window_s: float = WINDOW_S, addresses: int = ADDRESSES) -> None:
        self._limit = limit
        self._window_s = window_s
        self._addresses = addresses
        self._failed: OrderedDict[str, deque[float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failed)

    def failed(self, address: str, now: float) -> None:
        """Count a wrong try (`now`: a monotonic clock, seconds)."""
        key = _key(address)
        tries = self._failed.setdefault(key, deque(maxlen=self._limit))
        tries.append(now)
        self._failed.move_to_end(key)
        if len(self._failed) > self._addresses:
            self._failed.popitem(last=False)

    def retry_after(self, address: str, now: float) -> int:
        """Whole seconds until the address is listened to again; 0: it is."""
        key = _key(address)
        tries = self._failed.get(key)
        if tries is None:
            return 0
        while tries and tries[0] <= now - self._window_s:
            tries.popleft()
        if not tries:
            del self._failed[key]
        if len(tries) < self._limit:
            return 0
        return max(math.ceil(tries[0] + self._window_s - now), 1)


def _key(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, _V6_NETWORK), strict=False))
    return str(parsed)
