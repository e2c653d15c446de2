"""JSON Web Tokens, and the keys of their issuer.

Which algorithm is right follows from the key, never from the token: HS256 is checked with the shared secret alone,
RS256 and ES256 with a public key of that kind alone. So a token that names another algorithm than its key's, or `none`,
has no key, and is refused.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import jwt
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from smcp_gateway.auth.grants import BadGrants, check_subject, read_grants
from smcp_gateway.auth.principal import NotAccepted, Principal
from smcp_proto.errors import NotAuthenticated, Unavailable

FETCH_S: Final = 5.0
"""How long one fetch of a key set may take."""
RETRY_S: Final = 2.0
"""Between a fetch that failed and the next one."""
REFETCH_S: Final = 10.0
"""Between two fetches for the sake of a `kid` that is not known: anybody can make one up."""
LARGEST: Final = 256 * 1024
"""Bytes of a key set."""
RSA_BITS: Final = 2048
"""Of the smallest RSA key that is taken (RFC 7518, 3.3)."""
SHARED: Final = "HS256"
PUBLIC: Final = ("RS256", "ES256")
SECRET_BYTES: Final = 32
"""Of the shortest shared secret (RFC 7518, 3.2)."""
_PUBLIC_PART: Final[Mapping[str, tuple[str, ...]]] = {"RSA": ("kty", "n", "e"), "EC": ("kty", "crv", "x", "y")}
"""What is read of a key: of one that holds its private half that half is not."""

_log: Final = logging.getLogger("smcp_gateway.auth.tokens")

Load = Callable[[], Awaitable[bytes]]
"""Gets the set. Raises OSError, aiohttp.ClientError, TimeoutError or BadKeySet where that does not work."""


class BadKeySet(ValueError):
    """It is no JWK Set. The message says why, and quotes nothing of it."""


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """A public key, for one algorithm alone: so a token cannot choose how it is checked."""

    kid: str | None
    algorithm: str
    """`RS256` or `ES256`."""
    key: RSAPublicKey | EllipticCurvePublicKey


@dataclass(frozen=True, slots=True)
class KeySet:
    """The keys that can be used, and how many were passed over: other algorithms, too short, not for signatures."""

    keys: tuple[VerifyingKey, ...] = ()
    skipped: int = 0

    def find(self, kid: str | None, algorithm: str) -> VerifyingKey | None:
        """The key of that `kid` for that algorithm. A token without a `kid` means the only key there is for it."""
        fitting = [key for key in self.keys if key.algorithm == algorithm and (kid is None or key.kid == kid)]
        return fitting[0] if len(fitting) == 1 else None


def read_key_set(text: bytes) -> KeySet:
    """Read a set. Raises BadKeySet: it is no JSON object with a list `keys`."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise BadKeySet("is not JSON") from None
    listed = data.get("keys") if isinstance(data, dict) else None
    if not isinstance(listed, list):
        raise BadKeySet("is no JWK Set: it has no list 'keys'")
    keys = tuple(key for each in listed if isinstance(each, dict) and (key := _read(each)) is not None)
    return KeySet(keys, skipped=len(listed) - len(keys))


def _read(jwk: Mapping[str, Any]) -> VerifyingKey | None:
    """None: it is not for checking signatures by an algorithm of ours."""
    kid, operations = jwk.get("kid"), jwk.get("key_ops")
    if not (kid is None or isinstance(kid, str)) or jwk.get("use", "sig") != "sig":
        return None
    if operations is not None and not (isinstance(operations, list) and "verify" in operations):
        return None
    names = _PUBLIC_PART.get(str(jwk.get("kty")), ())
    if not names or not all(isinstance(jwk.get(name), str) for name in names):
        return None
    try:
        read = (RSAAlgorithm if jwk["kty"] == "RSA" else ECAlgorithm).from_jwk
        key: Any = read({name: jwk[name] for name in names})
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    match key:
        case RSAPublicKey() if key.key_size >= RSA_BITS:
            algorithm = "RS256"
        case EllipticCurvePublicKey() if key.curve.name == "secp256r1":
            algorithm = "ES256"
        case _:
            return None
    return VerifyingKey(kid, algorithm, key) if jwk.get("alg", algorithm) == algorithm else None


class Jwks:
    """The key set of an issuer. One task fetches it, and never a request that waits for a key.

    A set is taken for its lifetime, from the moment at which its fetch began. When half of that is over it is fetched
    again, so an issuer that is away for a moment is not noticed. `run` has to run for as long as `find` is asked.

    Args:
        lifetime_s: how long a set is taken.
        refetch_s: see `REFETCH_S`.
    """

    def __init__(self, load: Load, *, lifetime_s: float, refetch_s: float = REFETCH_S) -> None:
        self._load = load
        self._lifetime_s = lifetime_s
        self._refetch_s = refetch_s
        self._set: KeySet | None = None
        self._fetched_at = 0.0
        """When the fetch of that set began (loop time)."""
        self._asked_at = float("-inf")
        """When a fetch was last begun, or asked for."""
        self._fetching = False
        """Whether one is under way, or asked for: who needs a key that is not known waits for it."""
        self._wanted = asyncio.Event()
        self._done = asyncio.Event()
        """Of the next fetch that ends; replaced each time."""
        self._failed = False

    async def run(self) -> None:
        """Fetch the set now, and again in time, until cancelled."""
        while True:
            good = await self._fetch()
            self._fetching = False
            self._done.set()
            self._done = asyncio.Event()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._lifetime_s / 2 if good else min(RETRY_S, self._lifetime_s / 2)):
                    await self._wanted.wait()
            self._wanted.clear()

    async def find(self, kid: str | None, algorithm: str) -> VerifyingKey | None:
        """The key of that `kid` for that algorithm; None: there is none.

        Raises:
            Unavailable: there is no set that may still be taken, and none can be had now.
        """
        if self._current() is None:
            await self._next()
        keys = self._current()
        if keys is None:
            raise Unavailable("the keys of the tokens' issuer cannot be had now; try again")
        found = keys.find(kid, algorithm)
        if found is None and kid is not None and self._asked():
            await self._next()
            found = (self._current() or KeySet()).find(kid, algorithm)
        return found

    def _current(self) -> KeySet | None:
        over = asyncio.get_running_loop().time() - self._fetched_at >= self._lifetime_s
        return None if over else self._set

    def _asked(self) -> bool:
        """Whether a fetch is under way; one is asked for where that may be."""
        now = asyncio.get_running_loop().time()
        if not self._fetching and now - self._asked_at >= self._refetch_s:
            self._asked_at, self._fetching = now, True
            self._wanted.set()
        return self._fetching

    async def _next(self) -> None:
        """Wait until a fetch has ended, but no longer than one may take."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FETCH_S + 1):
                await self._done.wait()

    async def _fetch(self) -> bool:
        began = self._asked_at = asyncio.get_running_loop().time()
        self._fetching = True
        try:
            async with asyncio.timeout(FETCH_S):
                keys = read_key_set(await self._load())
        except (OSError, TimeoutError, aiohttp.ClientError, BadKeySet) as error:
            if not self._failed:
                _log.warning("the keys of the tokens' issuer cannot be had: %s", _reason(error))
            self._failed = True
            return False
        if self._failed or self._set is None:
            _log.info("the keys of the tokens' issuer were read", extra={"keys": len(keys.keys)})
        if keys.skipped and (self._set is None or self._set.skipped != keys.skipped):
            _log.warning("keys of the tokens' issuer are not used", extra={"skipped": keys.skipped})
        self._set, self._fetched_at, self._failed = keys, began, False
        return True


def from_url(url: str) -> Load:
    """Gets the set over HTTP; each time by a connection of its own. Redirects are not followed."""

    async def load() -> bytes:
        timeout = aiohttp.ClientTimeout(total=FETCH_S)
        async with (
            aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session,
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

    return load


def from_file(path: Path) -> Load:
    """Reads the set from a file, in a thread."""

    def read() -> bytes:
        with path.open("rb") as file:
            text = file.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise BadKeySet(f"is larger than {LARGEST} bytes")
        return text

    return lambda: asyncio.to_thread(read)


def _reason(error: BaseException) -> str:
    match error:
        case aiohttp.ClientResponseError():
            return f"HTTP {error.status}"
        case TimeoutError():
            return f"no answer within {FETCH_S:g} s"
        case _:
            return str(error) or type(error).__name__


@dataclass(frozen=True, slots=True)
class Expected:
    """What a token has to say.

    Attributes:
        audience: has to be `aud`, or in it.
        issuer: has to be `iss`; None: any.
        claim: the name of the claim that says what is allowed.
        leeway_s: how much later than ours the issuer's clock may be (`nbf`, `iat`). `exp` has none: the session of a
            token ends with it.
    """

    audience: str
    issuer: str | None = None
    claim: str = "smcp"
    leeway_s: float = 30.0


class TokenVerifier:
    """Checks JWTs.

    Args:
        secret: of HS256; None: such tokens are refused.
        jwks: the public keys; None: tokens signed by them are refused.
    """

    def __init__(self, expected: Expected, *, secret: str | None = None, jwks: Jwks | None = None) -> None:
        self._expected = expected
        self._secret = secret
        self._jwks = jwks

    async def verify(self, token: str) -> Principal:
        """Who holds the token.

        Raises:
            NotAuthenticated: it is not accepted. The message says why only of a token whose signature is right; of any
                other one `NotAccepted.why` does.
            Unavailable: the issuer's keys cannot be had now.
        """
        try:
            header: Mapping[str, Any] = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise NotAccepted("it is no JWT") from None
        algorithm, key = await self._key(header)
        return self._principal(self._claims(token, key, algorithm))

    async def _key(self, header: Mapping[str, Any]) -> tuple[str, Any]:
        """The algorithm that is checked, and with which key."""
        algorithm, kid = header.get("alg"), header.get("kid")
        if "crit" in header:
            raise NotAccepted("its header 'crit' asks for what is not understood here")
        if not (kid is None or isinstance(kid, str)):
            raise NotAccepted("its header 'kid' is not a string")
        if algorithm == SHARED and self._secret is not None:
            return SHARED, self._secret.encode()
        if algorithm not in PUBLIC or self._jwks is None:
            raise NotAccepted(f"nothing is configured to check its algorithm {_quoted(algorithm)} with")
        found = await self._jwks.find(kid, algorithm)
        if found is None:
            which = "no key, or several," if kid is None else f"no key {_quoted(kid)}"
            raise NotAccepted(f"the issuer's set has {which} for {algorithm}")
        return algorithm, found.key

    def _claims(self, token: str, key: Any, algorithm: str) -> Mapping[str, Any]:
        expected = self._expected
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=expected.audience,
                issuer=expected.issuer,
                leeway=expected.leeway_s,
                options={"require": ["exp", "aud", "sub"]},
            )
        except jwt.InvalidSignatureError:
            raise NotAccepted(f"its signature is not of the key that it names, by {algorithm}") from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError) as error:
            if (why := _wrong_claim(error, expected)) is not None:
                raise NotAuthenticated(why) from None
            raise NotAccepted(f"it cannot be checked: {error}") from None
        return claims

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        expires, issuer, claim = claims.get("exp"), claims.get("iss"), self._expected.claim
        if not isinstance(expires, int | float) or isinstance(expires, bool):
            raise NotAuthenticated("the token's claim 'exp' is not a number")
        if expires <= time.time():
            raise NotAuthenticated("the token has expired")
        try:
            subject = check_subject(claims.get("sub"))
        except ValueError as error:
            raise NotAuthenticated(f"the token's claim 'sub' {error}") from None
        if not (issuer is None or isinstance(issuer, str)):
            raise NotAuthenticated("the token's claim 'iss' is not a string")
        if claim not in claims:
            raise NotAuthenticated(f"the token has no claim {claim!r}, so it is for no office")
        try:
            grants = read_grants(claims[claim])
        except BadGrants as error:
            raise NotAuthenticated(f"the token's claim {claim!r}: {error}") from None
        return Principal(subject, grants, issuer=issuer, expires_at=float(expires))


def _quoted(said: object) -> str:
    """What a token says of itself, for the log: without line ends, and no longer than can be read."""
    text = repr(said)
    return text if len(text) <= 64 else f"{text[:64]}..."


def _wrong_claim(error: Exception, expected: Expected) -> str | None:
    """What is wrong with its claims, at which PyJWT looks only where the signature is right; None: something else."""
    match error:
        case jwt.ExpiredSignatureError():
            return "the token has expired"
        case jwt.ImmatureSignatureError():
            return "the token is not valid yet"
        case jwt.InvalidAudienceError():
            return f"the token is not for the audience {expected.audience!r}"
        case jwt.InvalidIssuerError():
            return f"the token is not of the issuer {expected.issuer!r}"
        case jwt.MissingRequiredClaimError():
            return f"the token has no claim {error.claim!r}"
        case _:
            return None
