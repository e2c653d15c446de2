"""Calls of an Agent that left the office and stays away: nobody waits for them any more.

A gateway cancels the calls of an Agent that goes. One that died cancels nothing: the office is told of the leave when a
registry has found out, and that is all that a Computer hears. An Agent that lost its gateway comes back by another one
and asks again for what it called, so it is given some seconds for that.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from pydantic import ValidationError

from smcp_bus import subjects
from smcp_bus.bus import Incoming
from smcp_bus.headers import EPOCH
from smcp_bus.owner import ABSENT_S, OwnerGate
from smcp_computer.in_flight import InFlight
from smcp_proto.schemas import EnterOfficeNotification, LeaveOfficeNotification
from smcp_service.lifecycle import counted

_log = logging.getLogger("smcp_computer.abandoned")

_KINDS: Final[Mapping[str, type[EnterOfficeNotification | LeaveOfficeNotification]]] = {
    "enter_office": EnterOfficeNotification,
    "leave_office": LeaveOfficeNotification,
}


class AbandonedCalls:
    """Args:
    gate: closed where this Computer may have missed that an Agent came back; its calls run to their ends then.
    """

    def __init__(self, in_flight: InFlight, gate: OwnerGate, *, office: str) -> None:
        self._in_flight = in_flight
        self._gate = gate
        self._office = office
        self._entered = ("", 0)
        """The Agent that entered last, and the epoch of that."""

    def notified(self, incoming: Incoming) -> None:
        """One notification of the office, of any kind."""
        verb = subjects.verb_of(incoming.subject)
        kind = _KINDS.get(verb)
        if kind is None:
            return
        try:
            agent = kind.model_validate_json(incoming.body).agent
            epoch = int(incoming.headers.get(EPOCH, ""))
        except (ValidationError, ValueError):
            return  # `told` says so
        if agent is None:
            return
        if verb == "leave_office":
            self._left(agent, epoch)
        elif epoch > self._entered[1]:
            self._entered = (agent, epoch)

    def _left(self, agent: str, epoch: int) -> None:
        if self._is_back(agent, epoch) or not self._in_flight.calls(self._office, agent):
            return
        loop = asyncio.get_running_loop()
        loop.call_later(ABSENT_S, self._abandon, agent, epoch, loop.time(), self._gate.generation)

    def _is_back(self, agent: str, epoch: int) -> bool:
        """Whether the Agent entered after that leave."""
        return self._entered[0] == agent and self._entered[1] > epoch

    def _abandon(self, agent: str, epoch: int, since: float, generation: int) -> None:
        if generation != self._gate.generation or self._is_back(agent, epoch):
            return
        if cancelled := self._in_flight.abandon(self._office, agent, since):
            _log.info("%s cancelled: the Agent has left the office", counted(cancelled, "call"))
