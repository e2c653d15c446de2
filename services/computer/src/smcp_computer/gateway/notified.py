"""What a Computer hears of its office over Socket.IO."""

import logging
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from smcp_computer.handlers.cancelled import CANCEL_VERB, cancel
from smcp_computer.in_flight import InFlight
from smcp_computer.resources.room import RoomComparison
from smcp_proto.schemas import LeaveOfficeNotification
from smcp_proto.schemas.base import AgentCallData

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
