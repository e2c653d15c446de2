"""Decides who gets a seat, by the record, the claim, and the present owner's answer.

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

The last two are of an owner that is suspended. An Agent's calls cannot wait for the lease; a gateway that lives after
all hears of the leave and asks. A Computer's owner does not, so its seat waits.

A claim that asks not to be announced (the first step of an office switch) leaves its enter out, and so does a leave of
a member whose enter was never announced. The second claim of such a session is the enter.
"""

from dataclasses import dataclass
from enum import Enum

from smcp_bus.callers import SeatKey
from smcp_bus.registry_contract import Claim
from smcp_proto.member_names import Role
from smcp_proto.printable import printable
from smcp_registry.member_records import Announce, MemberRecord, owned_by, time_of


class OwnerState(Enum):
    NOT_ASKED = "not asked"
    ALIVE = "alive"
    GONE = "gone"
    """No responder."""
    NO_SESSION = "no such session"  # its process lives
    SILENT = "silent"  # though its lease lives


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


def decide(
    record: MemberRecord | None, claim: Claim, owner: OwnerState, *, role: Role, name: str, kept: bool
) -> Decision:
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
        case OwnerState.NOT_ASKED:
            return Decision(Action.ASK_OWNER)
        case OwnerState.SILENT if role == "agent" and (record.identity, record.name) == (claim.identity, name):
            return Decision(Action.CLAIM, _announce(leave=record.announced, enter=claim.announce))
        case OwnerState.ALIVE | OwnerState.SILENT:
            return _taken(record, role, name)
        case OwnerState.GONE | OwnerState.NO_SESSION:
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
    seat: SeatKey,
    *,
    revision: int = 0,
    now: float | None = None,
) -> MemberRecord:
    """The record that a claim leaves behind at the time `now`, written over `record`, which stands at `revision`."""
    office, role, name = seat
    goes_on = record is not None and record.is_member and owned_by(record, claim)
    leave_announced = announce in (Announce.LEAVE, Announce.LEAVE_ENTER)
    fields = claim.model_dump(exclude={"announce"})
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
    why = f"the office already has an Agent: {printable(record.name)!r}{since}"
    return Decision(Action.REFUSE, why=why, reason="taken", holder=record)
