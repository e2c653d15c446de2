"""The registry's settings, read once at its start."""

from pydantic import Field

from smcp_service.settings import ServiceSettings


class RegistrySettings(ServiceSettings):
    """Settings of `smcp-registry`: each field is a variable with the prefix `SMCP_`."""

    kv_replicas: int = Field(
        default=1,
        ge=1,
        le=5,
        description="on how many NATS servers the rooms are kept; 3 where NATS is a cluster",
    )
    registry_room_events_per_s: float = Field(
        default=2000.0,
        ge=0,
        le=1e9,
        allow_inf_nan=False,
        description="joins, updates and lists of one office in a second; one member may make a fifth; 0: any number",
    )
