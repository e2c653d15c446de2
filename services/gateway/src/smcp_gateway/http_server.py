"""The HTTP server. It lets clients in, and bounds those that are not let in yet. It listens before the gateway serves,
so that `/livez` answers while NATS is away.

A token comes with the first HTTP request (`Authorization: Bearer`; a wrong one is answered 401), or as `token` in the
`auth` object of Socket.IO's CONNECT (for a wrong one CONNECT is refused and the connection closed).
`smcp_auth.authenticator` identifies its holder. The bytes of connections that are not let in, and the TCP connections
below them, are bounded by `smcp_service.http_limits`.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final

from aiohttp import web

from smcp_auth import client_addresses
from smcp_auth.authenticator import HEADER, HEADER_FORM, Authenticator, bearer_token, open_authenticator, quoted
from smcp_auth.client_addresses import Network, counted_as
from smcp_auth.grants import Principal
from smcp_auth.settings import check_auth
from smcp_bus.callers import DELEGATES
from smcp_gateway.settings import GatewaySettings
from smcp_proto.catalog import VersionRefusal, refuse_version
from smcp_proto.errors import (
    Malformed,
    NotAllowed,
    NotAuthenticated,
    RateLimited,
    SmcpError,
    TooLarge,
    Unavailable,
    VersionRefused,
    error_of,
)
from smcp_service.health import Readiness, Stats, health_routes, serve_health
from smcp_service.http_limits import EdgeRules, Listener, listening
from smcp_service.logging import get_logger
from smcp_service.metrics import Metrics
from smcp_service.settings import is_loopback

PATH: Final = "/socket.io/"
VERSION_PARAMETER: Final = "a2c_version"
ERROR_HEADER: Final = "X-A2C-Error-Code"

_log = get_logger("smcp_gateway.http_server")

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


FIELD: Final = "token"
"""The field of `auth` with the token."""
CONNECT_S: Final = 10.0
"""How long a client may take to connect to the namespace, where it has to say who it is."""
STRANGER_POST: Final = 48 * 1024
"""Bytes of a stranger's polling request: with its headers it stays below what a stranger may send at all."""
_PRINCIPAL: Final = web.RequestKey("principal", Principal)
_PRESENTED: Final = web.RequestKey("token", str)
"""The token of the request's header."""


async def check(authenticator: Authenticator, request: web.Request) -> None:
    """Check a request that begins a connection. Raises what `admit` raises."""
    token = bearer_token(request.headers.get(HEADER, ""))
    if token is not None:  # else the token comes with CONNECT
        request[_PRINCIPAL] = await _authenticate(authenticator, request, token)
        request[_PRESENTED] = token


async def admit(authenticator: Authenticator, request: web.Request, auth: object) -> Principal:
    """Authenticate a client that connects to the namespace.

    Args:
        request: the one that began the connection.
        auth: from CONNECT.

    Raises:
        NotAuthenticated: no token, or one that is not accepted.
        NotAllowed: the client says that it will call for users, and its token may not.
        RateLimited: too many wrong tokens from this address. `details.retry_after_s`
        Malformed: `auth.token` is not a string, or differs from the header's.
        Unavailable: the token cannot be checked now.
    """
    token = auth.get(FIELD) if isinstance(auth, Mapping) else None
    details = {"field": f"auth.{FIELD}"}
    if token is not None and not isinstance(token, str):
        raise Malformed(f"auth.{FIELD}: is not a string", details=details)
    known: Principal | None = request.get(_PRINCIPAL)
    if known is None:
        known = await _authenticate(authenticator, request, token)
    elif token is not None and token != request.get(_PRESENTED):
        raise Malformed(f"auth.{FIELD}: is not the token of the header {HEADER}", details=details)
    elif (over := authenticator.ended(known)) is not None:
        raise NotAuthenticated(over)
    if isinstance(auth, Mapping) and auth.get(DELEGATES) is True and not known.grants.delegates:
        raise NotAllowed("the token may not call for users: its grants need `delegates`", details={"field": DELEGATES})
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


def stranger_refusal(request: web.Request) -> web.Response | None:
    """The refusal of a polling request of a client that is not let in, if it is too large."""
    size = request.content_length or 0
    if size <= STRANGER_POST:
        return None
    details = {"limit": STRANGER_POST, "size": size}
    return refusal_response(TooLarge("connect to the namespace first", details=details))


def source_of(request: web.Request, trusted: Sequence[Network]) -> str:
    return client_addresses.source_of(request.remote, request.headers.getall("X-Forwarded-For", []), trusted)


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

    def refusal(self, request: web.Request, source: str) -> web.Response | None:
        """The refusal of a new connection from there, if there is a reason for one."""
        is_upgrade = "upgrade" in request.headers.get("Connection", "").lower()
        if request.query.get("transport") == "websocket" and not is_upgrade:
            why = "Connection: a WebSocket begins with `Connection: Upgrade` and `Upgrade: websocket`"
            return refusal_response(Malformed(why, details={"field": "Connection"}))
        if self._most and self._of[source] >= self._most:
            why = "too many connections of this address are not authenticated yet"
            return refusal_response(RateLimited(why, details={"retry_after_s": 1}))
        return None

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


class HttpServer:
    """Made by `open_http_server`.

    Args:
        authenticator: of clients; None: everybody may connect.
        proxies: trusted in `X-Forwarded-For`.
    """

    def __init__(self, metrics: Metrics, *, authenticator: Authenticator | None, proxies: Sequence[Network]) -> None:
        self.readiness = Readiness()
        self.stats = Stats()
        self.metrics = metrics
        self.authenticator = authenticator
        self.refused: Callable[[str, SmcpError], None] = lambda address, error: None
        """Called with the address and the error of a client that is refused by HTTP."""
        self._proxies = proxies
        self.app = web.Application()
        self.app.add_routes(health_routes(self.readiness))
        self.app.add_routes([web.route(method, PATH, self._pass_on) for method in ("GET", "POST", "OPTIONS")])
        self.listener: Listener
        self.health: Listener
        """For `/metrics` and `/statz`, which are not for clients."""
        self._answer: Answer | None = None

    @property
    def url(self) -> str:
        return self.listener.url

    def source(self, request: web.Request) -> str:
        return source_of(request, self._proxies)

    @contextmanager
    def answering(self, answer: Answer) -> Iterator[None]:
        """Let `answer` handle requests while the body runs; before and after it they get 503."""
        self._answer = answer
        try:
            yield
        finally:
            self._answer = None

    def turned_away(self, request: web.Request, status: int, why: str) -> None:
        if request.path == PATH:
            self.refused(self.source(request), error_of(status, why, {}))

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        begins = "sid" not in request.query  # a request with a session's id is authenticated already
        if begins and (refusal := refuse_version(request.query.get(VERSION_PARAMETER))) is not None:
            self.refused(self.source(request), VersionRefused(refusal.message))
            return _refused_version(refusal)
        answer = self._answer
        if answer is None:
            raise web.HTTPServiceUnavailable(text="not serving now", headers={"Retry-After": "1"})
        if begins and self.authenticator is not None:
            try:
                await check(self.authenticator, request)
            except SmcpError as error:
                self.refused(self.source(request), error)
                return refusal_response(error)
        return await answer(request)


def _refused_version(refusal: VersionRefusal) -> web.Response:
    headers = {ERROR_HEADER: str(refusal.code), "Cache-Control": "no-store"}
    return web.json_response(refusal.model_dump(), status=400, headers=headers)


@asynccontextmanager
async def open_http_server(settings: GatewaySettings) -> AsyncIterator[HttpServer]:
    """Listen while the body runs: for clients and load balancers (`/livez`, `/readyz`), and on the health port, where
    `/metrics` (and `/statz`, if the settings say so) are answered, too.

    Raises:
        Failure: the address is not available, or it is not loopback and there is no authentication.
    """
    check_auth(settings, "SMCP_GATEWAY_HOST", settings.gateway_host)
    if not (settings.auth_configured or is_loopback(settings.gateway_host)):
        _log.warning("any client that reaches this address can connect under any name", host=settings.gateway_host)
    authenticator = open_authenticator(settings)
    metrics = Metrics()
    front = HttpServer(metrics, authenticator=authenticator, proxies=settings.proxies)
    rules = EdgeRules(
        hosts=settings.hosts_at(settings.gateway_host),
        origins=settings.origins,
        per_address=settings.strangers_per_address,
        counted_as=partial(counted_as, trusted=settings.proxies),
        turned_away=front.turned_away,
    )
    host, port = settings.gateway_host, settings.gateway_port
    async with (
        listening(front.app, host, port, rules, choose="--port / SMCP_GATEWAY_PORT") as front.listener,
        serve_health(settings, front.readiness, metrics, front.stats) as front.health,
    ):
        yield front
