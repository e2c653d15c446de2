"""Requests and notifications between a Computer and its gateway, in both directions."""

import logging
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from smcp_agent.connecting.connection import AckTimedOut, ConnectionBroken
from smcp_agent.connecting.link import Link
from smcp_agent.errors import received_error
from smcp_bus import exact_json
from smcp_bus.dispatch import Caller, Dispatcher, failed
from smcp_bus.errors import ConnectionLost, NotConnected, RequestTimedOut
from smcp_computer.handlers.cancelled import CANCEL_VERB, cancel
from smcp_computer.in_flight import InFlight
from smcp_computer.resources.room import RoomComparison
from smcp_proto import catalog
from smcp_proto.catalog import Row
from smcp_proto.errors import Internal, Malformed, NotInOffice, SmcpError, Unavailable
from smcp_proto.ids import Role
from smcp_proto.schemas import LeaveOfficeNotification, ListRoomRet
from smcp_proto.schemas.base import AgentCallData

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


CANCEL: Final = f"notify:{CANCEL_VERB}"
LEAVE: Final = "notify:leave_office"

_log = logging.getLogger("smcp_computer.gateway")


class Notified:
    """From `begin` on it follows cancels, and Agents that leave.

    Calls of an Agent that stays away are not looked for here: the gateway cancels them one by one.
    """

    def __init__(self, office: str) -> None:
        self._office = office
        self._in_flight: InFlight | None = None
        self._room: RoomComparison | None = None

    def begin(self, in_flight: InFlight, room: RoomComparison) -> None:
        """Tell these."""
        self._in_flight, self._room = in_flight, room

    def heard(self, event: str, data: Mapping[str, Any]) -> None:
        """One notification, of any kind."""
        if self._in_flight is None or self._room is None:
            return
        try:
            if event == CANCEL:
                cancel(AgentCallData.model_validate(data), office=self._office, in_flight=self._in_flight)
            elif event == LEAVE and LeaveOfficeNotification.model_validate(data).agent is not None:
                # Over Socket.IO nothing says whether it has come back and subscribed anew before this was heard: so the
                # office is asked who is in it.
                self._room.begin()
        except ValidationError:
            _log.warning("a notification that cannot be read was ignored")


class Requests:
    """Between `begin` and `end` what the gateway asks is answered by the dispatcher.

    The gateway vouches for who asks: an Agent of this Computer's office.
    """

    def __init__(self, office: str) -> None:
        self._caller = Caller("agent", office)
        self._dispatcher: Dispatcher | None = None

    def begin(self, dispatcher: Dispatcher) -> None:
        """From now on answer by `dispatcher`."""
        self._dispatcher = dispatcher

    def end(self) -> None:
        """Begin nothing any more; what runs goes on, and is answered."""
        self._dispatcher = None

    async def answer(self, event: str, body: object) -> bytes:
        """The JSON of the acknowledgement: the reply, or a flat error. See `smcp_agent.connecting.answering.Answer`."""
        dispatcher = self._dispatcher
        if dispatcher is None:
            return _refused(Unavailable("the Computer is stopping", details={"may_have_run": False}))
        row = catalog.lookup(event)
        if row is None:
            return _refused(Malformed("there is no such event", details={"field": ""}))
        answer = await dispatcher.dispatch(row, self._caller, body)
        return answer.body or b"null"


def _refused(error: SmcpError) -> bytes:
    return failed(error.body()).body
