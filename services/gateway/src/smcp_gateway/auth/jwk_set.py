"""A JSON Web Key Set (RFC 7517), read: which public key is behind which `kid`, and for which algorithm. No I/O."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from jwt.exceptions import PyJWTError

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
