"""`notify:leave_office` of an Agent: what it subscribed to ends."""

import logging
from collections.abc import Awaitable, Callable

from pydantic import ValidationError

from smcp_bus import subjects
from smcp_bus.bus import Incoming
from smcp_bus.headers import EPOCH
from smcp_computer.resources.agents import REMEMBERED
from smcp_proto.schemas import LeaveOfficeNotification

_log = logging.getLogger("smcp_computer.left")


class AgentsLeaving:
    """Args:
    left: given the name of each Agent that the office is told has left, once, and the epoch of the leave.
    """

    def __init__(self, left: Callable[[str, int], Awaitable[None]]) -> None:
        self._left = left
        self._newest: dict[str, int] = {}
        """By Agents that left last, the epoch of that: a leave that is told again says nothing of an Agent that has
        come back. Of each Agent, since the leaves of two may be heard in another order."""

    async def notified(self, incoming: Incoming) -> None:
        """One notification of the office, of any kind."""
        if subjects.verb_of(incoming.subject) != "leave_office":
            return
        try:
            agent = LeaveOfficeNotification.model_validate_json(incoming.body).agent
            epoch = int(incoming.headers.get(EPOCH, ""))
        except (ValidationError, ValueError):
            _log.warning("a notification that cannot be read was ignored")
            return
        if agent is None or epoch <= self._newest.get(agent, 0):
            return
        self._newest.pop(agent, None)
        self._newest[agent] = epoch
        if len(self._newest) > REMEMBERED:
            del self._newest[next(iter(self._newest))]
        await self._left(agent, epoch)
