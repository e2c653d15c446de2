"""Lets clients in: nobody without a token, and nobody for longer than it lasts.

A token may come with the first HTTP request (`Authorization: Bearer`) or in the `auth` object of Socket.IO's CONNECT
(`token`). A wrong one in the header is refused with HTTP 401 before Socket.IO sees the request. A client that sends no
header may still have the other: it is refused where it connects to the namespace, and its connection is closed.
"""

import asyncio
import logging
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from smcp_gateway.auth.keys import PREFIX, KeyFileError, WatchedKeys
from smcp_gateway.auth.login_throttle import LoginThrottle, Network, client_address
from smcp_gateway.auth.principal import NotAccepted, Principal
from smcp_gateway.auth.settings import AuthSettings
from smcp_gateway.auth.tokens import Jwks, TokenVerifier, from_file, from_url
from smcp_proto.errors import Malformed, NotAuthenticated, RateLimited, SmcpError, Unavailable

HEADER: Final = "Authorization"
FIELD: Final = "token"
"""Of `auth`."""
_BEARER: Final = re.compile(r"bearer +(?P<token>\S.*?)\s*", re.IGNORECASE)
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,8192}")
_PRINCIPAL: Final = web.RequestKey("principal", Principal)
_PRESENTED: Final = web.RequestKey("token", str)
"""Under which the request keeps what its header said."""
_UNQUOTED: Final = re.compile(r"[^\x20-\x21\x23-\x5b\x5d-\x7e]")
"""What may not stand between the quotes of a header's parameter (RFC 6750, 3)."""

_log: Final = logging.getLogger("smcp_gateway.auth")


class Authority:
    """Knows who holds a token: a key by the file of keys, anything else as a JWT.

    Args:
        keys: the API keys; None: there are none.
        tokens: checks JWTs; None: none is accepted.
        jwks: whose `run` is part of ours.
    """

    def __init__(self, keys: WatchedKeys | None, tokens: TokenVerifier | None, jwks: Jwks | None) -> None:
        self._keys = keys
        self._tokens = tokens
        self._jwks = jwks

    async def run(self) -> None:
        """Keep the issuer's keys fresh, until cancelled."""
        if self._jwks is not None:
            await self._jwks.run()

    async def authenticate(self, token: str | None) -> Principal:
        """Who holds the token.

        Raises:
            NotAuthenticated: it is not accepted.
            Unavailable: that cannot be found out now.
        """
        if not token:
            raise NotAuthenticated(
                f"a token is needed: auth.{FIELD} of Socket.IO's CONNECT, or the header {HEADER}: Bearer"
            )
        if not _TOKEN.fullmatch(token):
            raise NotAccepted("it is empty, too long, or not of visible ASCII characters")
        if token.startswith(PREFIX):
            return self._holder_of(token)
        if self._tokens is None:
            raise NotAccepted("it is no API key, and no JWT is accepted here")
        return await self._tokens.verify(token)

    def ended(self, principal: Principal) -> str | None:
        """Why the sessions of this holder are over; None: they are not."""
        if principal.expires_at is not None and principal.expires_at <= time.time():
            return "its token has expired"
        return None if self.may_return(principal) else "its key was removed or changed"

    def may_return(self, principal: Principal) -> bool:
        """Whether the holder may come back as the same with a new token: nobody took its key from it."""
        key = principal.key
        return key is None or (self._keys is not None and self._keys.ring.get(key.id) == key)

    async def refresh(self) -> None:
        """Read the file of keys again if it has changed."""
        if self._keys is None:
            return
        try:
            if await asyncio.to_thread(self._keys.refresh):
                _log.info("the file of keys has changed, and was read")
        except KeyFileError as error:
            _log.error("the file of keys has changed and cannot be used; the keys stay as they were: %s", error)

    def _holder_of(self, key: str) -> Principal:
        entry = None if self._keys is None else self._keys.ring.find(key)
        if entry is None:
            raise NotAccepted("there is no such API key" if self._keys is not None else "no API key is accepted here")
        if entry.expires_at is not None and entry.expires_at <= time.time():
            raise NotAuthenticated("the key has expired")
        return Principal(entry.subject, entry, expires_at=entry.expires_at, key=entry)


def open_authority(settings: AuthSettings) -> Authority | None:
    """What the settings say; None: nobody needs a token. Raises KeyFileError: the file of keys cannot be used."""
    if not settings.auth_configured:
        return None
    keys = None if settings.auth_keys is None else WatchedKeys(settings.auth_keys)
    if not settings.auth_with_tokens:
        return Authority(keys, None, None)
    jwks = None
    if (where := settings.auth_jwks) is not None:
        load = from_url(where) if "://" in where else from_file(Path(where))
        jwks = Jwks(load, lifetime_s=settings.auth_jwks_lifetime_s)
    secret = None if settings.auth_secret is None else settings.auth_secret.get_secret_value()
    return Authority(keys, TokenVerifier(settings.expected, secret=secret, jwks=jwks), jwks)


class Guard:
    """Asks each client for its token.

    Args:
        proxies: whose `X-Forwarded-For` is believed.
    """

    def __init__(self, authority: Authority, proxies: Sequence[Network] = ()) -> None:
        self.authority = authority
        self._proxies = proxies
        self._throttle = LoginThrottle()

    async def check(self, request: web.Request) -> web.Response | None:
        """Look at a request that begins a connection; the answer that refuses it, or None: Socket.IO may see it."""
        said = _BEARER.fullmatch(request.headers.get(HEADER, ""))
        try:
            if said is None:
                self._throttled(request)
            else:
                request[_PRINCIPAL] = await self._authenticate(request, said["token"])
                request[_PRESENTED] = said["token"]
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
        details = {"field": f"auth.{FIELD}"}
        if said is not None and not isinstance(said, str):
            raise Malformed(f"auth.{FIELD}: is not a string", details=details)
        known: Principal | None = request.get(_PRINCIPAL)
        if known is None:
            return await self._authenticate(request, said)
        if said is not None and said != request.get(_PRESENTED):
            raise Malformed(f"auth.{FIELD}: is not the token of the header {HEADER}", details=details)
        if (over := self.authority.ended(known)) is not None:
            raise NotAuthenticated(over)
        return known

    async def _authenticate(self, request: web.Request, token: str | None) -> Principal:
        address = self._throttled(request)
        try:
            return await self.authority.authenticate(token)
        except NotAuthenticated as error:
            self._throttle.failed(address, asyncio.get_running_loop().time())
            why = f"{error.message}: {error.why}" if isinstance(error, NotAccepted) else error.message
            _log.info("a client was refused: %s", why, extra={"address": address})
            raise

    def _throttled(self, request: web.Request) -> str:
        """The client's address. Raises RateLimited: too many wrong tokens came from there."""
        address = client_address(request.remote, request.headers.getall("X-Forwarded-For", []), self._proxies)
        if wait := self._throttle.retry_after(address, asyncio.get_running_loop().time()):
            raise RateLimited("too many wrong tokens came from this address", details={"retry_after_s": wait})
        return address


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
