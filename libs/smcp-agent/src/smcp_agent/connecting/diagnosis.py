"""What went wrong with a connection, found in the chain of exceptions that python-socketio leaves behind."""

import os
import re
import ssl
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Final

import aiohttp

from smcp_agent.errors import NotAuthenticated, RateLimited, SmcpError

_DESCRIPTION: Final = re.compile(r'error_description="([^"]*)"')
"""In `WWW-Authenticate` (RFC 6750, 3): the body of a refused handshake is not read by aiohttp."""


def was_refused(error: BaseException) -> bool:
    """Whether a WebSocket's handshake got an HTTP answer that is not "not now", and not about who asks: another
    transport may do."""
    return (
        any(isinstance(each, aiohttp.WSServerHandshakeError) and each.status < 500 for each in _chain(error))
        and refusal(error) is None
    )


def refusal(error: BaseException) -> SmcpError | None:
    """What a WebSocket's handshake was refused with: NotAuthenticated (401), RateLimited (429); None: neither."""
    for each in _chain(error):
        if isinstance(each, aiohttp.WSServerHandshakeError):
            headers: Mapping[str, str] = each.headers or {}
            if each.status == NotAuthenticated.code:
                said = _DESCRIPTION.search(headers.get("WWW-Authenticate", ""))
                return NotAuthenticated(said[1] if said else "the token is not accepted")
            if each.status == RateLimited.code:
                wait = headers.get("Retry-After", "")
                details = {"retry_after_s": int(wait)} if wait.isascii() and wait.isdigit() else {}
                return RateLimited("the gateway takes no connections from here for a while", details=details)
    return None


def reason(error: BaseException) -> str | None:
    """What the network said, below python-socketio's "Connection error"."""
    for each in _chain(error):
        if isinstance(each, aiohttp.WSServerHandshakeError):
            return f"HTTP {each.status}"
        if isinstance(each, aiohttp.ClientSSLError):  # its errno is a number of OpenSSL's
            return _tls_reason(each.os_error)
        if isinstance(each, aiohttp.ClientConnectorError):
            number = each.os_error.errno or 0
            return os.strerror(number) if number > 0 else str(each.os_error.strerror)
        if (
            isinstance(each, aiohttp.ClientResponseError) and each.status == HTTPStatus.BAD_REQUEST
        ):  # nothing was parsed
            return "what listens there does not speak HTTP"
        if isinstance(each, aiohttp.ServerDisconnectedError):
            return "the connection was closed without an answer"
    return None


def _tls_reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    said = error.reason if isinstance(error, ssl.SSLError) else error.strerror
    return f"no TLS there ({said}); without TLS, the URL begins with http://"


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__
