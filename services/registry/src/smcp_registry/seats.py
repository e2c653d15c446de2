"""Claims and gives up seats: `admission.decide`, carried out on the store by compare-and-set."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field

from smcp_bus.callers import SeatKey
from smcp_bus.registry_contract import Claim
from smcp_proto.backoff import Backoff
from smcp_proto.errors import NOT_A_MEMBER, NotInOffice, Unavailable
from smcp_registry.admission import Action, Decision, OwnerState, claimed, decide
from smcp_registry.audit import Audit
from smcp_registry.leases import Owners
from smcp_registry.member_records import Announce, MemberRecord, held_by, moving, owned_by, record_key, tombstone
from smcp_registry.store import ATTEMPTS, Conflict, Store, StoredMember, read_member, write_member

Change = Callable[[StoredMember], Awaitable[MemberRecord | None]]
"""What to write over what stands; None: nothing."""


@dataclass(eq=False, repr=False)
class Seats:
    """All methods raise `Unavailable` without quorum."""

    store: Store
    owners: Owners
    audit: Audit
    _: KW_ONLY
    move_s: float
    """How long a seat is kept for who moves, in seconds; 0: not at all."""
    refused: dict[str, int] = field(default_factory=lambda: {"taken": 0, "name": 0, "given_up": 0}, init=False)
    """Claims, by why they were refused."""

    async def claim(
        self, seat: SeatKey, claim: Claim, *, until: float, from_silent: bool = False
    ) -> tuple[Decision, StoredMember]:
        """Give the seat to the claimant, or say why not; returns the record that stands then. Idempotent by the claim.

        Unavailable also where the present owner cannot be asked, or the claimant does not say until `until` (loop time)
        that it means its claim. `from_silent`: the member itself asks, so it may come back from a suspended owner.
        """
        decision = Decision(Action.REFUSE)
        removed: MemberRecord | None = None

        async def change(stored: StoredMember) -> MemberRecord | None:
            nonlocal decision, removed
            decision, owner = await self._decide(seat, stored, claim, from_silent=from_silent)
            # an owner that lives has recorded itself that its session left
            removed = stored.record if owner in (OwnerState.GONE, OwnerState.SILENT) else None
            if decision.action is Action.REFUSE:
                return None
            if not _stands(stored.record, claim) and not await self._is_meant(claim, until):
                decision = Decision(Action.REFUSE, why="the claim was given up meanwhile", reason="given_up")
                return None
            now, revision = time.time(), stored.revision
            record = claimed(stored.record, claim, decision.announce, seat, revision=revision, now=now)
            if decision.action is Action.UNCHANGED and stored.record is not None and same(record, stored.record):
                return None
            return record

        stored = await self._write(seat, change)
        if removed is not None and decision.action is Action.CLAIM:
            self.audit.seat_changed("leave", removed, "expired")
        if decision.action is Action.REFUSE:
            self.refused[decision.reason] += 1
        return decision, stored

    async def release(self, seat: SeatKey, claim: Claim) -> int:
        """Give the seat up; returns the tombstone's revision. Idempotent by the claim; raises NotInOffice. Where
        nothing stands there is a tombstone afterwards, too: a join of that claim may still be on its way (ADR 0012)."""
        was_there = False

        async def change(stored: StoredMember) -> MemberRecord | None:
            nonlocal was_there
            record = stored.record
            was_there = record is not None
            if record is None:
                return tombstone(claimed(None, claim, Announce.NOTHING, seat))
            if not held_by(record, claim) or record.name != seat[2]:
                raise NotInOffice(NOT_A_MEMBER)
            return tombstone(record) if record.is_member else None

        stored = await self._write(seat, change)
        if not was_there:
            raise NotInOffice(NOT_A_MEMBER)
        return stored.revision

    async def move(self, seat: SeatKey, claim: Claim) -> StoredMember:
        """Keep the seat for its identity, for `move_s` from now on. Returns its record; raises NotInOffice."""

        async def change(stored: StoredMember) -> MemberRecord | None:
            record = stored.record
            if record is None or not record.is_member or not owned_by(record, claim) or record.name != seat[2]:
                raise NotInOffice(NOT_A_MEMBER)
            if self.move_s:
                await self.store.moving.mark(record_key(*seat), claim.session.encode(), ttl_s=self.move_s)
            return None if record.moving else moving(record)

        return await self._write(seat, change)

    async def amend(self, seat: SeatKey, member: MemberRecord, *, capabilities: bytes) -> None:
        """Change what a member said of itself; nothing is announced. One that is no longer `member` is left alone."""

        async def change(stored: StoredMember) -> MemberRecord | None:
            record = stored.record
            if record is None or not record.is_member or record.owner != member.owner:
                return None
            update = {"capabilities": capabilities, "announce": Announce.NOTHING, "left_name": None}
            return record.model_copy(update=update)

        await self._write(seat, change)

    async def _write(self, seat: SeatKey, change: Change) -> StoredMember:
        key = record_key(*seat)
        backoff = Backoff(first_s=0.02, longest_s=0.2)
        for _ in range(ATTEMPTS):
            stored = await read_member(self.store.members, key)
            record = await change(stored)
            if record is None:
                return stored
            try:
                return StoredMember(record, await write_member(self.store.members, key, record, last=stored.revision))
            except Conflict:
                await asyncio.sleep(backoff.next())
        raise Unavailable("this seat is being written by others; retry")

    async def _is_meant(self, claim: Claim, until: float) -> bool:
        who, loop = (claim.credential, claim.process, claim.session), asyncio.get_running_loop()
        while (owner := await self.owners.ask(*who, incarnation=claim.incarnation)) is OwnerState.SILENT:
            if loop.time() >= until:
                raise Unavailable("the claimant does not answer whether it still wants the seat; retry")
        return owner is OwnerState.ALIVE

    async def _decide(
        self, seat: SeatKey, stored: StoredMember, claim: Claim, *, from_silent: bool
    ) -> tuple[Decision, OwnerState]:
        record, key, (_, role, name) = stored.record, record_key(*seat), seat
        kept = record is not None and not owned_by(record, claim) and await self.store.is_kept(key, record)
        decision = decide(record, claim, OwnerState.NOT_ASKED, role=role, name=name, kept=kept)
        if decision.action is not Action.ASK_OWNER or record is None:
            return decision, OwnerState.NOT_ASKED
        owner = await self.owners.ask(*record.owner, seat=record)
        if owner is OwnerState.SILENT and not from_silent:
            owner = OwnerState.ALIVE
        return decide(record, claim, owner, role=role, name=name, kept=kept), owner


def _stands(record: MemberRecord | None, claim: Claim) -> bool:
    """Whether this very claim has the seat, or nobody ever had it; else the request may be a late copy (ADR 0012)."""
    return record is None or (record.is_member and held_by(record, claim))


def same(record: MemberRecord, other: MemberRecord) -> bool:
    return record.model_copy(update={"announce": other.announce, "left_name": other.left_name}) == other
