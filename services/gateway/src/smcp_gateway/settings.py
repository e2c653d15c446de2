"""The gateway's settings."""

from typing import ClassVar

from pydantic import Field

from smcp_service.settings import BindHost, Port, ServiceSettings


class GatewaySettings(ServiceSettings):
    """`SMCP_GATEWAY_HOST` and `SMCP_GATEWAY_PORT`, beside what every service can be told.

    The health port of the other services is not opened: one port answers everything.
    """

    known_variables: ClassVar[tuple[str, ...]] = (
        "SMCP_INPUT_*",
        "SMCP_URL",
        "SMCP_OFFICE",
        "SMCP_NAME",
        "SMCP_AGENT_NAME",
    )
    """Read by Computers and Agents, which often share an environment with the services (`smcp up`)."""

    gateway_host: BindHost = Field(default="127.0.0.1", description="where clients connect")
    gateway_port: Port = Field(default=8000, description="port for clients, /livez and /readyz; 0 takes any free one")
    health_host: BindHost = Field(default="127.0.0.1", description="no effect here: /livez is where clients connect")
    health_port: Port = Field(default=0, description="no effect here: /livez is at SMCP_GATEWAY_PORT")
