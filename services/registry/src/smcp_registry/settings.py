"""The registry's settings, read once at its start."""

from typing import Annotated

from pydantic import Field

from smcp_service.settings import MIB, ServiceSettings


class RegistrySettings(ServiceSettings):
    kv_replicas: Annotated[int, Field(ge=1, le=5)] = Field(
        default=1, description="on how many NATS servers the rooms are kept; 3 where NATS is a cluster"
    )
    audit_keep_days: Annotated[float, Field(gt=0, le=36_500, allow_inf_nan=False)] = Field(
        default=90.0, description="how long records of the audit trail are kept in NATS"
    )
    audit_max_bytes: Annotated[int, Field(ge=MIB)] = Field(
        default=256 * MIB,
        description="bytes of the audit trail in NATS; then the oldest go, or with SMCP_AUDIT=required nothing is done",
    )
    registry_room_events_per_s: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = Field(
        default=2000.0,
        description="joins, updates and lists of one office in a second; one member may make a fifth; 0: unlimited",
    )
