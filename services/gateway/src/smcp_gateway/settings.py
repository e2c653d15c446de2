"""The gateway's settings."""

from typing import Annotated

from pydantic import Field

from smcp_auth.settings import AuthSettings, QuotaSettings
from smcp_service.settings import BindHost, Port, Seconds


class GatewaySettings(AuthSettings, QuotaSettings):
    """Where clients connect and how often they may ask, beside who may connect and the settings of every service."""

    gateway_host: BindHost = Field(default="127.0.0.1", description="where clients connect")
    gateway_port: Port = Field(default=8000, description="port for clients, /livez and /readyz; 0 takes any free one")
    audit_arguments: bool = Field(
        default=False, description="record the arguments and results of calls, too, without what looks like a secret"
    )
    rebalance_s: Annotated[Seconds, Field(ge=0, le=3600)] = Field(
        default=60.0,
        description="over how long clients above this gateway's fair share are disconnected, to go elsewhere; 0: never",
    )
