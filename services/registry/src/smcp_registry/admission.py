"""The record of one seat (an office's Agent, or a Computer's name in an office), and the decision who gets it: by the
record, the claim, and the present owner's answer.

A record is JSON in the bucket `members`. A leave is a record too (a tombstone), and every record says what is to be
announced of the change that wrote it, so the bucket's stream is the log of enters and leaves.

| the record | the owner, asked `alive?(session)` | decision |
|---|---|---|
| none, or a tombstone | - | claim; announce enter |
| the claimant's own | - | unchanged; announce nothing |
| another's, moving, same identity | - | claim; announce nothing |
| another's, moving, other identity | - | refuse |
| another's | alive | refuse |
| another's | no responder, or no such session | claim; announce leave, then enter |
| an Agent's | no answer, lease lives; same identity and name | claim; announce leave, then enter |
| another's | no answer, lease lives; anybody else | refuse |

The last two are of an owner that is suspended. An Agent that comes back from there is known by its identity, and its
calls cannot wait for the lease; a gateway that lives after all hears of the leave and asks. A Computer's owner does
not, so its seat waits.

Where the table says announce, a claim that asks not to be announced (the first step of an office switch) leaves its
enter out, and so does a leave of a member whose enter was never announced. The second claim of such a session, which
asks to be announced, is the enter. Without quorum there is nothing to decide on: that is the store's `Unavailable`.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict

from smcp_bus.registry_contract import Claim
from smcp_proto.member_names import Role, encode_name
from smcp_proto.text import printable


class State(StrEnum):
    MEMBER = "member"
    LEFT = "left"
    """A tombstone; it is purged later."""


class Announce(StrEnum):
    NOTHING = "nothing"
    ENTER = "enter"
    LEAVE = "leave"
    LEAVE_ENTER = "leave_enter"
    """One owner lost the seat and another has it: first a leave, then an enter."""


class MemberRecord(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")  # fields that a newer registry wrote are kept

    office: str
    role: Role
    name: str
    session: str
    """The connection behind the membership; with `credential` and `process` the owner."""
    credential: str
    process: str
    incarnation: str
    """Changes at each claim that a session makes."""
    identity: str
    """The identity that may take the seat while it is moving."""
    tenure: int | None = None
    """The revision over which its owner claimed it: the same for as long as the seat was nobody else's."""
    since: float | None = None
    """When its owner got the seat (Unix seconds); a move goes on. None: an older registry wrote the record."""
    a2c_version: str | None = None
    capabilities: dict[str, Any] | None = None
    announced: bool = True
    """Whether an enter of the member was announced, or is announced by this record."""
    moving: bool = False
    """Its owner gave it up: it is kept for its identity while the key of this seat in the bucket `moving` lives."""
    state: State = State.MEMBER
    announce: Announce = Announce.NOTHING
    left_name: str | None = None
    """The name in the leave, if it is not `name`: an office's Agent that another Agent followed."""

    @property
    def is_member(self) -> bool:
        return self.state is State.MEMBER

    @property
    def is_visible(self) -> bool:
        return self.state is State.MEMBER and self.announced

    @property
    def owner(self) -> tuple[str, str, str]:
        """(credential, process, session)."""
        return (self.credential, self.process, self.session)


def time_of(seconds: float | None) -> str | None:
    """`2026-01-31T12:00:00Z`; None: not known."""
    return None if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def owned_by(record: MemberRecord, claim: Claim) -> bool:
    return record.owner == (claim.credential, claim.process, claim.session)


def held_by(record: MemberRecord, claim: Claim) -> bool:
    """Whether it stands by this very claim."""
    return owned_by(record, claim) and record.incarnation == claim.incarnation


def record_key(office: str, role: Role, name: str) -> str:
    """The key in the bucket `members`: an office has one seat for an Agent, and one per Computer name."""
    if role == "agent":
        return f"{encode_name(office)}.agent"
    return f"{encode_name(office)}.computer.{encode_name(name)}"


def lease_key(credential: str, process: str) -> str:
    return f"{encode_name(credential)}.{encode_name(process)}"


def moving(record: MemberRecord) -> MemberRecord:
    return record.model_copy(update={"moving": True, "announce": Announce.NOTHING, "left_name": None})


def tombstone(record: MemberRecord) -> MemberRecord:
    """The record that says that the member left; of one that was never announced nothing is announced."""
    return record.model_copy(
        update={
            "state": State.LEFT,
            "announce": Announce.LEAVE if record.is_visible else Announce.NOTHING,
            "announced": False,
            "moving": False,
            "left_name": None,
        }
    )


class Owner(Enum):
    NOT_ASKED = "not asked"
    ALIVE = "alive"
    GONE = "gone"
    """No responder."""
    NO_SESSION = "no such session"
    """Its process lives, and has no such session."""
    SILENT = "silent"
    """It does not answer, though its lease lives."""


class Action(Enum):
    CLAIM = "claim"
    """Write the claimant's record over the one that was decided on."""
    UNCHANGED = "unchanged"
    """The seat is the claimant's already, and the office knows what it is to know."""
    REFUSE = "refuse"
    ASK_OWNER = "ask owner"


@dataclass(frozen=True, slots=True)
class Decision:
    action: Action
    announce: Announce = Announce.NOTHING
    why: str = ""
    """The message of a refusal, for the claimant."""
    taken_up: bool = False
    """The claim continues a member that was moving."""
    reason: str = ""
    """The kind of a refusal, for metrics."""
    holder: MemberRecord | None = None
    """Of a refusal: the Agent that has the office's seat."""


def decide(record: MemberRecord | None, claim: Claim, owner: Owner, *, role: Role, name: str, kept: bool) -> Decision:
    """`kept`: the record is of a member that moves, and whose time to move is not over."""
    if record is None or not record.is_member:
        return Decision(Action.CLAIM, _announce(leave=False, enter=claim.announce))
    if owned_by(record, claim):
        if record.name != name:
            return Decision(Action.REFUSE, why="the name of a member cannot change", reason="name")
        if claim.announce and not record.announced:
            return Decision(Action.CLAIM, Announce.ENTER)
        return Decision(Action.UNCHANGED)
    if kept:
        return _decide_moving(record, claim, role=role, name=name)
    match owner:
        case Owner.NOT_ASKED:
            return Decision(Action.ASK_OWNER)
        case Owner.SILENT if role == "agent" and (record.identity, record.name) == (claim.identity, name):
            return Decision(Action.CLAIM, _announce(leave=record.announced, enter=claim.announce))
        case Owner.ALIVE | Owner.SILENT:
            return _taken(record, role, name)
        case Owner.GONE | Owner.NO_SESSION:
            return Decision(Action.CLAIM, _announce(leave=record.announced, enter=claim.announce))


def _decide_moving(record: MemberRecord, claim: Claim, *, role: Role, name: str) -> Decision:
    if record.identity != claim.identity:
        return _taken(record, role, name)
    if record.name == name:
        announce = _announce(leave=False, enter=claim.announce and not record.announced)
        return Decision(Action.CLAIM, announce, taken_up=True)
    # one identity, another name: for the office it is a leave and an enter
    return Decision(Action.CLAIM, _announce(leave=record.announced, enter=claim.announce))


def claimed(
    record: MemberRecord | None,
    claim: Claim,
    announce: Announce,
    *,
    office: str,
    role: Role,
    name: str,
    revision: int = 0,
    now: float | None = None,
) -> MemberRecord:
    """The record that a claim leaves behind at the time `now`, written over `record`, which stands at `revision`."""
    goes_on = record is not None and record.is_member and owned_by(record, claim)
    leave_announced = announce in (Announce.LEAVE, Announce.LEAVE_ENTER)
    fields = claim.model_dump(exclude={"announce", "with_sessions"})
    if record is not None and goes_on and record.incarnation == claim.incarnation:
        fields["capabilities"] = record.capabilities  # the claim is as old as the join; an update may have come since
    stays_known = record is not None and record.is_visible and not leave_announced
    return MemberRecord(
        office=office,
        role=role,
        name=name,
        **fields,
        tenure=record.tenure if record is not None and goes_on else revision,
        since=record.since if record is not None and (goes_on or stays_known) else now,
        announced=stays_known or announce in (Announce.ENTER, Announce.LEAVE_ENTER),
        announce=announce,
        left_name=record.name if record is not None and leave_announced and record.name != name else None,
    )


def _announce(*, leave: bool, enter: bool) -> Announce:
    if leave:
        return Announce.LEAVE_ENTER if enter else Announce.LEAVE
    return Announce.ENTER if enter else Announce.NOTHING


def _taken(record: MemberRecord, role: Role, name: str) -> Decision:
    if role == "computer":
        return Decision(Action.REFUSE, why=f"the office has a Computer named {name!r} already", reason="taken")
    since = "" if record.since is None else f", since {time_of(record.since)}"
    why = f"the office has an Agent already: {printable(record.name)!r}{since}"
    return Decision(Action.REFUSE, why=why, reason="taken", holder=record)
