"""The gateway's settings."""

from pydantic import Field

from smcp_service.settings import BindHost, Port, ServiceSettings


class GatewaySettings(ServiceSettings):
    """`SMCP_GATEWAY_HOST` and `SMCP_GATEWAY_PORT`, beside what every service can be told."""

    gateway_host: BindHost = Field(default="127.0.0.1", description="where clients connect")
    gateway_port: Port = Field(default=8000, description="port for clients, /livez and /readyz; 0 takes any free one")
