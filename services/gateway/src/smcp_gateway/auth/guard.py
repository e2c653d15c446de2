"""Authenticates clients, and ends their sessions.

A token comes with the first HTTP request (`Authorization: Bearer`; a wrong one is answered 401), or as `token` in the
`auth` object of Socket.IO's CONNECT (for a wrong one CONNECT is refused and the connection closed).
"""

import asyncio
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from smcp_gateway.auth.api_keys import PREFIX, KeyEntry, WatchedKeys
from smcp_gateway.auth.client_addresses import LoginThrottle, Network, source_of
from smcp_gateway.auth.grants import Principal, Revocations, read_revocations
from smcp_gateway.auth.jwts import Jwks, JwtVerifier, NotAccepted, from_file, from_url
from smcp_gateway.auth.settings import AuthSettings
from smcp_proto.errors import Malformed, NotAuthenticated, RateLimited, SmcpError, Unavailable
from smcp_service.files import UnusableFile, WatchedFile

HEADER: Final = "Authorization"
FIELD: Final = "token"
"""The field of `auth` with the token."""
_BEARER: Final = re.compile(r"bearer +(?P<token>\S.*?)\s*", re.IGNORECASE)
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,8192}")
_PRINCIPAL: Final = web.RequestKey("principal", Principal)
_PRESENTED: Final = web.RequestKey("token", str)
"""The token of the request's header."""
_KEY_ID: Final = 32
"""Characters of a key's id, at most."""
_UNQUOTED: Final = re.compile(r"[^\x20-\x21\x23-\x5b\x5d-\x7e]")
"""Characters that are not allowed in a quoted parameter of a header (RFC 6750, 3)."""

REVOKED: Final = "the token was revoked"

_log: Final = logging.getLogger("smcp_gateway.auth")


def open_guard(settings: AuthSettings) -> "Guard | None":
    """The guard of these settings; None: no client needs a token. Raises UnusableFile: a file cannot be used."""
    if not settings.auth_configured:
        return None
    keys = None if settings.auth_keys is None else WatchedKeys(settings.auth_keys)
    if not settings.auth_with_tokens:
        return Guard(keys, None, settings.proxies)
    jwks = None
    if (where := settings.auth_jwks) is not None:
        load = from_url(where) if "://" in where else from_file(Path(where))
        jwks = Jwks(load, lifetime_s=settings.auth_jwks_lifetime_s)
    tokens = JwtVerifier(
        settings.auth_audience or "",
        issuer=settings.auth_issuer,
        claim=settings.auth_claim,
        leeway_s=settings.auth_leeway_s,
        secret=None if settings.auth_secret is None else settings.auth_secret.get_secret_value(),
        jwks=jwks,
    )
    revoked = None if settings.auth_revoked is None else WatchedFile(settings.auth_revoked, read_revocations)
    return Guard(keys, tokens, settings.proxies, revoked)


@dataclass(eq=False, repr=False)
class Guard:
    """Checks each client's token: an API key of the key file, or a JWT."""

    keys: WatchedKeys | None
    """None: no API key is accepted."""
    tokens: JwtVerifier | None
    """None: no JWT is accepted."""
    proxies: Sequence[Network]
    """Trusted in `X-Forwarded-For`."""
    revoked: WatchedFile[Revocations] | None = None
    """JWTs that are not accepted any more."""
    refusals: dict[str, int] = field(default_factory=lambda: {"token": 0, "throttled": 0}, init=False)
    """Clients without an acceptable token, and those that tried too often."""
    _throttle: LoginThrottle = field(default_factory=LoginThrottle, init=False)
    _logged: LoginThrottle = field(default_factory=LoginThrottle, init=False)

    async def run(self) -> None:
        """Refresh the issuer's keys until cancelled."""
        if self.tokens is not None and self.tokens.jwks is not None:
            await self.tokens.jwks.run()

    async def refresh(self) -> None:
        """Read the files of keys and of revoked tokens again if they have changed."""
        for file, what in ((self.keys, "keys"), (self.revoked, "revoked tokens")):
            try:
                if file is not None and await asyncio.to_thread(file.refresh):
                    _log.info("the file of %s has changed, and was read", what)
            except UnusableFile as error:
                why = "the changed file of %s cannot be used; its last valid content stays in force: %s"
                _log.error(why, what, error)

    def ended(self, principal: Principal) -> str | None:
        """Why the sessions of this holder have to end; None: they do not."""
        if principal.expires_at is not None and principal.expires_at <= time.time():
            return "its token has expired"
        if self._is_revoked(principal):
            return REVOKED
        return None if self.may_return(principal) else "its key was removed or changed"

    def may_return(self, principal: Principal) -> bool:
        """Whether the holder may come back with a new token: its key was not removed, nor its token revoked."""
        key = principal.grants
        if not isinstance(key, KeyEntry):
            return not self._is_revoked(principal)
        return self.keys is not None and self.keys.value.get(key.id) == key

    def _is_revoked(self, principal: Principal) -> bool:
        return self.revoked is not None and self.revoked.value.holds(principal)

    async def check(self, request: web.Request) -> None:
        """Check a request that begins a connection. Raises what `admit` raises."""
        bearer = _BEARER.fullmatch(request.headers.get(HEADER, ""))
        if bearer is not None:  # else the token comes with CONNECT
            request[_PRINCIPAL] = await self._authenticate(request, bearer["token"])
            request[_PRESENTED] = bearer["token"]

    async def admit(self, request: web.Request, auth: object) -> Principal:
        """Authenticate a client that connects to the namespace.

        Args:
            request: the one that began the connection.
            auth: from CONNECT.

        Raises:
            NotAuthenticated: no token, or one that is not accepted.
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
            return await self._authenticate(request, token)
        if token is not None and token != request.get(_PRESENTED):
            raise Malformed(f"auth.{FIELD}: is not the token of the header {HEADER}", details=details)
        if (over := self.ended(known)) is not None:
            raise NotAuthenticated(over)
        return known

    async def _authenticate(self, request: web.Request, token: str | None) -> Principal:
        try:
            return await self._holder_of(token)
        except NotAuthenticated as error:
            self._count(source_of(request, self.proxies), token or "", error)
            raise

    def _count(self, source: str, token: str, error: NotAuthenticated) -> None:
        """Count and log a wrong token. Raises RateLimited: too many came from this address under this key's id."""
        now = asyncio.get_running_loop().time()
        under = f"{source} {_key_id(token)}"
        if wait := self._throttle.retry_after(under, now):
            self.refusals["throttled"] += 1
            raise RateLimited("too many wrong tokens came from this address", details={"retry_after_s": wait}) from None
        self._throttle.failed(under, now)
        self.refusals["token"] += 1
        if not self._logged.retry_after(source, now):
            self._logged.failed(source, now)
            why = f"{error.message}: {error.why}" if isinstance(error, NotAccepted) else error.message
            _log.info("a client was refused: %s", why, extra={"address": source})

    async def _holder_of(self, token: str | None) -> Principal:
        if not token:
            raise NotAuthenticated(
                f"a token is needed: auth.{FIELD} of Socket.IO's CONNECT, or the header {HEADER}: Bearer"
            )
        if not _TOKEN.fullmatch(token):
            raise NotAccepted("it is empty, too long, or not of visible ASCII characters")
        if not token.startswith(PREFIX):
            if self.tokens is None:
                raise NotAccepted("it is no API key, and no JWT is accepted here")
            holder = await self.tokens.verify(token)
            if self._is_revoked(holder):
                raise NotAuthenticated(REVOKED)
            return holder
        key = None if self.keys is None else self.keys.find(token)
        if key is None:
            raise NotAccepted("there is no such API key" if self.keys is not None else "no API key is accepted here")
        if key.expires_at is not None and key.expires_at <= time.time():
            raise NotAuthenticated("the key has expired")
        return Principal(key.subject, key, expires_at=key.expires_at, kind="key")


def _key_id(token: str) -> str:
    """What an API key says; empty for any other token."""
    return token.removeprefix(PREFIX).partition("_")[0][:_KEY_ID] if token.startswith(PREFIX) else ""


def refusal_response(error: SmcpError) -> web.Response:
    """The HTTP response to a refusal: the flat error with HTTP's headers."""
    headers = {"Cache-Control": "no-store"}
    match error:
        case NotAuthenticated():
            description = _UNQUOTED.sub("?", error.message)
            headers["WWW-Authenticate"] = f'Bearer error="invalid_token", error_description="{description}"'
        case RateLimited(details={"retry_after_s": wait}):
            headers["Retry-After"] = str(wait)
        case Unavailable():
            headers["Retry-After"] = "1"
    body: dict[str, Any] = error.body().model_dump()
    return web.json_response(body, status=int(error.code), headers=headers)
