"""The gateway's settings."""

from typing import Annotated

from pydantic import Field

from smcp_gateway.auth.settings import AuthSettings
from smcp_service.settings import BindHost, Port, Seconds

PerSecond = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
Burst = Annotated[int, Field(ge=1, le=1_000_000)]


class GatewaySettings(AuthSettings):
    """Where clients connect and how often they may ask, beside who may connect and the settings of every service.

    The health port of the other services is not opened: one port answers everything.
    """

    gateway_host: BindHost = Field(default="127.0.0.1", description="where clients connect")
    gateway_port: Port = Field(default=8000, description="port for clients, /livez and /readyz; 0 takes any free one")
    gateway_reads_per_s: PerSecond = Field(
        default=500.0, description="requests for resources of an office in a second; 0: any number"
    )
    gateway_reads_burst: Burst = Field(default=2000, description="of them at once, after a pause")
    rebalance_s: Annotated[Seconds, Field(ge=0, le=3600)] = Field(
        default=60.0,
        description="over how long clients above this gateway's fair share are disconnected, to go elsewhere; 0: never",
    )
    health_host: BindHost = Field(default="127.0.0.1", description="no effect here: /livez is where clients connect")
    health_port: Port = Field(default=0, description="no effect here: /livez is at SMCP_GATEWAY_PORT")
