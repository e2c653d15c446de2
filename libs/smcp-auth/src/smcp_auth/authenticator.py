"""From a client's token to its principal, and the end of what a token allows: expiry, removed keys, revoked tokens."""

import asyncio
import logging
import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from smcp_auth.api_keys import PREFIX, KeyEntry, WatchedKeys
from smcp_auth.client_addresses import Network
from smcp_auth.grants import Principal, Revocations, read_revocations
from smcp_auth.jwts import Jwks, JwtVerifier, NotAccepted, load_of
from smcp_auth.settings import AuthSettings
from smcp_bus.limits import Buckets, Rate
from smcp_proto.errors import NotAuthenticated, RateLimited
from smcp_service.files import UnusableFile, WatchedFile

HEADER: Final = "Authorization"
HEADER_FORM: Final = f"the header {HEADER}: Bearer"
_BEARER: Final = re.compile(r"bearer +(?P<token>\S.*?)\s*", re.IGNORECASE)
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,8192}")
_UNQUOTED: Final = re.compile(r"[^\x20-\x21\x23-\x5b\x5d-\x7e]")
"""Characters that are not allowed there (RFC 6750, 3)."""

LOOK_S: Final = 1.0
"""How often services look which tokens have expired or were revoked (seconds)."""
WRONG_TOKENS: Final = Rate(20 / 60, 60.0)
"""Of one address, and under the id of one key: 20 at once, then one in 3 s. Our clients try six times in a minute."""
REVOKED: Final = "the token was revoked"

_log: Final = logging.getLogger("smcp_auth")


def open_authenticator(settings: AuthSettings) -> "Authenticator | None":
    """The authenticator of these settings; None: no client needs a token. Raises UnusableFile."""
    if not settings.auth_configured:
        return None
    keys = None if settings.auth_keys is None else WatchedKeys(settings.auth_keys)
    if not settings.auth_with_tokens:
        return Authenticator(keys, None, settings.proxies)
    tokens = JwtVerifier(
        settings.auth_audience or "",
        issuer=settings.auth_issuer,
        claim=settings.auth_claim,
        secret=None if settings.auth_secret is None else settings.auth_secret.get_secret_value(),
        jwks=None if settings.auth_jwks is None else Jwks(load_of(settings.auth_jwks)),
    )
    revoked = None if settings.auth_revoked is None else WatchedFile(settings.auth_revoked, read_revocations)
    return Authenticator(keys, tokens, settings.proxies, revoked)


@dataclass(eq=False, repr=False)
class Authenticator:
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
    _throttle: Buckets = field(default_factory=lambda: Buckets(WRONG_TOKENS, time.monotonic), init=False)

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

    async def authenticate(
        self, token: str | None, source: str, *, sent_in: str = HEADER_FORM, audience: str | None = None
    ) -> Principal:
        """The holder of a token. A wrong one is counted under the address `source`; a JWT may be for `audience`, too;
        `sent_in` is for the message that there is none. Raises NotAuthenticated; RateLimited: too many wrong tokens
        came from this address; Unavailable: not checked now."""
        try:
            return await self._holder_of(token, sent_in, audience)
        except NotAuthenticated as error:
            self._count(source, error)
            raise

    def _count(self, source: str, error: NotAuthenticated) -> None:
        """Count and log a wrong token. Raises RateLimited: too many came from this address."""
        if wait := self._throttle.take(source):
            self.refusals["throttled"] += 1
            details = {"retry_after_s": math.ceil(wait)}
            raise RateLimited("too many wrong tokens came from this address", details=details) from None
        self.refusals["token"] += 1
        why = f"{error.message}: {error.why}" if isinstance(error, NotAccepted) else error.message
        _log.info("a client was refused: %s", why, extra={"address": source})

    async def _holder_of(self, token: str | None, sent_in: str, audience: str | None) -> Principal:
        if not token:
            raise NotAuthenticated(f"a token is needed: {sent_in}")
        if not _TOKEN.fullmatch(token):
            raise NotAccepted("it is empty, too long, or not of visible ASCII characters")
        if not token.startswith(PREFIX):
            if self.tokens is None:
                raise NotAccepted("it is not an API key, and no JWT is accepted here")
            holder = await self.tokens.verify(token, audience=audience)
            if self._is_revoked(holder):
                raise NotAuthenticated(REVOKED)
            return holder
        key = None if self.keys is None else self.keys.find(token)
        if key is None:
            raise NotAccepted("there is no such API key" if self.keys is not None else "no API key is accepted here")
        if key.expires_at is not None and key.expires_at <= time.time():
            raise NotAuthenticated("the key has expired")
        return Principal(key.subject, key, expires_at=key.expires_at, kind="key")


def bearer_token(header: str) -> str | None:
    """The token of a header `Authorization`; None: it has none."""
    bearer = _BEARER.fullmatch(header)
    return None if bearer is None else bearer["token"]


def quoted(text: str) -> str:
    """As a quoted parameter of the header `WWW-Authenticate` may hold it."""
    return _UNQUOTED.sub("?", text)
