"""The gateway's settings."""

import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from smcp_gateway.auth.settings import AuthSettings
from smcp_service.edge import PER_ADDRESS, is_loopback
from smcp_service.settings import BindHost, Port, Seconds

PerSecond = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
Burst = Annotated[int, Field(ge=1, le=1_000_000)]

_HOST: Final = re.compile(r"[^\s:/@*]+|\[[0-9a-f:.]+\]")
_ORIGIN: Final = re.compile(r"https?://[^\s/@*?#]+")


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip().lower() for part in text.split(",") if part.strip())


def _hosts(value: str) -> str:
    for name in _listed(value):
        if not _HOST.fullmatch(name):
            raise ValueError(f"{name!r} is not a host name without a port, such as smcp.example.com")
    return value


def _origins(value: str) -> str:
    for origin in _listed(value):
        if not _ORIGIN.fullmatch(origin):
            raise ValueError(f"{origin!r} is not an origin such as https://smcp.example.com")
    return value


class GatewaySettings(AuthSettings):
    """Where clients connect and how often they may ask, beside who may connect and the settings of every service."""

    gateway_host: BindHost = Field(default="127.0.0.1", description="where clients connect")
    gateway_port: Port = Field(default=8000, description="port for clients, /livez and /readyz; 0 takes any free one")
    allowed_hosts: Annotated[str, AfterValidator(_hosts)] = Field(
        default="",
        description="names that clients may connect to, with commas, beside those of loopback; empty: on loopback "
        "without authentication only those, else any",
    )
    allowed_origins: Annotated[str, AfterValidator(_origins)] = Field(
        default="", description="origins of web pages that may connect, with commas: https://office.example.com"
    )
    strangers_per_address: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        default=PER_ADDRESS, description="connections from one address that are not let in yet; 0: any number"
    )
    gateway_reads_per_s: PerSecond = Field(
        default=500.0, description="requests for resources of an office in a second; 0: any number"
    )
    gateway_reads_burst: Burst = Field(default=2000, description="of them at once, after a pause")
    rebalance_s: Annotated[Seconds, Field(ge=0, le=3600)] = Field(
        default=60.0,
        description="over how long clients above this gateway's fair share are disconnected, to go elsewhere; 0: never",
    )

    @property
    def hosts(self) -> tuple[str, ...] | None:
        """What `Host` may say beside loopback; None: anything."""
        named = _listed(self.allowed_hosts)
        # a page that reaches loopback by a name of its own (DNS rebinding) has no token
        return named if named or (is_loopback(self.gateway_host) and not self.auth_configured) else None

    @property
    def origins(self) -> tuple[str, ...]:
        return _listed(self.allowed_origins)
