"""Who issues tokens: real keys, and a real HTTP server with their JWK Set."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

import jwt
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

AUDIENCE: Final = "smcp-gateways"
ISSUER: Final = "https://issuer.example"
EVERYTHING: Final = {"offices": ["*"]}
Algorithm = Literal["RS256", "ES256"]


@dataclass(frozen=True)
class SigningKey:
    """A private key under its `kid`."""

    kid: str
    algorithm: Algorithm
    private: Any

    @property
    def jwk(self) -> dict[str, Any]:
        """The public half, as it stands in a set."""
        to_jwk: Any = (RSAAlgorithm if self.algorithm == "RS256" else ECAlgorithm).to_jwk
        public: dict[str, Any] = to_jwk(self.private.public_key(), as_dict=True)
        kept: dict[str, Any] = {name: public[name] for name in ("kty", "n", "e", "crv", "x", "y") if name in public}
        return {**kept, "kid": self.kid, "use": "sig", "alg": self.algorithm}

    @property
    def public_pem(self) -> bytes:
        encoded: bytes = self.private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return encoded

    def token(self, *, kid: str | None = "", **claims: Any) -> str:
        """Signed with this key; `kid` None leaves it out. Claims are those of `claims`, and these."""
        said = self.kid if kid == "" else kid
        headers = {} if said is None else {"kid": said}
        return jwt.encode(_claims(**claims), self.private, algorithm=self.algorithm, headers=headers)


@lru_cache
def signing_key(kid: str, algorithm: Algorithm = "ES256", *, bits: int = 2048) -> SigningKey:
    """The same key for the same name."""
    if algorithm == "ES256":
        return SigningKey(kid, algorithm, ec.generate_private_key(ec.SECP256R1()))
    return SigningKey(kid, algorithm, rsa.generate_private_key(public_exponent=65537, key_size=bits))


def shared_token(secret: str | bytes, **claims: Any) -> str:
    """Signed with a shared secret (HS256)."""
    return jwt.encode(_claims(**claims), secret, algorithm="HS256")


def unsigned_token(**claims: Any) -> str:
    """With `alg: none`."""
    return jwt.encode(_claims(**claims), "", algorithm="none")


def _claims(**claims: Any) -> dict[str, Any]:
    """A claim that is None is left out."""
    usual = {"sub": "anna", "aud": AUDIENCE, "iss": ISSUER, "exp": time.time() + 600, "smcp": EVERYTHING}
    return {name: value for name, value in {**usual, **claims}.items() if value is not None}


def key_set(*keys: SigningKey) -> str:
    """A JWK Set of their public halves."""
    return json.dumps({"keys": [key.jwk for key in keys]})


def settings(jwks: str | Path | None = None, **more: Any) -> Mapping[str, Any]:
    """Of a gateway that takes tokens of this issuer."""
    named = {} if jwks is None else {"auth_jwks": str(jwks)}
    return {"auth_audience": AUDIENCE, "auth_issuer": ISSUER, **named, **more}


@dataclass
class Issuer:
    """An HTTP server with a JWK Set; the test says which, and how it answers."""

    url: str = ""
    keys: tuple[SigningKey, ...] = ()
    status: int = 200
    fetched: int = 0
    """How often it was asked."""
    held: asyncio.Event = field(default_factory=asyncio.Event)
    """Answers wait for it."""

    async def answer(self, request: web.Request) -> web.Response:
        self.fetched += 1
        await self.held.wait()
        if self.status != 200:
            return web.Response(status=self.status)
        return web.Response(text=key_set(*self.keys), content_type="application/json")


@asynccontextmanager
async def open_issuer(*keys: SigningKey) -> AsyncIterator[Issuer]:
    """The issuer, on loopback."""
    issuer = Issuer(keys=keys)
    issuer.held.set()
    app = web.Application()
    app.add_routes([web.get("/keys", issuer.answer)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        issuer.url = f"http://127.0.0.1:{runner.addresses[0][1]}/keys"
        yield issuer
    finally:
        issuer.held.set()
        await runner.cleanup()
