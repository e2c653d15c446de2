"""The registry's settings, read once at its start."""

from typing import ClassVar

from pydantic import Field

from smcp_service.settings import ServiceSettings


class RegistrySettings(ServiceSettings):
    """Settings of `smcp-registry`: each field is a variable with the prefix `SMCP_`."""

    known_variables: ClassVar[tuple[str, ...]] = (
        "SMCP_INPUT_*",
        "SMCP_URL",
        "SMCP_OFFICE",
        "SMCP_NAME",
        "SMCP_AGENT_NAME",
        "SMCP_TOKEN",
    )
    """Read by Computers and Agents, which often share an environment with the services (`smcp up`)."""

    kv_replicas: int = Field(
        default=1,
        ge=1,
        le=5,
        description="on how many NATS servers the rooms are kept; 3 where NATS is a cluster",
    )
