"""The settings of authentication (`SMCP_AUTH_*`, `SMCP_ALLOWED_*`, `SMCP_INSECURE`) and of quotas (`SMCP_QUOTA_*`)."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, FilePath, SecretStr

from smcp_auth.api_keys import read
from smcp_auth.client_addresses import Network, read_networks
from smcp_auth.grants import Count, PerSecond, Quota, read_revocations
from smcp_auth.jwts import SECRET_BYTES, BadKeySet, read_key_set
from smcp_proto.printable import is_url
from smcp_service.files import UnusableFile, read_protected
from smcp_service.http_limits import PER_ADDRESS
from smcp_service.settings import Seconds, ServiceSettings, SettingsError, is_loopback, listed


def _each(pattern: str, said: str) -> AfterValidator:
    def check(value: str) -> str:
        for part in listed(value.lower()):
            if not re.fullmatch(pattern, part):
                raise ValueError(f"{part!r} is not {said}")
        return value

    return AfterValidator(check)


_HOSTS: Final = _each(r"[^\s:/@*]+|\[[0-9a-f:.]+\]", "a host name without a port, such as smcp.example.com")
_ORIGINS: Final = _each(r"https?://[^\s/@*?#]+", "an origin such as https://smcp.example.com")


def _secret(value: SecretStr) -> SecretStr:
    if len(value.get_secret_value().encode()) < SECRET_BYTES:
        raise ValueError(f"has to have at least {SECRET_BYTES} bytes (RFC 7518, 3.2)")
    return value


def _key_set(value: str) -> str:
    if "://" not in value:
        if not Path(value).is_file():
            raise ValueError("has to be a URL, or a file that is there")
        return value
    if not is_url(value):
        raise ValueError("has to be a file, or a URL like https://issuer/keys")
    return value


def _networks(value: str) -> str:
    read_networks(value)
    return value


class AuthSettings(ServiceSettings):
    """API keys, JWTs, both, or neither; with neither the service listens on loopback only."""

    auth_keys: FilePath | None = Field(default=None, description="file of API keys (`smcp keys`); read when it changes")
    auth_secret: Annotated[SecretStr, AfterValidator(_secret)] | None = Field(
        default=None, description="shared secret of JWTs with HS256, at least 32 bytes"
    )
    auth_jwks: Annotated[str, AfterValidator(_key_set)] | None = Field(
        default=None, description="URL or file of the JWK Set of JWTs with RS256 and ES256"
    )
    auth_audience: str | None = Field(default=None, min_length=1, description="what JWTs have to say in `aud`")
    auth_issuer: str | None = Field(default=None, min_length=1, description="what JWTs have to say in `iss`")
    auth_revoked: FilePath | None = Field(
        default=None, description="file of revoked JWTs (`jti` and `sub`); read when it changes"
    )
    auth_claim: str = Field(default="smcp", min_length=1, description="the claim of JWTs that says what is allowed")
    auth_proxies: Annotated[str, AfterValidator(_networks)] = Field(
        default="", description="addresses and networks of proxies whose X-Forwarded-For is believed, comma-separated"
    )
    allowed_hosts: Annotated[str, _HOSTS] = Field(
        default="",
        description="host names that `Host` may have besides loopback's, comma-separated; empty: only loopback's on "
        "loopback without authentication, else any",
    )
    allowed_origins: Annotated[str, _ORIGINS] = Field(
        default="", description="origins of web pages that may connect, comma-separated: https://office.example.com"
    )
    insecure: bool = Field(default=False, description="without authentication listen on any address, all the same")
    unauthenticated_per_address: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        default=PER_ADDRESS, description="connections from one address that are not let in yet; 0: unlimited"
    )

    @property
    def auth_configured(self) -> bool:
        """Whether a client needs a token."""
        return self.auth_keys is not None or self.auth_with_tokens

    @property
    def auth_with_tokens(self) -> bool:
        return self.auth_secret is not None or self.auth_jwks is not None

    @property
    def proxies(self) -> tuple[Network, ...]:
        return read_networks(self.auth_proxies)

    def hosts_at(self, host: str) -> tuple[str, ...] | None:
        """What `Host` may say beside loopback where clients connect to `host`; None: anything."""
        named = listed(self.allowed_hosts.lower())
        # a page that reaches loopback by a name of its own (DNS rebinding) has no token
        return named if named or (is_loopback(host) and not self.auth_configured) else None

    @property
    def origins(self) -> tuple[str, ...]:
        return listed(self.allowed_origins.lower())


class QuotaSettings(ServiceSettings):
    """What one office, and one key or token's subject, may ask of one process: half of what a gateway can do."""

    quota_sockets: Count = Field(
        default=5000, description="connections of a subject, members of an office; 0: unlimited"
    )
    quota_calls_per_s: PerSecond = Field(default=1000.0, description="events of clients in a second; 0: unlimited")
    quota_calls_in_flight: Count = Field(default=4096, description="events not answered yet; 0: unlimited")
    quota_bytes_per_s: PerSecond = Field(
        default=16.0 * 1024 * 1024, description="bytes of events and their answers in a second; 0: unlimited"
    )
    quota_subscriptions: Count = Field(
        default=20_000, description="subscriptions to resources of Computers on Socket.IO here; 0: unlimited"
    )
    quota_reads_per_s: PerSecond = Field(
        default=500.0, description="requests that make MCP servers work, in a second; 0: unlimited"
    )
    quota_burst_s: Annotated[Seconds, Field(gt=0, le=3600)] = Field(
        default=5.0, description="burst size, in seconds of the rate"
    )

    @property
    def quotas(self) -> dict[str, float]:
        """By the names of `Quota`."""
        return {name: getattr(self, f"quota_{name}") for name in Quota.model_fields}


def check_auth(settings: AuthSettings, variable: str, host: str) -> None:
    """Raises SettingsError, naming each wrong setting. `variable` says where clients connect: at `host`."""
    problems, jwks = [], settings.auth_jwks or ""
    if settings.auth_with_tokens and settings.auth_audience is None:
        problems.append(
            "SMCP_AUTH_AUDIENCE: is needed with SMCP_AUTH_JWKS and SMCP_AUTH_SECRET: without it a token that is for "
            "another service would do"
        )
    url = urlsplit(jwks)
    if url.scheme == "http" and not is_loopback(url.hostname or "") and not settings.insecure:
        problems.append(
            "SMCP_AUTH_JWKS: over http the keys could be replaced on the way: use https, or SMCP_INSECURE=true"
        )
    file = Path(jwks) if jwks and "://" not in jwks else None
    files: list[tuple[str, Path | None, Callable[[Path], object]]] = [
        ("SMCP_AUTH_KEYS", settings.auth_keys, read),
        ("SMCP_AUTH_REVOKED", settings.auth_revoked, read_revocations),
        ("SMCP_AUTH_JWKS", file, lambda path: read_key_set(read_protected(path))),
    ]
    for name, path, look in files:
        try:
            if path is not None:
                look(path)
        except (UnusableFile, BadKeySet) as error:
            problems.append(f"{name}: {error}")
    if not settings.auth_configured and not settings.insecure and not is_loopback(host):
        problems.append(
            f"{variable}: {host!r} can be reached from other machines: set who may connect (SMCP_AUTH_KEYS, "
            "SMCP_AUTH_JWKS or SMCP_AUTH_SECRET), or let everybody in with SMCP_INSECURE=true"
        )
    if problems:
        raise SettingsError(*problems)
