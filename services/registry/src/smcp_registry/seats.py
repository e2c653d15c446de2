"""Claiming and giving up seats: `admission.decide`, carried out on the store by compare-and-set."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from smcp_bus.registry_contract import Claim
from smcp_proto.errors import NotInOffice, Unavailable
from smcp_proto.ids import Role
from smcp_registry.admission import Action, Decision, Owner, claimed, decide
from smcp_registry.owners import Owners
from smcp_registry.records import Announce, MemberRecord, State, moving, owned_by, record_key, tombstone
from smcp_registry.store import Bucket, Conflict, StoredMember, read_member, write_member

ATTEMPTS: Final = 8
"""How often a decision is made anew because others wrote meanwhile."""
PAUSE_S: Final = 0.02
NOTHING: Final = StoredMember(None, 0)
GIVEN_UP: Final = "the claim was given up meanwhile"


@dataclass(frozen=True, slots=True)
class Claimed:
    """What became of a claim. `revision` is the claimant's own record's, 0 where it was refused."""

    decision: Decision
    revision: int = 0


class Seats:
    """What the registries do with seats.

    Args:
        untouched: whether nothing is known to stand under a key: most seats are claimed for the first time, and need
            no read then. It may be wrong: what is decided on it is a write over nothing, which is refused.
        now: unix seconds (UTC, by nats-server's clock).
        move_s: how long a place that is moving is kept for its identity, in seconds.
    """

    def __init__(
        self,
        members: Bucket,
        owners: Owners,
        *,
        untouched: Callable[[str], bool],
        now: Callable[[], float],
        move_s: float,
    ) -> None:
        self._members = members
        self._owners = owners
        self._untouched = untouched
        self._now = now
        self._move_s = move_s

    async def claim(
        self, office: str, role: Role, name: str, claim: Claim, *, until: float, from_silent: bool = False
    ) -> Claimed:
        """Give the place to the claimant, or say why not. Idempotent by the claim.

        Args:
            until: when the claimant stops waiting (loop time); so long it is asked whether it means its claim.
            from_silent: the member itself asks, so that it may come back from an owner that stands still.

        Raises:
            Unavailable: no quorum, or the question to the present owner or to the claimant is open, or too many want
                the place at once.
        """
        key = record_key(office, role, name)
        for attempt in range(ATTEMPTS):
            stored = NOTHING if not attempt and self._untouched(key) else await read_member(self._members, key)
            decision = await self._decide(stored, claim, role=role, name=name, from_silent=from_silent)
            if decision.action is Action.REFUSE:
                return Claimed(decision)
            if not _stands(stored.record, claim) and not await self._is_meant(claim, until):
                return Claimed(Decision(Action.REFUSE, why=GIVEN_UP))
            record = claimed(
                stored.record, claim, decision.announce, office=office, role=role, name=name, over=stored.revision
            )
            if decision.action is Action.UNCHANGED and stored.record is not None and same(record, stored.record):
                return Claimed(decision, stored.revision)
            try:
                return Claimed(decision, await write_member(self._members, key, record, last=stored.revision))
            except Conflict:
                await _pause(attempt)
        raise Unavailable("too many want this place at once; ask again")

    async def release(self, office: str, role: Role, name: str, claim: Claim) -> int:
        """Give the place up; returns the tombstone's revision. Idempotent by the claim.

        Where nothing stands there is a tombstone afterwards, too: a join of that claim may still be on its way, and
        its sender is asked only where something stands.

        Raises:
            NotInOffice: the claim is not the member there.
            Unavailable: no quorum.
        """
        key = record_key(office, role, name)
        for attempt in range(ATTEMPTS):
            stored = await read_member(self._members, key)
            record = stored.record
            if record is not None and (not _is(record, claim) or record.name != name):
                raise NotInOffice("not in this office")
            if record is not None and not record.is_member:
                return stored.revision
            never = claimed(None, claim, Announce.NOTHING, office=office, role=role, name=name)
            try:
                revision = await write_member(self._members, key, tombstone(record or never), last=stored.revision)
            except Conflict:
                await _pause(attempt)
                continue
            if record is None:
                raise NotInOffice("not in this office")
            return revision
        raise Unavailable("this place is being written by others; ask again")

    async def move(self, office: str, role: Role, name: str, claim: Claim) -> int:
        """Keep the claimant's place for its identity, from now on for `move_s`; returns the record's revision.

        Nothing is announced. Asked again it begins anew.

        Raises:
            NotInOffice: the claim is not the member there.
            Unavailable: no quorum.
        """
        key = record_key(office, role, name)
        for attempt in range(ATTEMPTS):
            stored = await read_member(self._members, key)
            record = stored.record
            if record is None or not record.is_member or not owned_by(record, claim) or record.name != name:
                raise NotInOffice("not in this office")
            try:
                until = self._now() + self._move_s
                return await write_member(self._members, key, moving(record, until), last=stored.revision)
            except Conflict:
                await _pause(attempt)
        raise Unavailable("this place is being written by others; ask again")

    async def amend(
        self, office: str, role: Role, name: str, member: MemberRecord, *, capabilities: dict[str, Any]
    ) -> None:
        """Change what a member said of itself; nothing is announced. One that is no longer `member` is left alone.

        Raises:
            Unavailable: no quorum.
        """
        key = record_key(office, role, name)
        for attempt in range(ATTEMPTS):
            stored = await read_member(self._members, key)
            record = stored.record
            if record is None or not record.is_member or record.owner != member.owner:
                return
            change = {"capabilities": capabilities, "announce": Announce.NOTHING, "left_name": None}
            try:
                await write_member(self._members, key, record.model_copy(update=change), last=stored.revision)
            except Conflict:
                await _pause(attempt)
            else:
                return
        raise Unavailable("this place is being written by others; ask again")

    async def _is_meant(self, claim: Claim, until: float) -> bool:
        """Whether the claimant still means it.

        Raises:
            Unavailable: it does not say so until then (loop time); it does not wait for an answer any more.
        """
        who, loop = (claim.credential, claim.process, claim.session), asyncio.get_running_loop()
        while (owner := await self._owners.ask(*who, incarnation=claim.incarnation)) is Owner.SILENT:
            if loop.time() >= until:
                raise Unavailable("who wants the place does not answer whether it still does; ask again")
        return owner is Owner.ALIVE

    async def _decide(
        self, stored: StoredMember, claim: Claim, *, role: Role, name: str, from_silent: bool
    ) -> Decision:
        record = stored.record
        decision = decide(record, claim, Owner.NOT_ASKED, role=role, name=name, now=self._now())
        if decision.action is not Action.ASK_OWNER or record is None:
            return decision
        owner = await self._owners.ask(*record.owner, place=record)
        if owner is Owner.SILENT and not from_silent:
            owner = Owner.ALIVE
        return decide(record, claim, owner, role=role, name=name, now=self._now())


def _stands(record: MemberRecord | None, claim: Claim) -> bool:
    """Whether this very claim has the place, or nobody ever had it.

    Where somebody had it since, the request may be a copy that waited somewhere (at a registry that stood still) until
    the claim that another copy made had been given up: it would bring back a member that left. Its sender knows.
    """
    return record is None or (record.is_member and _is(record, claim))


def same(record: MemberRecord, other: MemberRecord) -> bool:
    """Whether two records of a member say the same, but for what was announced when they were written."""
    return _facts(record) == _facts(other)


def _facts(record: MemberRecord) -> MemberRecord:
    return record.model_copy(update={"announce": Announce.NOTHING, "left_name": None, "state": State.MEMBER})


def _is(record: MemberRecord, claim: Claim) -> bool:
    return owned_by(record, claim) and record.incarnation == claim.incarnation


async def _pause(attempt: int) -> None:
    # jitter, so that those who collided do not collide again
    await asyncio.sleep(PAUSE_S * attempt * random.uniform(0.5, 1.5))  # noqa: S311 -- not a secret
