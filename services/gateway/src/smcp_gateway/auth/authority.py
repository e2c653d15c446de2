"""Who a token makes its holder: a key by the file of keys, anything else as a JWT."""

import asyncio
import logging
import re
import time
from pathlib import Path
from typing import Final

from smcp_gateway.auth.jwks import Jwks, from_file, from_url
from smcp_gateway.auth.jwt_tokens import TokenVerifier
from smcp_gateway.auth.keys import PREFIX, KeyFileError, WatchedKeys
from smcp_gateway.auth.principal import NotAccepted, Principal
from smcp_gateway.auth.settings import AuthSettings
from smcp_proto.errors import NotAuthenticated

_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,8192}")
"""What a token may look like at all."""

_log: Final = logging.getLogger("smcp_gateway.auth")


class Authority:
    """Args:
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

    async def authenticate(self, token: str) -> Principal:
        """Who holds the token.

        Raises:
            NotAuthenticated: it is not accepted.
            Unavailable: that cannot be found out now.
        """
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
        """Whether the holder, whose session is over, may come back as the same: its token expired, and nobody took it
        from it."""
        key = principal.key
        return key is None or (self._keys is not None and self._keys.ring.get(key.id) == key)

    async def refresh(self) -> None:
        """See to keys that were added, changed or removed."""
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
    """What the settings say; None: nobody needs a token.

    Raises:
        KeyFileError: the file of keys cannot be used.
    """
    if not settings.auth_configured:
        return None
    keys = None if settings.auth_keys is None else WatchedKeys(settings.auth_keys)
    if not settings.auth_with_tokens:
        return Authority(keys, None, None)
    jwks = None
    if settings.auth_jwks is not None:
        where = settings.auth_jwks
        load = from_url(where) if "://" in where else from_file(Path(where))
        jwks = Jwks(load, lifetime_s=settings.auth_jwks_lifetime_s)
    secret = None if settings.auth_secret is None else settings.auth_secret.get_secret_value()
    return Authority(keys, TokenVerifier(settings.expected, secret=secret, jwks=jwks), jwks)
