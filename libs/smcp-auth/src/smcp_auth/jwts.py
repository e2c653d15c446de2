"""Verifies JSON Web Tokens, and caches the keys of their issuer.

The key determines the algorithm: HS256 is for the shared secret alone, RS256 and ES256 for public keys of that kind.
"""

import asyncio
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import jwt
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from pydantic import BaseModel, Field, ValidationError

from smcp_auth.grants import Grants, Principal, Subject
from smcp_proto.errors import NotAuthenticated, Unavailable
from smcp_proto.validation import malformed
from smcp_service.files import UnusableFile, read_protected

FETCH_S: Final = 5.0
"""How long one fetch of a key set may take."""
RETRY_S: Final = 2.0
"""Between a fetch that failed and the next one."""
REFETCH_S: Final = 10.0
"""Between two fetches for an unknown `kid`: anybody can invent one."""
LEEWAY_S: Final = 30.0
"""How far ahead the issuer's clock may be (`nbf`, `iat`). Not for `exp`, at which a session ends."""
LARGEST: Final = 256 * 1024
"""Bytes of a key set."""
RSA_BITS: Final = 2048
"""The size of the smallest accepted RSA key (RFC 7518, 3.3)."""
SHARED: Final = "HS256"
PUBLIC: Final = ("RS256", "ES256")
SECRET_BYTES: Final = 32
"""Of the shortest accepted secret (RFC 7518, 3.2)."""
LATEST: Final = 253_402_300_799
"""The last second of the year 9999. JSON has numbers that no clock and no float has."""

NOT_ACCEPTED: Final = "the key or token is not accepted"
EXPIRED: Final = "the token has expired"

_log: Final = logging.getLogger("smcp_auth.jwts")

Load = Callable[[], Awaitable[bytes]]
"""Loads the set. Raises OSError, aiohttp.ClientError, TimeoutError, UnusableFile or BadKeySet."""


class NotAccepted(NotAuthenticated):
    """The 401 for a token that cannot be verified. It reveals no reason: `why` is only for the gateway's log."""

    def __init__(self, why: str) -> None:
        super().__init__(NOT_ACCEPTED)
        self.why = why


class _Claims(BaseModel):
    exp: float = Field(strict=True, le=LATEST)
    sub: Subject
    iss: str | None = None
    jti: str | None = None
    grants: Grants
    """Of the claim with the grants."""


class BadKeySet(ValueError):
    """Not a JWK Set. The message says why, and quotes nothing of it."""


def find_key(keys: Sequence[jwt.PyJWK], kid: str | None, algorithm: str) -> jwt.PyJWK | None:
    """The key of that `kid` for that algorithm. Without a `kid`: the only key for the algorithm."""
    fitting = [key for key in keys if key.algorithm_name == algorithm and kid in (None, key.key_id)]
    return fitting[0] if len(fitting) == 1 else None


def read_key_set(text: bytes) -> tuple[jwt.PyJWK, ...]:
    """Read a set. Raises BadKeySet: not a JSON object with a list `keys`, or none of them can be used."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise BadKeySet("is not JSON") from None
    listed = data.get("keys") if isinstance(data, dict) else None
    if not isinstance(listed, list):
        raise BadKeySet("is not a JWK Set: it has no list 'keys'")
    keys = tuple(key for each in listed if isinstance(each, dict) and (key := _read(each)) is not None)
    if not keys:
        raise BadKeySet("has no key for RS256 or ES256")
    return keys


def _read(jwk: Mapping[str, Any]) -> jwt.PyJWK | None:
    """None: not a public key for RS256 or ES256 signatures, or too weak."""
    operations = jwk.get("key_ops", ["verify"])
    try:
        key = jwt.PyJWK(dict(jwk))
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, NotImplementedError):
        return None
    if key.algorithm_name not in PUBLIC or jwk.get("use", "sig") != "sig":
        return None
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    match key.key:
        case RSAPublicKey(key_size=size):
            return key if size >= RSA_BITS else None
        case EllipticCurvePublicKey(curve=curve):
            return key if curve.name == "secp256r1" else None
        case _:
            return None


class Jwks:
    """The key set of an issuer, fetched by one request at a time, and used for its lifetime since its fetch began.
    After half of that the next token has it fetched again, beside: a short outage of the issuer does no harm."""

    def __init__(self, load: Load, *, lifetime_s: float = 300.0, refetch_s: float = REFETCH_S) -> None:
        self._load = load
        self._lifetime_s = lifetime_s
        self._refetch_s = refetch_s
        self._retry_s = min(RETRY_S, lifetime_s / 2)
        self._loop = asyncio.get_running_loop()
        self._fetching: asyncio.Task[None] | None = None
        self._keys: Sequence[jwt.PyJWK] = ()
        self._fetched_at = self._tried_at = -math.inf
        """When the fetch of that set began, and when one last ended (loop time)."""
        self._failed = False

    async def find(self, kid: str | None, algorithm: str) -> jwt.PyJWK | None:
        """The key of that `kid` for that algorithm. Raises Unavailable: the set has expired, and cannot be fetched."""
        if self._age >= self._lifetime_s / 2:
            fetching = self._fetch(self._retry_s)
            if self._age >= self._lifetime_s:
                await asyncio.shield(fetching)
        if self._age >= self._lifetime_s:
            raise Unavailable("the keys of the tokens' issuer cannot be fetched; retry")
        found = find_key(self._keys, kid, algorithm)
        if found is None and kid is not None:
            await asyncio.shield(self._fetch(self._refetch_s))
            found = find_key(self._keys, kid, algorithm)
        return found

    @property
    def _age(self) -> float:
        return self._loop.time() - self._fetched_at

    def _fetch(self, pause_s: float) -> "asyncio.Task[None]":
        """The running fetch, or else a new one, unless the last one ended less than `pause_s` ago. Others may share it:
        it is awaited by `shield`."""
        last = self._fetching
        if last is None or (last.done() and self._loop.time() - self._tried_at >= pause_s):
            last = self._fetching = self._loop.create_task(self._fetch_now(), name="key set")
        return last

    async def _fetch_now(self) -> None:
        began = self._loop.time()
        try:
            async with asyncio.timeout(FETCH_S):
                keys = read_key_set(await self._load())
        except (OSError, TimeoutError, aiohttp.ClientError, UnusableFile, BadKeySet) as error:
            if not self._failed:
                why = str(error) or f"no answer within {FETCH_S:g} s"
                _log.warning("the keys of the tokens' issuer cannot be fetched: %s", why)
            self._failed = True
        else:
            self._keys, self._fetched_at, self._failed = keys, began, False
        finally:
            self._tried_at = self._loop.time()


def load_of(where: str) -> Load:
    """Loads the set from a URL, or from a file."""
    return partial(_get, where) if "://" in where else partial(asyncio.to_thread, read_protected, Path(where))


async def _get(url: str) -> bytes:
    """With a new connection each time. Redirects are not followed."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, allow_redirects=False, headers={"Accept": "application/json"}) as answer,
    ):
        if answer.status != 200:
            raise BadKeySet(f"HTTP {answer.status}")
        text = b""
        async for chunk in answer.content.iter_chunked(64 * 1024):
            text += chunk
            if len(text) > LARGEST:
                raise BadKeySet(f"is larger than {LARGEST} bytes")
        return text


@dataclass(eq=False, repr=False)
class JwtVerifier:
    audience: str
    """Has to be `aud`, or in it."""
    _: KW_ONLY
    issuer: str | None = None
    """Has to be `iss`; None: any."""
    claim: str = "smcp"
    """The name of the claim with the grants."""
    secret: str | None = None
    """For HS256; None: such tokens are refused."""
    jwks: Jwks | None = None
    """The public keys; None: tokens signed with them are refused."""

    async def verify(self, token: str, *, audience: str | None = None) -> Principal:
        """The token's holder. `audience`: it may be for this one, too (RFC 8707).

        Raises NotAuthenticated, whose message says why if the signature is right, else NotAccepted; Unavailable.
        """
        try:
            header: Mapping[str, Any] = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise NotAccepted("it is not a JWT") from None
        algorithm, key = await self._key(header)
        return self._principal(self._claims(token, key, algorithm, audience))

    async def _key(self, header: Mapping[str, Any]) -> tuple[str, Any]:
        algorithm, kid = header.get("alg"), header.get("kid")
        if "crit" in header:
            raise NotAccepted("its header 'crit' asks for what is not understood here")
        if algorithm == SHARED and self.secret is not None:
            return SHARED, self.secret.encode()
        if algorithm not in PUBLIC or self.jwks is None:
            raise NotAccepted(f"no key is configured for its algorithm {algorithm!r:.64}")
        found = await self.jwks.find(kid, algorithm)
        if found is None:
            which = "no key, or several," if kid is None else f"no key {kid!r:.64}"
            raise NotAccepted(f"the issuer's set has {which} for {algorithm}")
        return algorithm, found.key

    def _claims(self, token: str, key: Any, algorithm: str, audience: str | None) -> Mapping[str, Any]:
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=[self.audience] if audience is None else [self.audience, audience],
                issuer=self.issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "aud", "sub"]},
            )
        except (jwt.DecodeError, jwt.InvalidAlgorithmError, jwt.InvalidKeyError, ValueError, TypeError) as error:
            raise NotAccepted(f"it cannot be checked by {algorithm}: {error}") from None
        except jwt.ExpiredSignatureError:
            raise NotAuthenticated(EXPIRED) from None
        except (jwt.InvalidTokenError, OverflowError) as error:  # of its claims: PyJWT checks the signature before
            raise NotAuthenticated(f"the token is not accepted: {error}") from None
        return claims

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        try:
            parsed = _Claims.model_validate({**claims, "grants": claims.get(self.claim)})
        except ValidationError as error:
            wrong = malformed(error).details
            field = wrong["field"].replace("grants", self.claim, 1)
            raise NotAuthenticated(f"the token's claim {field!r}: {wrong['reason']}") from None
        if parsed.exp <= time.time():
            raise NotAuthenticated(EXPIRED)
        return Principal(parsed.sub, parsed.grants, issuer=parsed.iss, expires_at=parsed.exp, token_id=parsed.jti)
