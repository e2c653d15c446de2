"""Authenticates clients, and limits connections that are not authenticated yet.

A token comes with the first HTTP request (`Authorization: Bearer`; a wrong one is answered 401), or as `token` in the
`auth` object of Socket.IO's CONNECT (for a wrong one CONNECT is refused). `smcp_service.http_limits` limits the bytes
and the TCP connections of clients that are not authenticated.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from aiohttp import web

from smcp_auth import client_addresses
from smcp_auth.authenticator import HEADER, HEADER_FORM, Authenticator, bearer_token, quoted
from smcp_auth.client_addresses import Network
from smcp_auth.grants import Principal
from smcp_bus.callers import DELEGATES
from smcp_proto.errors import NotAllowed, NotAuthenticated, RateLimited, SmcpError, Unavailable
from smcp_proto.validation import refused

FIELD: Final = "token"
"""The field of `auth` with the token."""
CONNECT_S: Final = 10.0
"""How long a client may take until its CONNECT to the namespace, which authenticates it."""
_PRINCIPAL: Final = web.RequestKey("principal", Principal)
_PRESENTED: Final = web.RequestKey("token", str)


async def check(authenticator: Authenticator, request: web.Request) -> None:
    """Check a request that begins a connection. Raises what `admit` raises."""
    token = bearer_token(request.headers.get(HEADER, ""))
    if token is not None:  # else the token comes with CONNECT
        request[_PRINCIPAL] = await _authenticate(authenticator, request, token)
        request[_PRESENTED] = token


async def admit(authenticator: Authenticator, request: web.Request, auth: object) -> Principal:
    """Authenticate a client that connects to the namespace, by its first request and `auth` from CONNECT.

    Raises NotAuthenticated, NotAllowed (it says that it will call for users, and may not), RateLimited (too many wrong
    tokens from this address), Malformed (`auth.token`), Unavailable (the token cannot be checked now).
    """
    token = auth.get(FIELD) if isinstance(auth, Mapping) else None
    if token is not None and not isinstance(token, str):
        raise refused(f"auth.{FIELD}", "is not a string")
    known: Principal | None = request.get(_PRINCIPAL)
    if known is None:
        known = await _authenticate(authenticator, request, token)
    elif token is not None and token != request.get(_PRESENTED):
        raise refused(f"auth.{FIELD}", f"is not the token of the header {HEADER}")
    elif (over := authenticator.ended(known)) is not None:
        raise NotAuthenticated(over)
    if isinstance(auth, Mapping) and auth.get(DELEGATES) is True and not known.grants.delegates:
        raise NotAllowed("the key or token may not call for users: it needs `delegates`", details={"field": DELEGATES})
    return known


async def _authenticate(authenticator: Authenticator, request: web.Request, token: str | None) -> Principal:
    sent_in = f"auth.{FIELD} of Socket.IO's CONNECT, or {HEADER_FORM}"
    return await authenticator.authenticate(token, source_of(request, authenticator.proxies), sent_in=sent_in)


def refusal_response(error: SmcpError) -> web.Response:
    headers = {"Cache-Control": "no-store"}
    match error:
        case NotAuthenticated():
            description = quoted(error.message)
            headers["WWW-Authenticate"] = f'Bearer error="invalid_token", error_description="{description}"'
        case RateLimited(details={"retry_after_s": wait}):
            headers["Retry-After"] = str(wait)
        case Unavailable():
            headers["Retry-After"] = "1"
    body: dict[str, Any] = error.body().model_dump()
    return web.json_response(body, status=int(error.code), headers=headers)


def source_of(request: web.Request, trusted: Sequence[Network]) -> str:
    """The client's address, behind trusted proxies, by which its requests are counted."""
    return client_addresses.source_of(request.remote, request.headers.getall("X-Forwarded-For", []), trusted)


class UnauthenticatedClients:
    """The connections of this gateway that are not authenticated yet. An address may have only `most` of them (0: any
    number), and `close` ends each at its deadline."""

    def __init__(self, most: int, close: Callable[[str], object]) -> None:
        self._most = most
        self._close = close
        self._waiting: dict[str, tuple[str, asyncio.TimerHandle]] = {}
        """By id: the address, and what closes it at its deadline."""
        self._of: Counter[str] = Counter()

    def refusal(self, request: web.Request, source: str) -> web.Response | None:
        """The refusal of a new connection from there, if there is a reason for one."""
        is_upgrade = "upgrade" in request.headers.get("Connection", "").lower()
        if request.query.get("transport") == "websocket" and not is_upgrade:
            why = "a WebSocket begins with `Connection: Upgrade` and `Upgrade: websocket`"
            return refusal_response(refused("Connection", why))
        if self._most and self._of[source] >= self._most:
            why = "too many connections of this address are not authenticated yet"
            return refusal_response(RateLimited(why, details={"retry_after_s": 1}))
        return None

    def opened(self, engine_id: str, source: str) -> None:
        """From now on it has `CONNECT_S` to be authenticated."""
        self._of[source] += 1
        self._waiting[engine_id] = source, asyncio.get_running_loop().call_later(CONNECT_S, self._close, engine_id)

    def ended(self, engine_id: str) -> None:
        if (waiting := self._waiting.pop(engine_id, None)) is not None:
            source, timer = waiting
            timer.cancel()
            self._of[source] -= 1
            if not self._of[source]:
                del self._of[source]
