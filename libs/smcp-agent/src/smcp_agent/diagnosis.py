"""What went wrong with a connection, found in the chain of exceptions that python-socketio leaves behind."""

import os
from collections.abc import Iterator

import aiohttp


def was_refused(error: BaseException) -> bool:
    """Whether a WebSocket's handshake got an HTTP answer that is not "not now"."""
    return any(isinstance(each, aiohttp.WSServerHandshakeError) and each.status < 500 for each in _chain(error))


def reason(error: BaseException) -> str | None:
    """What the network said, below python-socketio's "Connection error"."""
    for each in _chain(error):
        if isinstance(each, aiohttp.WSServerHandshakeError):
            return f"HTTP {each.status}"
        if isinstance(each, aiohttp.ClientConnectorError):
            number = each.os_error.errno or 0
            return os.strerror(number) if number > 0 else str(each.os_error.strerror)
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__
