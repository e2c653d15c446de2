"""Cancels the calls of Agents that leave or lose their connection."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import orjson

from smcp_bus.owner import ABSENT_S
from smcp_bus.registry_client import RegistryClient
from smcp_gateway.calls.table import CallTable
from smcp_gateway.rooms.offices import Offices
from smcp_gateway.sockets.session import Membership, Session
from smcp_proto.errors import NotInOffice

GRACE_S: Final = ABSENT_S
"""How long an Agent whose connection broke may take to come back before its calls are cancelled (seconds)."""


@dataclass(frozen=True, slots=True)
class Left:
    req_ids: list[str]
    """Of each call whose Computer can be told to stop."""
    until: float
    """How long its client may take to come back (loop time); 0 where it said that it goes."""


class OrphanedCalls:
    """Cancels the calls of sessions that left or are gone, unless their Agents came back by any gateway."""

    def __init__(self, registry: RegistryClient, offices: Offices, calls: CallTable) -> None:
        self._registry = registry
        self._offices = offices
        self._calls = calls
        self._stopping = asyncio.Event()

    def take(self, session: Session, *, goodbye: bool) -> Left:
        """The session is gone: nobody here waits for its calls any more."""
        left = Left(self._tracked(session), 0.0 if goodbye else asyncio.get_running_loop().time() + GRACE_S)
        self._calls.abandon(session.id)
        return left

    async def settle(self, left: Left, session: Session, membership: Membership) -> None:
        """Cancel them, unless the Agent has come back in time, or the gateway stops before.

        Raises:
            Unavailable, BusError: it cannot be done now; it may be tried again.
        """
        if left.req_ids and not (left.until and await self._stops(left.until)) and await self._is_free(membership):
            await self._cancel(session, membership, left.req_ids)

    async def cancel(self, session: Session, membership: Membership) -> None:
        """Cancel the calls of a session that leaves its office. Raises Unavailable, BusError."""
        await self._cancel(session, membership, self._tracked(session))

    def stop(self) -> None:
        """The gateway stops: its clients come back elsewhere, and nobody here waits for that."""
        self._stopping.set()

    def _tracked(self, session: Session) -> list[str]:
        return [call.req_id for call in self._calls.of_session(session.id) if call.tracked]

    async def _cancel(self, session: Session, membership: Membership, req_ids: list[str]) -> None:
        _, role, name = membership.place
        if role != "agent":
            return
        for req_id in req_ids:
            body = orjson.dumps({"agent": name, "req_id": req_id})
            with suppress(NotInOffice):  # the registry has let it go already
                await self._registry.tell(*membership.place, "tool_call_cancel", body)
            self._calls.cancel(session.id, req_id, now=asyncio.get_running_loop().time())

    async def _stops(self, until: float) -> bool:
        try:
            async with asyncio.timeout_at(until):
                await self._stopping.wait()
        except TimeoutError:
            pass
        return self._stopping.is_set()

    async def _is_free(self, membership: Membership) -> bool:
        """Whether nobody has the place of a session that is gone; who came back under its name may have its calls."""
        office = self._offices.get(membership.office)
        if office is not None and any(other.place == membership.place for other in office.members.values()):
            return False
        for claim in membership.claims:
            found = await self._registry.confirm(*membership.place, claim)
            if found.mine or found.view < membership.revision:
                return True
        return False
