"""The URLs of gateways in the order in which they are tried, and the race for a connection."""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from smcp_agent.connecting.connection import Connection, Notice, connect
from smcp_agent.connecting.options import ConnectionOptions, local_key, with_token
from smcp_agent.errors import (
    CannotConnect,
    Malformed,
    NotAGateway,
    NotAuthenticated,
    RateLimited,
    SmcpError,
    retry_after,
)
from smcp_proto.backoff import jittered
from smcp_proto.printable import without_login

HEAD_START_S: Final = 1.0
"""How long a URL may take to answer before the next one is tried beside it: a host that hangs looks like a slow one."""
READY_S: Final = 2.0


class Addresses:
    """URLs of an office's gateways, the one to begin with first. Raises Malformed: one is wrong, or none is there."""

    def __init__(self, urls: Iterable[str]) -> None:
        self._urls = [checked_url(url) for url in urls]
        if not self._urls:
            raise Malformed("url: is missing", details={"field": "url"})

    def prefer(self, url: str) -> None:
        """Begin with this one next time: it worked."""
        at = self._urls.index(url)
        self._urls = self._urls[at:] + self._urls[:at]

    def avoid(self, url: str, tried: Collection[str] = ()) -> bool:
        """Try this one last next time. False where the next one is the same, or among the `tried` ones."""
        self._urls.remove(url)
        self._urls.append(url)
        return self._urls[0] != url and self._urls[0] not in tried

    async def ready_instead_of(self, url: str, options: ConnectionOptions) -> bool:
        """Whether a gateway at another URL says that it is ready; that one is tried first next time."""
        timeout = aiohttp.ClientTimeout(total=READY_S)
        async with aiohttp.ClientSession(headers=options.headers, timeout=timeout) as session:
            for other in self._urls:
                if other != url and await _is_ready(session, other):
                    self.prefer(other)
                    return True
        return False

    async def connect(self, options: ConnectionOptions, on_notice: Notice) -> Connection:
        """The first connection that opens; each URL has a head start. Raises CannotConnect: none of them works;
        NotAGateway; TokenUnavailable; SmcpError: the last refusal of a server."""
        has_token, options = options.token is not None, await with_token(options)

        async def attempt(url: str, earlier: Sequence[asyncio.Task[Connection]]) -> Connection:
            if earlier:
                await asyncio.wait(earlier, timeout=HEAD_START_S * len(earlier))
            own = options if has_token else await with_token(options.model_copy(update={"token": local_key(url)}))
            return await connect(url, own, on_notice)

        attempts: list[asyncio.Task[Connection]] = []
        for url in self._urls:
            attempts.append(asyncio.create_task(attempt(url, tuple(attempts))))
        winner: Connection | None = None
        try:
            for ended in asyncio.as_completed(attempts):
                with suppress(SmcpError):
                    winner = await ended
                    return winner
        finally:
            for each in attempts:
                each.cancel()
            for outcome in await asyncio.gather(*attempts, return_exceptions=True):
                if isinstance(outcome, Connection) and outcome is not winner:
                    await outcome.close()
        errors = [each.exception() for each in attempts]
        refusals = [each for each in errors if isinstance(each, SmcpError) and not isinstance(each, CannotConnect)]
        if refusals:
            raise refusals[-1]
        reasons = {
            url: why for each in errors if isinstance(each, CannotConnect) for url, why in each.details["urls"].items()
        }
        failures = "; ".join(f"{url}: {why}" for url, why in reasons.items())
        kind = NotAGateway if all(isinstance(each, NotAGateway) for each in errors) else CannotConnect
        raise kind(f"cannot connect to {failures}", details={"urls": reasons})


def checked_url(url: str) -> str:
    """The URL of a gateway, with its path. Raises Malformed: it is not an http(s) or ws(s) URL with a host."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https", "ws", "wss"} and parts.hostname and parts.port != 0
    except (ValueError, AttributeError):  # it is no text
        usable = False
    if not usable:
        raise Malformed(f"url: {without_login(str(url))!r} is not like http://host:port", details={"field": "url"})
    return url


async def _is_ready(session: aiohttp.ClientSession, url: str) -> bool:
    """Asks `/readyz`, beside the gateway's Socket.IO endpoint."""
    parts = urlsplit(url)
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    asked = urlunsplit((scheme, parts.netloc, f"{parts.path.rstrip('/')}/readyz", "", ""))
    try:
        async with session.get(asked, allow_redirects=False) as response:
            return response.status == HTTPStatus.OK
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return False


TOKEN_S: Final = 10.0
"""The pause after a token that is not accepted: it may be renewed. The gateway slows down who tries too often (429)."""
SHUT_OUT_S: Final = 60.0
"""The pause after a 429 that asks for none."""


def delay(error: SmcpError) -> float:
    """Minimum wait in seconds after this refused connect."""
    match error:
        case NotAuthenticated():
            return jittered(TOKEN_S)
        case RateLimited():
            # `jittered` takes up to 20 % off: never earlier than the gateway asked for
            return jittered(1.25 * (retry_after(error) or SHUT_OUT_S))
        case _:
            return 0.0
