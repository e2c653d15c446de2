"""To whom a Computer says what its office is told: the registry over NATS, or a gateway."""

from typing import Protocol

from smcp_proto.names import Role


class OfficeClient(Protocol):
    """`smcp_bus.registry_client.RegistryClient` and `smcp_computer.gateway.office.GatewayOffice` are such."""

    async def tell(self, office: str, role: Role, name: str, verb: str, body: bytes) -> None:
        """An event that becomes a notification: `update_*`, `resources_*`.

        Raises:
            SmcpError: it was refused.
            BusError: it could not be said, or it is not known whether it was taken.
        """
