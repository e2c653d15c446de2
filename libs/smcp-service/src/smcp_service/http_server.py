"""Serves one aiohttp application, with a `Gate` of `http_limits` for each connection."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from smcp_service.http_limits import IDLE_S, EdgeRules, Gate, UnauthenticatedConnections, forbidden_header, gate_of
from smcp_service.lifecycle import cannot_listen

SHUTDOWN_S: Final = 1.0
"""How long an answer may hold up the end of the process."""
CONTINUE: Final = "100-continue"
"""`Expect`'s only value (RFC 9110, 10.1.1)."""
UNCHECKED: Final = frozenset({"/livez", "/readyz"})
"""Paths for any `Host`: load balancers ask by address, and there is nothing to read."""


@dataclass(frozen=True, slots=True)
class Listener:
    host: str
    port: int
    unauthenticated: UnauthenticatedConnections = field(repr=False)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


@asynccontextmanager
async def listening(
    app: web.Application, host: str, port: int, rules: EdgeRules, *, choose: str
) -> AsyncIterator[Listener]:
    """Serve `app` on `host`:`port` (0: any free port) while the body runs. Raises Failure: see `cannot_listen`."""
    unauthenticated = UnauthenticatedConnections(rules)
    app.middlewares.append(_checking(rules))
    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=SHUTDOWN_S,
        auto_decompress=False,  # a body of 1 MB may be 1 GiB
        keepalive_timeout=IDLE_S,
        logger=_RequestLog(logging.getLogger("aiohttp.server"), {}),
    )
    await runner.setup()
    try:
        assert runner.server is not None
        runner.server.request_handler = partial(_expecting, runner.server.request_handler)
        make = cast("Callable[[], asyncio.Protocol]", runner.server)
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(lambda: Gate(make, unauthenticated), host, port, backlog=1024)
        except OSError as error:
            raise cannot_listen(error, host, port, choose=choose) from error
        address = server.sockets[0].getsockname()
        with closing(server), closing(unauthenticated):
            yield Listener(str(address[0]), int(address[1]), unauthenticated)
    finally:
        await runner.cleanup()


async def _expecting(answer: Callable[..., Awaitable[web.StreamResponse]], request: web.BaseRequest) -> Any:
    """aiohttp checks `Expect` before any middleware. Its 417 quotes the value: a 500 if that is not text."""
    if request.headers.get("Expect", CONTINUE).lower() == CONTINUE:
        return await answer(request)
    response = web.Response(status=417, headers={"Cache-Control": "no-store"})
    response.force_close()
    return response


def _checking(rules: EdgeRules) -> Middleware:
    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        gate = gate_of(request.transport)
        if gate is not None:
            gate.begin(member=False)
        try:
            return _refusal(request, rules) or await handler(request)
        finally:
            if gate is not None:
                gate.end()

    return check


def _refusal(request: web.Request, rules: EdgeRules) -> web.Response | None:
    headers, status = request.headers, 403
    if headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        status, field = 415, "Content-Encoding"
        why = "compressed bodies are not accepted: send the body without a Content-Encoding"
    elif request.path in UNCHECKED:
        return None
    elif (forbidden := forbidden_header(headers, rules.hosts, rules.origins)) is not None:
        field, why = forbidden
    else:
        return None
    rules.turned_away(request, status, why)
    body = {"code": status, "message": why, "details": {"field": field}}
    response = web.json_response(body, status=status, headers={"Cache-Control": "no-store"})
    response.force_close()
    return response


class _RequestLog(logging.LoggerAdapter[logging.Logger]):
    """aiohttp's log of one server, without what anybody can provoke: malformed requests, and clients that hang up."""

    def exception(self, msg: object, *args: object, exc_info: Any = True, **kwargs: Any) -> None:
        if not isinstance(exc_info, ConnectionError | HttpProcessingError):
            super().exception(msg, *args, exc_info=exc_info, **kwargs)
