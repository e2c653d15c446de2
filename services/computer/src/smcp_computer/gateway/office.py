"""What a Computer says to its office and asks it, over its connection with a gateway."""

from typing import Any, Final

from pydantic import ValidationError

from smcp_agent.connecting.connection import AckTimedOut, ConnectionBroken
from smcp_agent.connecting.link import Link
from smcp_agent.errors import received_error
from smcp_bus import exact_json
from smcp_bus.errors import ConnectionLost, NotConnected, RequestTimedOut
from smcp_proto import catalog
from smcp_proto.catalog_row import Row
from smcp_proto.errors import Internal, NotInOffice
from smcp_proto.ids import Role
from smcp_proto.schemas import ListRoomRet

ASK_S: Final = 12.0
"""The gateway has 10 s for a question about the room, and for a notice."""
SAID_AS: Final[dict[str, str]] = {
    up.event: row.event for row in catalog.CATALOG.values() if (up := catalog.upstream(row)) is not None
}
"""What native Computers tell the registry, and what is said to a gateway in its place."""


class GatewayOffice:
    """See `smcp_computer.office_client.OfficeClient`."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def tell(self, office: str, role: Role, name: str, verb: str, body: bytes) -> None:
        """See there."""
        row = catalog.by_verb("server", verb)
        assert row is not None  # a verb of ours
        await self._ask(_event(row), exact_json.read(body))

    async def room(self, office: str, role: Role, name: str, *, after: int, req_id: str) -> ListRoomRet:
        """See there. The gateway knows by itself how new its answer has to be."""
        reply = await self._ask("server:list_room", {"agent": name, "req_id": req_id, "office_id": office})
        try:
            return ListRoomRet.model_validate(reply)
        except ValidationError:
            raise Internal("the gateway sent an answer that cannot be read") from None

    async def agent_since(self, office: str, computer: str, *, after: int) -> int | None:
        """None: over Socket.IO nothing says in which membership an Agent subscribed. The gateway knows, and ends it."""
        return None

    async def _ask(self, event: str, data: dict[str, Any]) -> Any:
        connection = self._link.connection
        if connection is None:
            raise NotConnected("there is no connection with a gateway now")
        try:
            reply = await connection.request(event, data, timeout=ASK_S)
        except ConnectionBroken as broken:
            raise (ConnectionLost if broken.sent else NotConnected)(broken.reason) from None
        except AckTimedOut:
            raise RequestTimedOut(f"no answer to {event}") from None
        error = received_error(reply)
        if isinstance(error, NotInOffice):
            self._link.drop(connection)  # to join again is all there is to do
        if error is not None:
            raise error
        return reply


def _event(row: Row) -> str:
    return SAID_AS.get(row.event, row.event)
