"""The gateway's settings."""

from typing import Annotated

from pydantic import Field

from smcp_auth.grants import Count, PerSecond
from smcp_auth.settings import AuthSettings
from smcp_gateway.quotas import NAMES
from smcp_service.http_limits import PER_ADDRESS
from smcp_service.settings import BindHost, Port, Seconds, ServiceSettings


class QuotaSettings(ServiceSettings):
    """What one office, and one key or token's subject, may ask of this gateway; each gateway counts by itself.

    Generous: half of what a gateway can do, so that one office alone does not take all of it.
    """

    quota_sockets: Count = Field(
        default=5000, description="connections of a subject, members of an office; 0: any number"
    )
    quota_calls_per_s: PerSecond = Field(default=1000.0, description="events of clients in a second; 0: any number")
    quota_calls_in_flight: Count = Field(default=4096, description="events not answered yet; 0: any number")
    quota_bytes_per_s: PerSecond = Field(
        default=16.0 * 1024 * 1024, description="bytes of events and their answers in a second; 0: any number"
    )
    quota_subscriptions: Count = Field(
        default=20_000, description="subscriptions to resources of Computers on Socket.IO here; 0: any number"
    )
    quota_reads_per_s: PerSecond = Field(
        default=500.0, description="requests that make MCP servers work, in a second; 0: any number"
    )
    quota_room_events_per_s: PerSecond = Field(
        default=1000.0,
        description="joins, leaves, lists and updates in a second; one member may make a fifth; 0: any number",
    )
    quota_burst_s: Annotated[Seconds, Field(gt=0, le=3600)] = Field(
        default=5.0, description="after a pause, the events of so many seconds may come at once"
    )

    @property
    def quotas(self) -> dict[str, float]:
        """By the names of `Quota`."""
        return {name: getattr(self, f"quota_{name}") for name in NAMES}


class GatewaySettings(AuthSettings, QuotaSettings):
    """Where clients connect and how often they may ask, beside who may connect and the settings of every service."""

    gateway_host: BindHost = Field(default="127.0.0.1", description="where clients connect")
    gateway_port: Port = Field(default=8000, description="port for clients, /livez and /readyz; 0 takes any free one")
    strangers_per_address: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        default=PER_ADDRESS, description="connections from one address that are not let in yet; 0: any number"
    )
    audit_arguments: bool = Field(
        default=False, description="record the arguments and results of calls, too, without what looks like a secret"
    )
    rebalance_s: Annotated[Seconds, Field(ge=0, le=3600)] = Field(
        default=60.0,
        description="over how long clients above this gateway's fair share are disconnected, to go elsewhere; 0: never",
    )
