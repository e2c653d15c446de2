"""Which JWTs are accepted: those that are signed by a key of the issuer, for us, now; each algorithm with real keys."""

import base64
import hmac
import json
import time
from typing import Any

import jwt
import pytest

from smcp_auth.jwts import NOT_ACCEPTED, Jwks, JwtVerifier, NotAccepted
from smcp_proto.errors import NotAuthenticated
from smcp_testing import issuer
from smcp_testing.issuer import AUDIENCE, EVERYTHING, ISSUER, SigningKey, shared_token, signing_key, unsigned_token

SECRET = "0123456789abcdef0123456789abcdef"
RSA, EC = signing_key("rsa", "RS256"), signing_key("ec", "ES256")


def verifier(*keys: SigningKey, secret: str | None = None, **expected: Any) -> JwtVerifier:
    """It takes tokens of these keys, and of the secret."""

    async def load() -> bytes:
        return issuer.key_set(*keys).encode()

    jwks = Jwks(load, lifetime_s=60) if keys else None
    return JwtVerifier(**{"audience": AUDIENCE, "issuer": ISSUER, **expected}, secret=secret, jwks=jwks)


async def refused(verifying: JwtVerifier, token: str) -> str:
    with pytest.raises(NotAuthenticated) as error:
        await verifying.verify(token)
    return error.value.message


@pytest.mark.parametrize("algorithm", ["HS256", "RS256", "ES256"])
async def test_a_token_of_each_algorithm_gives_its_principal(algorithm: str) -> None:
    until = time.time() + 60
    claims: dict[str, Any] = {
        "sub": "rack 1",
        "exp": until,
        "smcp": {"offices": ["lab"], "roles": ["computer"], "names": ["rack-*"]},
    }
    make = {"HS256": lambda: shared_token(SECRET, **claims), "RS256": lambda: RSA.token(**claims)}
    verifying = verifier(RSA, EC, secret=SECRET)
    principal = await verifying.verify(make.get(algorithm, lambda: EC.token(**claims))())
    assert (principal.subject, principal.issuer, principal.expires_at) == ("rack 1", ISSUER, until)
    said = principal.grants.model_dump(exclude_unset=True)
    assert said == {"offices": ("lab",), "roles": ("computer",), "names": ("rack-*",)}


def forged(header: dict[str, Any], signed_by: str) -> str:
    """A token with this header and the signature of another."""
    _, payload, signature = signed_by.split(".")
    return ".".join([base64.urlsafe_b64encode(json.dumps(header).encode()).rstrip(b"=").decode(), payload, signature])


async def test_a_token_that_is_not_signed_is_refused() -> None:
    verifying = verifier(RSA, EC, secret=SECRET)
    assert await refused(verifying, unsigned_token()) == NOT_ACCEPTED
    for none in ("none", "None", "NONE", ""):
        head = forged({"alg": none, "kid": "rsa"}, RSA.token())
        assert await refused(verifying, head) == NOT_ACCEPTED
        assert await refused(verifying, head.rpartition(".")[0] + ".") == NOT_ACCEPTED


async def test_a_public_key_is_not_accepted_as_a_shared_secret() -> None:
    """HS256 with the public key as the secret: everybody has that."""
    claims = {"sub": "eve", "aud": AUDIENCE, "iss": ISSUER, "exp": time.time() + 600, "smcp": EVERYTHING}
    payload = json.dumps(claims).encode()
    without = verifier(RSA, EC)
    with_secret = verifier(RSA, EC, secret=SECRET)
    for key in (RSA, EC):
        for secret in (key.public_pem, json.dumps(key.jwk).encode(), key.public_pem.strip()):
            # PyJWT refuses to make such a token itself
            token = jwt.PyJWS().encode(payload, b"x" * 32, algorithm="HS256", headers={"kid": key.kid})
            signed = token.rpartition(".")[0]
            signature = base64.urlsafe_b64encode(hmac.digest(secret, signed.encode(), "sha256")).rstrip(b"=")
            for verifying in (without, with_secret):
                assert await refused(verifying, f"{signed}.{signature.decode()}") == NOT_ACCEPTED


async def test_a_key_is_used_only_for_its_own_algorithm() -> None:
    verifying = verifier(RSA, EC, secret=SECRET)
    assert await refused(verifying, RSA.token(kid="ec")) == NOT_ACCEPTED
    assert await refused(verifying, EC.token(kid="rsa")) == NOT_ACCEPTED
    assert await refused(verifying, forged({"alg": "ES256", "kid": "rsa"}, RSA.token())) == NOT_ACCEPTED
    for other in ("RS384", "PS256", "HS512", "EdDSA", 5, None, ["RS256"]):
        assert await refused(verifying, forged({"alg": other, "kid": "rsa"}, RSA.token())) == NOT_ACCEPTED


async def test_only_configured_algorithms_are_accepted() -> None:
    public = verifier(RSA)
    shared = verifier(secret=SECRET)
    assert (await public.verify(RSA.token())).subject == "anna"
    assert (await shared.verify(shared_token(SECRET))).subject == "anna"
    assert await refused(public, shared_token(SECRET)) == NOT_ACCEPTED
    assert await refused(shared, RSA.token()) == NOT_ACCEPTED
    assert await refused(shared, shared_token("another secret of more than 32 bytes")) == NOT_ACCEPTED
    assert await refused(public, signing_key("rsa 2", "RS256").token(kid="rsa")) == NOT_ACCEPTED


@pytest.mark.parametrize(
    ("token", "why"),
    [
        ("no.jwt", "not a JWT"),
        (forged({"alg": "none", "kid": "rsa"}, RSA.token()), "'none'"),
        (forged({"alg": "HS512" * 100, "kid": "rsa"}, RSA.token()), "'HS512HS512"),
        (RSA.token(kid="another\nkey"), r"no key 'another\nkey' for RS256"),
        (signing_key("rsa 2", "RS256").token(kid="rsa"), "Signature"),
    ],
)
async def test_the_reason_for_refusing_a_token_is_only_in_the_log(token: str, why: str) -> None:
    verifying = verifier(RSA, EC)
    with pytest.raises(NotAccepted) as error:
        await verifying.verify(token)
    assert why in error.value.why
    assert len(error.value.why) < 200
    assert error.value.body().model_dump() == {"code": 401, "message": NOT_ACCEPTED, "details": {}}


SOON = 3600.0


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"aud": "another service"}, "Audience"),
        ({"aud": None}, "aud"),
        ({"aud": ["a", "b"]}, "Audience"),
        ({"iss": "https://other.example"}, "issuer"),
        ({"iss": None}, "iss"),
        ({"exp": time.time() - 1}, "expired"),
        ({"exp": None}, "exp"),
        ({"exp": "9999999999"}, "'exp'"),
        ({"exp": 1e400}, NOT_ACCEPTED),
        ({"exp": 10**400}, "'exp'"),
        ({"nbf": time.time() + SOON}, "not yet valid"),
        ({"iat": time.time() + SOON}, "not yet valid"),
        ({"sub": None}, "sub"),
        ({"sub": ""}, "'sub'"),
        ({"sub": "a\nb"}, "'sub'"),
        ({"sub": "\ud800"}, "'sub'"),
        ({"smcp": None}, "'smcp'"),
        ({"smcp": {}}, "offices"),
        ({"smcp": {"offices": ["lab"], "except": ["lab"]}}, "except"),
        ({"smcp": "*"}, "object"),
    ],
)
async def test_a_token_with_a_wrong_audience_issuer_or_time_is_refused(claims: dict[str, Any], why: str) -> None:
    verifying = verifier(EC)
    assert why in await refused(verifying, EC.token(**claims))


async def test_a_token_may_have_several_audiences_and_the_clock_may_differ_by_the_leeway() -> None:
    verifying = verifier(EC)
    assert (await verifying.verify(EC.token(aud=["a", AUDIENCE], nbf=time.time() + 10))).subject == "anna"
    verifying = verifier(EC, issuer=None)
    assert (await verifying.verify(EC.token(iss=None))).issuer is None
    verifying = verifier(EC, claim="https://lab.example/smcp")
    said: dict[str, Any] = {"smcp": None, "https://lab.example/smcp": EVERYTHING}
    assert (await verifying.verify(EC.token(**said))).grants.offices == ("*",)


async def test_a_wrong_signature_reveals_nothing_about_the_claims() -> None:
    verifying = verifier(EC)
    wrong: list[dict[str, Any]] = [{"exp": 1}, {"aud": "x"}, {"smcp": {}}, {"iss": "x"}]
    for claims in wrong:
        token = signing_key("another").token(kid="ec", **claims)
        assert await refused(verifying, token) == NOT_ACCEPTED


async def test_a_token_without_kid_uses_the_only_key() -> None:
    one_each = verifier(RSA, EC)
    two = verifier(EC, signing_key("second"))
    assert (await one_each.verify(EC.token(kid=None))).subject == "anna"
    assert (await one_each.verify(RSA.token(kid=None))).subject == "anna"
    assert await refused(two, EC.token(kid=None)) == NOT_ACCEPTED


@pytest.mark.parametrize(
    "token",
    ["", ".", "..", "a.b.c", "eyJ", "e30.e30.", "e30.e30.e30", "x" * 8000, "." * 4000,
     base64.urlsafe_b64encode(b"[" * 5000).decode() + ".e30.e30"],
)  # fmt: skip
async def test_garbage_is_refused(token: str) -> None:
    verifying = verifier(EC, secret=SECRET)
    assert await refused(verifying, token) == NOT_ACCEPTED


async def test_a_token_with_a_crit_header_is_refused() -> None:
    verifying = verifier(EC)
    claims = jwt.decode(EC.token(), options={"verify_signature": False})
    token = jwt.encode(claims, EC.private, algorithm="ES256", headers={"kid": "ec", "crit": ["exp"], "exp": 1})
    assert await refused(verifying, token) == NOT_ACCEPTED


async def test_an_identity_consists_of_subject_and_issuer() -> None:
    verifying = verifier(EC, issuer=None)
    anna = await verifying.verify(EC.token())
    again = await verifying.verify(EC.token(smcp={"offices": ["elsewhere"]}, exp=time.time() + 5))
    eve = await verifying.verify(EC.token(sub="eve"))
    namesake = await verifying.verify(EC.token(iss="https://other.example"))
    assert anna.identity == again.identity
    assert len({anna.identity, eve.identity, namesake.identity}) == 3
