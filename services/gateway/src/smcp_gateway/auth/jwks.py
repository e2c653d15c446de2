"""The keys of a token issuer, kept for a while and fetched anew: by one task, and never by who waits for a key.

A set is taken for its lifetime, from the moment at which its fetch began. When half of that is over it is fetched
again, so that keys which come and go are heard of, and an issuer that is away for a moment is not noticed. A key
that has vanished from the set counts until the next fetch, so never longer than the lifetime.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from jwt.exceptions import PyJWTError

from smcp_proto.errors import Unavailable

FETCH_S: Final = 5.0
"""How long one fetch may take."""
RETRY_S: Final = 2.0
"""Between a fetch that failed and the next one."""
REFETCH_S: Final = 10.0
"""Between two fetches for the sake of a `kid` that is not known: anybody can make one up."""
LARGEST: Final = 256 * 1024
"""Bytes of a set."""

_log: Final = logging.getLogger("smcp_gateway.auth.jwks")

Load = Callable[[], Awaitable[bytes]]
"""Gets the set. Raises OSError, aiohttp.ClientError, TimeoutError or BadKeySet where that does not work."""


RSA_BITS: Final = 2048
"""Of the smallest RSA key that is taken (RFC 7518, 3.3)."""
_PUBLIC: Final[Mapping[str, tuple[str, ...]]] = {"RSA": ("kty", "n", "e"), "EC": ("kty", "crv", "x", "y")}
"""What is read of a key: of one that holds its private half that half is not."""


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
    """Read a set.

    Raises:
        BadKeySet: it is no JSON object with a list `keys`.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise BadKeySet("is not JSON") from None
    listed = data.get("keys") if isinstance(data, dict) else None
    if not isinstance(listed, list):
        raise BadKeySet("is no JWK Set: it has no list 'keys'")
    keys = tuple(_usable(listed))
    return KeySet(keys, skipped=len(listed) - len(keys))


def _usable(listed: list[Any]) -> Iterator[VerifyingKey]:
    for each in listed:
        key = _read(each) if isinstance(each, dict) else None
        if key is not None:
            yield key


def _read(jwk: Mapping[str, Any]) -> VerifyingKey | None:
    """None: it is not for checking signatures by an algorithm of ours."""
    kid, operations = jwk.get("kid"), jwk.get("key_ops")
    if not (kid is None or isinstance(kid, str)) or jwk.get("use", "sig") != "sig":
        return None
    if operations is not None and not (isinstance(operations, list) and "verify" in operations):
        return None
    names = _PUBLIC.get(str(jwk.get("kty")), ())
    if not names or not all(isinstance(jwk.get(name), str) for name in names):
        return None
    public = {name: jwk[name] for name in names}
    try:
        key: Any = (RSAAlgorithm if jwk["kty"] == "RSA" else ECAlgorithm).from_jwk(public)
    except (PyJWTError, ValueError, TypeError):
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
    """Args:
    load: gets the set.
    lifetime_s: how long one is taken.
    refetch_s: see `REFETCH_S`.

    `run` has to run for as long as `find` is asked.
    """

    def __init__(self, load: Load, *, lifetime_s: float, refetch_s: float = REFETCH_S) -> None:
        self._load = load
        self._lifetime_s = lifetime_s
        self._refetch_s = refetch_s
        self._set: KeySet | None = None
        self._fetched_at = 0.0
        """When the fetch of that set began (loop time)."""
        self._asked_at = float("-inf")
        """When a fetch was last begun."""
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
            try:
                async with asyncio.timeout(self._lifetime_s / 2 if good else min(RETRY_S, self._lifetime_s / 2)):
                    await self._wanted.wait()
            except TimeoutError:
                pass
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
        done = self._done
        try:
            async with asyncio.timeout(FETCH_S + 1):
                await done.wait()
        except TimeoutError:
            pass

    async def _fetch(self) -> bool:
        began = self._asked_at = asyncio.get_running_loop().time()
        self._fetching = True
        try:
            async with asyncio.timeout(FETCH_S):
                keys = read_key_set(await self._load())
        except (OSError, TimeoutError, aiohttp.ClientError, BadKeySet) as error:
            if not self._failed:
                _log.warning("the keys of the tokens' issuer cannot be had: %s", _said(error))
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
    """Reads the set from a file, without holding anybody up."""

    def read() -> bytes:
        with path.open("rb") as file:
            text = file.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise BadKeySet(f"is larger than {LARGEST} bytes")
        return text

    return lambda: asyncio.to_thread(read)


def _said(error: BaseException) -> str:
    match error:
        case aiohttp.ClientResponseError():
            return f"HTTP {error.status}"
        case TimeoutError():
            return f"no answer within {FETCH_S:g} s"
        case _:
            return str(error) or type(error).__name__
