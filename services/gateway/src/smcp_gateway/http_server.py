"""The HTTP server. It listens before the gateway serves, so that `/livez` answers while NATS is away."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from aiohttp import web

from smcp_auth.authenticator import open_authenticator
from smcp_auth.client_addresses import counted_as
from smcp_auth.settings import check_auth
from smcp_gateway.auth import check, refusal_response, source_of
from smcp_gateway.settings import GatewaySettings
from smcp_gateway.sockets.session import VERSION_PARAMETER
from smcp_proto.catalog import refuse_version
from smcp_proto.errors import SmcpError, VersionRefused, error_of
from smcp_service.health import Readiness, Stats, health_routes, serve_health
from smcp_service.http_limits import EdgeRules
from smcp_service.http_server import Listener, listening
from smcp_service.metrics import Metrics
from smcp_service.settings import is_loopback

PATH: Final = "/socket.io/"

_log: Final = logging.getLogger("smcp_gateway.http_server")

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpServer:
    """Made by `open_http_server`."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.readiness = Readiness()
        self.stats = Stats()
        self.metrics = Metrics()
        self.authenticator = open_authenticator(settings)
        self.refused: Callable[[str, SmcpError], None] = lambda address, error: None
        """Called with the address and the error of a client that is refused by HTTP."""
        self._source = partial(source_of, trusted=settings.proxies)
        self.app = web.Application()
        self.app.add_routes(health_routes(self.readiness))
        self.app.add_routes([web.route(method, PATH, self._pass_on) for method in ("GET", "POST", "OPTIONS")])
        self.listener: Listener
        self.health: Listener
        self.answer: Answer | None = None
        """Answers requests while the gateway serves; before and after they get 503."""

    def turned_away(self, request: web.Request, status: int, why: str) -> None:
        if request.path == PATH:
            self.refused(self._source(request), error_of(status, why, {}))

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        begins = "sid" not in request.query  # a request with a session's id is authenticated already
        if begins and (refusal := refuse_version(request.query.get(VERSION_PARAMETER))) is not None:
            self.refused(self._source(request), VersionRefused(refusal.message))
            headers = {"X-A2C-Error-Code": str(refusal.code), "Cache-Control": "no-store"}
            return web.json_response(refusal.model_dump(), status=400, headers=headers)
        answer = self.answer
        if answer is None:
            raise web.HTTPServiceUnavailable(text="not serving now", headers={"Retry-After": "1"})
        if begins and self.authenticator is not None:
            try:
                await check(self.authenticator, request)
            except SmcpError as error:
                self.refused(self._source(request), error)
                return refusal_response(error)
        return await answer(request)


@asynccontextmanager
async def open_http_server(settings: GatewaySettings) -> AsyncIterator[HttpServer]:
    """Listen while the body runs: for clients and load balancers (`/livez`, `/readyz`), and on the health port.

    Raises Failure: the address is not available, or it is not loopback and there is no authentication.
    """
    check_auth(settings, "SMCP_GATEWAY_HOST", settings.gateway_host)
    if not (settings.auth_configured or is_loopback(settings.gateway_host)):
        at = {"host": settings.gateway_host}
        _log.warning("any client that reaches this address can connect under any name", extra=at)
    front = HttpServer(settings)
    rules = EdgeRules(
        hosts=settings.hosts_at(settings.gateway_host),
        origins=settings.origins,
        per_address=settings.unauthenticated_per_address,
        counted_as=partial(counted_as, trusted=settings.proxies),
        turned_away=front.turned_away,
    )
    host, port = settings.gateway_host, settings.gateway_port
    async with (
        listening(front.app, host, port, rules, choose="--port / SMCP_GATEWAY_PORT") as front.listener,
        serve_health(settings, front.readiness, front.metrics, front.stats) as front.health,
    ):
        yield front
