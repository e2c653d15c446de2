"""Handles the room events (events.txt) and `server:update_*`."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from pydantic import BaseModel

from smcp_auth.grants import decide
from smcp_auth.quotas import Quotas
from smcp_bus import exact_json
from smcp_bus.bus import BusError
from smcp_bus.dispatch import Answer, Call
from smcp_bus.registry_client import RegistryClient
from smcp_bus.registry_contract import AliveAnswer, AliveQuestion, capabilities_text
from smcp_gateway.computers.computer_table import ComputerTable
from smcp_gateway.rooms.memberships import Memberships
from smcp_gateway.rooms.offices import Offices
from smcp_gateway.rooms.repair import Repair
from smcp_gateway.sockets.session import Membership, Sessions
from smcp_proto.errors import NOT_A_MEMBER, NotInOffice, SmcpError, Unavailable
from smcp_proto.schemas import EnterOfficeReq, LeaveOfficeReq, ListRoomReq, ToolProgressReq, UpdateCapabilitiesReq
from smcp_proto.schemas.rooms import RESTARTS


@dataclass(eq=False, repr=False)
class Rooms:
    sessions: Sessions
    memberships: Memberships
    offices: Offices
    quotas: Quotas
    registry: RegistryClient
    computers: ComputerTable
    repair: Repair

    async def join_office(self, request: EnterOfficeReq, call: Call) -> None:
        session = self.sessions.get(call.caller.session)
        if session is not None:
            if session.principal is not None:
                grants = session.principal.grants
                refusal = decide(grants, office=request.office_id, role=request.role, name=request.name)
                if refusal is not None:
                    raise refusal
            if session.membership is None or session.membership.office != request.office_id:
                office = self.offices.get(request.office_id)
                self.quotas.join(session, request.office_id, 0 if office is None else office.holders)
            await self.memberships.join(session, request, exact_json.written(call.payload), call.req_id)

    async def leave_office(self, request: LeaveOfficeReq, call: Call) -> None:
        session = self.sessions.get(call.caller.session)
        if session is None:
            return
        if session.role == "computer" and (request.model_extra or {}).get(RESTARTS) is True:
            session.leaving = session.restarts = True  # no new requests of it begin
            if not await self.repair.keep_seat(session):
                raise Unavailable("no registry can keep the seat now; ask again")
        else:
            await self.memberships.leave(session, request.office_id, call.req_id)

    async def list_room(self, request: ListRoomReq, call: Call) -> Answer:
        membership = self._membership(call)
        body = request.model_dump_json(exclude_unset=True).encode()
        office = self.offices.get(membership.office)
        # the answering registry must know at least what the caller has heard
        after = max(membership.revision, 0 if office is None else office.roster.revision)
        return Answer(await self.registry.list_room(*membership.seat, body, after=after))

    async def update(self, request: BaseModel, call: Call) -> None:
        """Pass the event on unchanged, after the Computer's waiting resource updates."""
        membership, loop = self._membership(call), asyncio.get_running_loop()
        ends = loop.time() + self.registry.room_s
        owned = self.computers.of(call.caller.session, membership.office)
        if owned is not None:
            owned.changed()
            with suppress(BusError, SmcpError, TimeoutError):  # they are retried later; this event is not
                async with asyncio.timeout_at(ends):
                    await owned.updates.flush()
        body, left = exact_json.written(call.payload), ends - loop.time()
        await self.registry.tell(*membership.seat, call.row.verb, body, timeout=left, req_id=call.req_id)
        if isinstance(request, UpdateCapabilitiesReq):  # if the registry loses the record, the claim restores it
            update = {"capabilities": capabilities_text(request.capabilities)}
            membership.claim = membership.claim.model_copy(update=update)

    async def tool_progress(self, request: ToolProgressReq, call: Call) -> None:
        """A Computer on Socket.IO says how far a call is: for who waits for it, and not for the office."""
        owned = self.computers.of(call.caller.session, call.caller.office or "")
        if owned is not None:  # else it has just left
            owned.progressed(request)

    def _membership(self, call: Call) -> Membership:
        session = self.sessions.get(call.caller.session)
        if session is None or session.membership is None:
            raise NotInOffice(NOT_A_MEMBER)
        return session.membership


async def alive(request: AliveQuestion, call: Call, *, sessions: Sessions) -> AliveAnswer:
    return AliveAnswer(session=sessions.holds(request))
