"""What a Computer says to its office and asks it by itself: the registry over NATS, or a gateway."""

from typing import Protocol

from smcp_proto.ids import Role
from smcp_proto.schemas import ListRoomRet


class OfficeClient(Protocol):
    """`smcp_bus.registry.client.RegistryClient` and `smcp_computer.gateway.office.GatewayOffice` are such."""

    async def tell(self, office: str, role: Role, name: str, verb: str, body: bytes) -> None:
        """An event that becomes a notification: `update_*`, `resources_*`.

        Raises:
            SmcpError: it was refused.
            BusError: it could not be said, or it is not known whether it was taken.
        """

    async def room(self, office: str, role: Role, name: str, *, after: int, req_id: str) -> ListRoomRet:
        """The members of an office, asked by one of them; see `tell` for what it raises.

        Args:
            after: the newest revision that the asker knows of; 0: none.
        """
        ...

    async def agent_since(self, office: str, computer: str, *, after: int) -> int | None:
        """An epoch before which nothing is of the present Agent's membership; None: not known here.

        Asked by that Computer; see `tell` for what it raises, and `room` for `after`.
        """
