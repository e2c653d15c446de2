"""Compares the office with what Agents have subscribed to: one may have left while this Computer heard nothing, and
another of its name may have come."""

import asyncio
import logging
from typing import Final
from uuid import uuid4

from smcp_bus.backoff import Backoff
from smcp_bus.errors import BusError
from smcp_computer.office_client import OfficeClient
from smcp_computer.resources.agents import AgentSubscriptions
from smcp_computer.resources.notices import Notices
from smcp_proto.errors import SmcpError

_log = logging.getLogger("smcp_computer.resources")

SURE_S: Final = 2.0
"""An Agent that is missing is looked for once more after it: a registry's view may be behind."""


class RoomComparison:
    """`run` must be running.

    Args:
        notices: what is told to Agents; resumed when it is known which of them are still subscribed.
    """

    def __init__(
        self, registry: OfficeClient, agents: AgentSubscriptions, notices: Notices, *, office: str, name: str
    ) -> None:
        self._registry = registry
        self._agents = agents
        self._notices = notices
        self._office = office
        self._name = name
        self._due = asyncio.Event()
        self.unsure = False
        """The Agent of the office may be another one than who subscribed: nothing is to be told to it."""

    def begin(self) -> None:
        """This Computer is in its office (again): compare soon."""
        self.unsure = True
        self._due.set()

    async def run(self) -> None:
        """Compare whenever it is due, until cancelled."""
        backoff = Backoff(first_s=0.2, longest_s=5.0)
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self._compare()
            except (SmcpError, BusError) as error:
                _log.debug("the office could not be asked for: %s", str(error) or type(error).__name__)
                await asyncio.sleep(backoff.next())
                self._due.set()
            else:
                backoff.reset()

    async def _compare(self) -> None:
        before = self._agents.count
        if self._agents.agents:
            await self._end_earlier()
        self.unsure = False
        self._notices.resume()
        if not self._agents.agents or not self._missing(await self._present()):
            return
        await asyncio.sleep(SURE_S)
        there = await self._present()
        if gone := self._missing(there):
            _log.info("the subscriptions of %d Agents that are not in the office any more end", len(gone))
            self._agents.retain(there, before=before)

    async def _end_earlier(self) -> None:
        """End what was subscribed in earlier memberships than that of the office's Agent."""
        since = await self._registry.agent_since(self._office, self._name, after=0)
        if since is not None and (ended := await self._agents.began(since)):
            _log.info("%d subscriptions of Agents that have left the office meanwhile end", ended)
            self._notices.forget(self._agents.wants)

    def _missing(self, there: frozenset[str]) -> frozenset[str | None]:
        """Subscribers that are not there; an Agent without a name is there where any is."""
        known = there | {None} if there else there
        return self._agents.agents - known

    async def _present(self) -> frozenset[str]:
        room = await self._registry.room(self._office, "computer", self._name, after=0, req_id=uuid4().hex)
        return frozenset(
            session.name for session in room.sessions if session.role == "agent" and session.name is not None
        )
