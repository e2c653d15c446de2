"""What is settled before a client is let in: its protocol version, and what it says about itself."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web
from socketio.exceptions import ConnectionRefusedError as Refused

from smcp_gateway.sockets.packet import AUTH_BYTES, OVERSIZED, UNREADABLE
from smcp_gateway.sockets.session import DEFAULT_MAX_MESSAGE
from smcp_proto.errors import Malformed, SmcpError, TooLarge
from smcp_proto.version import refuse_version

Next = Callable[[web.Request], Awaitable[web.StreamResponse]]

VERSION_PARAMETER: Final = "a2c_version"
ERROR_HEADER: Final = "X-A2C-Error-Code"
UPLOAD_S: Final = 60.0
"""How long one polling request may take to arrive (seconds)."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """What a client says when it connects: `?a2c_version=`, and in `auth` what it can read."""

    a2c_version: str | None = None
    max_message: int = DEFAULT_MAX_MESSAGE
    """Bytes of the largest message that it takes."""
    flat_errors: bool = False
    """Whether it reads a flat error in place of a tool's result."""


@web.middleware
async def version_rule(request: web.Request, handler: Next) -> web.StreamResponse:
    """Refuse a client of another protocol version with HTTP 400, before Socket.IO sees it (versioning).

    Only a request that begins a connection is asked: those that follow carry the engine's `sid`.
    """
    if "sid" not in request.query:
        refusal = refuse_version(request.query.get(VERSION_PARAMETER))
        if refusal is not None:
            return web.json_response(
                refusal.model_dump(), status=400, headers={ERROR_HEADER: str(refusal.code), "Cache-Control": "no-store"}
            )
    return await handler(request)


def unknown_session() -> web.Response:
    """The answer to a request of a session that is not here: HTTP 400 with a flat error that says what may be wrong."""
    error = Malformed(
        "sid: no such session at this replica: it has ended, or the proxy is not sticky by client address, which "
        "polling needs (WebSocket alone does not)",
        details={"field": "sid"},
    )
    return web.json_response(error.body().model_dump(), status=error.code, headers={"Cache-Control": "no-store"})


@web.middleware
async def bounded_upload(request: web.Request, handler: Next) -> web.StreamResponse:
    """A polling request whose body does not arrive ends after a while."""
    if request.method != "POST":
        return await handler(request)
    try:
        async with asyncio.timeout(UPLOAD_S):
            return await handler(request)
    except TimeoutError:
        raise web.HTTPRequestTimeout from None


def read_greeting(environ: dict[str, Any], auth: object) -> Greeting:
    """Read what a client said at connect.

    Raises:
        socketio.exceptions.ConnectionRefusedError: `auth` is not an object, longer than `AUTH_BYTES`, or a field of
            it has the wrong type; its data is a flat error.
    """
    request: web.Request = environ["aiohttp.request"]
    version = request.query.get(VERSION_PARAMETER)
    if auth is None:
        return Greeting(version)
    if auth is OVERSIZED:
        why = f"auth: is longer than {AUTH_BYTES} bytes"
        raise refused_connect(TooLarge(why, details={"field": "auth", "limit": AUTH_BYTES}))
    if auth is UNREADABLE or not isinstance(auth, dict):
        raise _refused("auth", "is not a JSON object")
    max_message = auth.get("max_message", DEFAULT_MAX_MESSAGE)
    if not isinstance(max_message, int) or isinstance(max_message, bool) or max_message <= 0:
        raise _refused("auth.max_message", "is not a positive integer")
    flat_errors = auth.get("flat_errors", False)
    if not isinstance(flat_errors, bool):
        raise _refused("auth.flat_errors", "is not true or false")
    return Greeting(version, max_message, flat_errors)


def refused_connect(error: SmcpError) -> Refused:
    """What makes Socket.IO refuse a client: the error's message, and as data the flat error."""
    return Refused(error.message, error.body().model_dump())  # type: ignore[no-untyped-call]


def _refused(field: str, reason: str) -> Refused:
    return refused_connect(Malformed(f"{field}: {reason}", details={"field": field}))
