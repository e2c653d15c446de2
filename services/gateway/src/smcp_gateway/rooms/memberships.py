"""Joins and leaves of this gateway's sessions, round the registry's decision."""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final

import orjson

from smcp_bus import exact_json
from smcp_bus.errors import BusError, ConnectionLost, TransferFailed
from smcp_bus.registry_client import RegistryClient
from smcp_bus.registry_contract import Claim, Joined
from smcp_gateway.background_tasks import BackgroundTasks
from smcp_gateway.calls.table import CallTable
from smcp_gateway.computers.relay_computers import RelayComputers
from smcp_gateway.rooms.offices import Doubt, Office, Offices
from smcp_gateway.rooms.orphaned_calls import OrphanedCalls
from smcp_gateway.rooms.roster import member_keys
from smcp_gateway.sockets.session import Membership, Session
from smcp_proto.errors import NotAllowed, NotInOffice, SmcpError, Unavailable
from smcp_proto.schemas import EnterOfficeReq
from smcp_proto.schemas.rooms import MOVED

_log: Final = logging.getLogger("smcp_gateway.rooms.memberships")

AGENTS_DO_NOT_SWITCH: Final = "an Agent that is in an office joins no other; leave it first"

Generation = Callable[[], int]

HangUp = Callable[[Session, str], Awaitable[None]]
"""Closes a client's connection, saying why in the log."""


class Memberships:
    """Args:
    calls: what the sessions wait for.
    generation: how often the connection to NATS has come back.
    doubt: told when it is not known whether the registry still counts a member that is one here.
    hang_up: for a client that is in no office any more, and does not know it.
    """

    def __init__(
        self,
        registry: RegistryClient,
        offices: Offices,
        computers: RelayComputers,
        background_tasks: BackgroundTasks,
        calls: CallTable,
        *,
        generation: Generation,
        doubt: Doubt,
        hang_up: HangUp,
    ) -> None:
        self._registry = registry
        self._offices = offices
        self._computers = computers
        self._background = background_tasks
        self._generation = generation
        self._doubt = doubt
        self._hang_up = hang_up
        self._orphaned_calls = OrphanedCalls(registry, offices, calls)

    async def join(self, session: Session, request: EnterOfficeReq, body: bytes, req_id: str) -> None:
        """Make `session` a member, or leave everything as it was.

        Raises:
            NotAllowed: the place is another's, or an Agent would switch.
            Unavailable, BusError: it cannot be decided now.

            A client whose switch failed late, and which could not get its old place back, was hung up on.
        """
        present = session.membership
        if present is not None and present.office == request.office_id:
            return
        if present is not None and session.role == "agent":
            raise NotAllowed(AGENTS_DO_NOT_SWITCH, details={"field": "office_id"})
        office = await self._offices.hold(request.office_id)
        office.expect(session)
        claim = claim_for(self._registry, session, request, announce=present is None)
        session.joining, session.joining_place = claim.incarnation, (office.name, request.role, request.name)
        generation = self._generation()
        gate = self._computers.generation
        claimed = switching = False
        try:
            if request.role == "computer":  # whoever learns of the member finds its subject served
                await self._computers.serve(session, office.name, request.name)
            joined = await self._claim(office, request, claim, body, req_id)
            claimed, taken_up = True, joined.taken_up
            known_before = taken_up or joined.unchanged  # asked twice, the first one may have taken it up
            if present is not None:
                switching = True
                claim = await self._switch(session, present, request, claim, body, req_id)
        except BaseException as error:
            office.give_up(session)
            session.joining = session.joining_place = None
            self._computers.close(session, office.name)
            if claimed or may_have_run(error):
                self._undo(office, request, claim)
            else:
                await self._offices.release(office)
            if switching and isinstance(error, SmcpError) and session.membership is None:
                await self._go_back(session, present, req_id)
            raise
        membership = Membership(office.name, joined.revision, claim, generation, joined.tenure)
        self._computers.joined(session, office.name, claim, gate, tenure=joined.tenure, moved=known_before)
        await self._admit(session, request, office, membership)
        if (request.model_extra or {}).get(MOVED) is True and not taken_up:
            await office.missed(session)

    async def leave(self, session: Session, office_id: str, req_id: str) -> None:
        """End the membership of `session`; its calls that still run are cancelled.

        Raises:
            NotInOffice: it is not in that office.
            Unavailable, BusError: it cannot be done now; it stays a member.
        """
        membership = session.membership
        if membership is None or membership.office != office_id or session.role is None or session.name is None:
            raise NotInOffice("not in this office", details={"field": "office_id"})
        membership.ending = True
        try:
            await self._orphaned_calls.cancel(session, membership)
            await self._release(session, membership, req_id)
        except BaseException as error:
            membership.ending = False
            if may_have_run(error):
                self._stays(membership)
            raise
        await self._forget(session, membership)

    def gone(self, session: Session, *, goodbye: bool) -> None:
        """The client has disconnected: its membership ends, as soon as the registry can be told.

        A member that is moving stays one: it takes its place up again elsewhere.

        Its calls are cancelled before that. One whose connection broke (no `goodbye`) has `orphaned_calls.GRACE_S`
        to come back and repeat them; for so long its place stands, and is given to whoever asks for it.
        """
        left = self._orphaned_calls.take(session, goodbye=goodbye)
        membership = session.membership
        if membership is None:
            return
        session.membership = None
        self._computers.close(session, membership.office)
        office = self._offices.get(membership.office)
        if office is not None:
            office.remove(session)

        kept = session.moving and not goodbye

        async def end() -> None:
            await self._orphaned_calls.settle(left, session, membership)
            if not kept:
                await self._release(session, membership)
            if office is not None:
                await self._offices.release(office)

        self._background.until_done("telling of a member that left", end)

    def stop(self) -> None:
        """The gateway stops: nobody here waits any more for who may come back."""
        self._orphaned_calls.stop()

    async def lost(self, session: Session) -> None:
        """The registry has given the place to another: the membership is over already."""
        if session.membership is not None:
            await self._forget(session, session.membership)

    async def _claim(self, office: Office, request: EnterOfficeReq, claim: Claim, body: bytes, req_id: str) -> Joined:
        """Claim the place. The first one to join an office here gets its list with the answer: after an outage its
        members are told what differs from that.

        Raises:
            NotAllowed: the place is another's.
            Unavailable, BusError: it may have been claimed.
        """
        place, loop = (office.name, request.role, request.name), asyncio.get_running_loop()
        ends = loop.time() + self._registry.room_s
        if not office.roster.known:
            try:
                async with asyncio.timeout_at(ends), office.learning:  # others wait for the first one's list
                    if not office.roster.known:
                        asking = claim.model_copy(update={"with_sessions": True})
                        joined = await self._registry.join(*place, asking, body, req_id=req_id)
                        sessions = joined.sessions
                        if sessions is None:  # the registry's view is behind
                            try:
                                room = await self._registry.room(*place, after=joined.revision, req_id=req_id)
                            except (SmcpError, BusError) as error:
                                raise _no_list() from error  # the place is claimed, whatever became of the list
                            sessions = room.sessions
                        office.roster.learn(member_keys(sessions))
                        return joined
            except TimeoutError:
                raise _no_list() from None
        return await self._registry.join(*place, claim, body, req_id=req_id)

    async def _switch(
        self, session: Session, old: Membership, request: EnterOfficeReq, claim: Claim, body: bytes, req_id: str
    ) -> Claim:
        """The new place is claimed, and nobody was told: give the old one up, then have the new one announced."""
        await self.leave(session, old.office, req_id)
        announced = claim.model_copy(update={"announce": True})

        async def announce() -> None:
            await self._registry.join(request.office_id, request.role, request.name, announced, body, req_id=req_id)

        async def announce_later() -> None:
            membership = session.membership
            if membership is None or membership.claim != announced:
                return  # it left meanwhile, or went
            try:
                await announce()
            except NotAllowed:
                self._doubt()  # the registry does not count it as the member: it is asserted, and told

        try:
            await announce()  # NotAllowed: the place was lost meanwhile
        except (BusError, Unavailable):
            self._background.until_done("announcing a switch", announce_later)  # there is no way back to the old office
        return announced

    async def _go_back(self, session: Session, old: Membership | None, req_id: str) -> None:
        """The new place of a switch was lost after the old one was given up: a switch that fails changes nothing, so
        the old one is taken again. A client that does not get it either is in no office, and is told by hanging up."""
        if old is None or session.role is None or session.name is None or session.closed:
            return
        said: dict[str, Any] = {"role": session.role, "name": session.name, "office_id": old.office}
        if old.claim.capabilities is not None:
            said["capabilities"] = old.claim.capabilities
        try:
            await self.join(session, EnterOfficeReq.model_validate(said), exact_json.written(said), req_id)
        except (SmcpError, BusError) as error:
            _log.warning("a switch failed, and so did the way back: %s", type(error).__name__)
            await self._hang_up(session, "it is in no office after a switch that failed")

    async def _admit(self, session: Session, request: EnterOfficeReq, office: Office, membership: Membership) -> None:
        session.joining = session.joining_place = None
        session.role, session.name = request.role, request.name
        session.membership = membership
        await office.admit(session, membership)
        if session.closed:
            self.gone(session, goodbye=True)

    async def _forget(self, session: Session, membership: Membership) -> None:
        if session.membership is not membership:
            return  # it disconnected meanwhile: `gone` has seen to it
        session.membership = None
        self._computers.close(session, membership.office)
        office = self._offices.get(membership.office)
        if office is not None:
            office.remove(session)
            await self._offices.release(office)

    async def _release(self, session: Session, membership: Membership, req_id: str = "") -> None:
        assert session.role is not None
        assert session.name is not None
        for claim in membership.claims:
            with suppress(NotInOffice):  # somebody has the place already, or the lease had run out
                await self._registry.leave(membership.office, session.role, session.name, claim, req_id=req_id)
                return
            membership.former = None  # it is known by it no more

    def _stays(self, membership: Membership) -> None:
        """Its leave failed, and it was told that it stays a member: it is asserted, by a claim of its own.

        Copies of that leave may be carried out later; they are of the claim before.
        """
        if membership.former is None:  # else it was by that one that it could not leave
            membership.former, membership.claim = membership.claim, renewed(membership.claim)
        self._doubt()

    def _undo(self, office: Office, request: EnterOfficeReq, claim: Claim) -> None:
        """A claim of which nobody knows whether it was granted is given up again."""

        async def undo() -> None:
            with suppress(NotInOffice):  # it was not granted
                await self._registry.leave(office.name, request.role, request.name, claim)
            await self._offices.release(office)

        self._background.until_done("giving up a claim", undo)


def claim_for(registry: RegistryClient, session: Session, request: EnterOfficeReq, *, announce: bool) -> Claim:
    """A new claim, with an incarnation of its own."""
    capabilities = request.capabilities
    return Claim(
        session=session.id,
        credential=registry.credential,
        process=registry.process,
        incarnation=uuid.uuid4().hex,
        identity=identity_of(session, request),
        a2c_version=session.a2c_version,
        announce=announce,
        capabilities=capabilities.model_dump(exclude_unset=True) if capabilities is not None else None,
    )


def renewed(claim: Claim) -> Claim:
    """The same claim made anew: what was asked by the old one is not asked by this one."""
    return claim.model_copy(update={"incarnation": uuid.uuid4().hex})


def identity_of(session: Session, request: EnterOfficeReq) -> str:
    """By which the registry knows whose place it is: the token's subject, where there is a token."""
    return unauthenticated_identity(request) if session.principal is None else session.principal.identity


def unauthenticated_identity(request: EnterOfficeReq) -> str:
    """Who a client is that nobody has authenticated: its office, role and name."""
    return blake2b(orjson.dumps([request.office_id, request.role, request.name]), digest_size=16).hexdigest()


def _no_list() -> Unavailable:
    return Unavailable("no registry says who is in the office", details={"may_have_run": True})


def may_have_run(error: BaseException) -> bool:
    """Whether the registry may have done what failed with this error."""
    match error:
        case Unavailable(details=details):
            return bool(details.get("may_have_run", True))  # who does not say that it was not done may have done it
        case SmcpError(details=details):
            return bool(details.get("may_have_run", False))
        case ConnectionLost() | TransferFailed():
            return True
        case Exception():
            return False
        case _:
            return True  # cancelled in the middle
