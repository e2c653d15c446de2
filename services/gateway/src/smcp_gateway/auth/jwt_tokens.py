"""JSON Web Tokens: who signed one, for whom, for how long, and what its claim allows.

Which algorithm is right follows from the key, never from the token: HS256 is checked with the shared secret alone,
RS256 and ES256 with a public key of that kind alone. So a token that names another algorithm than its key's, or `none`,
has no key, and is refused.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import jwt

from smcp_gateway.auth.grants import BadGrants, check_subject, read_grants
from smcp_gateway.auth.jwks import Jwks
from smcp_gateway.auth.principal import NotAccepted, Principal, quoted
from smcp_proto.errors import NotAuthenticated

SHARED: Final = "HS256"
PUBLIC: Final = ("RS256", "ES256")
SECRET_BYTES: Final = 32
"""Of the shortest shared secret (RFC 7518, 3.2)."""


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
    """Args:
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
        algorithm, key = await self._key(_header(token))
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
        for known in PUBLIC:
            if algorithm == known and self._jwks is not None:
                found = await self._jwks.find(kid, known)
                if found is None:
                    which = "no key, or several," if kid is None else f"no key {quoted(kid)}"
                    raise NotAccepted(f"the issuer's set has {which} for {known}")
                return known, found.key
        raise NotAccepted(f"nothing is configured to check its algorithm {quoted(algorithm)} with")

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
        except jwt.InvalidTokenError as error:
            if (why := _why(error, expected)) is not None:
                raise NotAuthenticated(why) from None
            raise NotAccepted(f"it cannot be checked: {error}") from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError) as error:
            raise NotAccepted(f"it cannot be checked: {error}") from None
        return claims

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        expires = claims.get("exp")
        if not isinstance(expires, int | float) or isinstance(expires, bool):
            raise NotAuthenticated("the token's claim 'exp' is not a number")
        if expires <= time.time():
            raise NotAuthenticated("the token has expired")
        try:
            subject = check_subject(claims.get("sub"))
        except ValueError as error:
            raise NotAuthenticated(f"the token's claim 'sub' {error}") from None
        issuer = claims.get("iss")
        if not (issuer is None or isinstance(issuer, str)):
            raise NotAuthenticated("the token's claim 'iss' is not a string")
        claim = self._expected.claim
        if claim not in claims:
            raise NotAuthenticated(f"the token has no claim {claim!r}, so it is for no office")
        try:
            grants = read_grants(claims[claim])
        except BadGrants as error:
            raise NotAuthenticated(f"the token's claim {claim!r}: {error}") from None
        return Principal(subject, grants, issuer=issuer, expires_at=float(expires))


def _header(token: str) -> Mapping[str, Any]:
    try:
        header: Mapping[str, Any] = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise NotAccepted("it is no JWT") from None
    return header


def _why(error: jwt.InvalidTokenError, expected: Expected) -> str | None:
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
