"""The registry's settings, read once at its start."""

from pydantic import Field

from smcp_service.settings import MIB, ServiceSettings


class RegistrySettings(ServiceSettings):
    kv_replicas: int = Field(
        default=1,
        ge=1,
        le=5,
        description="on how many NATS servers the rooms are kept; 3 where NATS is a cluster",
    )
    audit_keep_days: float = Field(
        default=90.0,
        gt=0,
        le=36_500,
        allow_inf_nan=False,
        description="how long records of the audit trail are kept in NATS",
    )
    audit_max_bytes: int = Field(
        default=256 * MIB,
        ge=MIB,
        description="bytes of the audit trail in NATS; then the oldest go, or with SMCP_AUDIT=required nothing is done",
    )
    registry_room_events_per_s: float = Field(
        default=2000.0,
        ge=0,
        le=1e9,
        allow_inf_nan=False,
        description="joins, updates and lists of one office in a second; one member may make a fifth; 0: any number",
    )
