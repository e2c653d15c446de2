"""Cancels the calls of Agents that leave or lose their connection."""

import asyncio
from contextlib import suppress
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


class OrphanedCalls:
    def __init__(self, registry: RegistryClient, offices: Offices, calls: CallTable) -> None:
        self._registry = registry
        self._offices = offices
        self._calls = calls
        self._stopping = asyncio.Event()

    def of(self, session: Session) -> list[str]:
        """The req_id of each call whose Computer can be told to stop."""
        return [call.req_id for call in self._calls.of_session(session.id) if call.tracked]

    async def settle(
        self, session: Session, membership: Membership, req_ids: list[str], *, lost_at: float | None
    ) -> None:
        """Cancel these calls of a session that is gone, unless the Agent comes back or the gateway stops.

        `lost_at` is the loop time at which its connection broke; None: it said that it goes, so nobody waits for it.
        Raises Unavailable, BusError: it cannot be done now; it may be tried again.
        """
        if not req_ids or (lost_at is not None and await self._stops(lost_at + GRACE_S)):
            return
        if await self._is_free(membership):
            await self.cancel(session, membership, req_ids)

    def stop(self) -> None:
        self._stopping.set()

    async def cancel(self, session: Session, membership: Membership, req_ids: list[str]) -> None:
        """Raises Unavailable, BusError."""
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
