"""The record of one seat: an office's Agent, or a Computer's name in an office. It is JSON in the bucket `members`.

A leave is one, too (a tombstone). Each says what to announce, so the bucket's stream is the log of enters and leaves.
"""

from datetime import UTC, datetime
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from smcp_bus.registry_contract import Claim, JsonText
from smcp_proto.member_names import Role, encode_name


class State(StrEnum):
    MEMBER = "member"
    LEFT = "left"
    """A tombstone; it is purged later."""


class Announce(StrEnum):
    NOTHING = "nothing"
    ENTER = "enter"
    LEAVE = "leave"
    LEAVE_ENTER = "leave_enter"
    """The seat went from one owner to another: first a leave, then an enter."""


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
    """The revision of the record before its owner's first claim; it stays the same while the owner has the seat."""
    since: float | None = None
    """When its owner got the seat (Unix seconds); a move keeps it. None: an older registry wrote the record."""
    a2c_version: str | None = None
    capabilities: JsonText | None = None
    announced: bool = True
    """Whether an enter of the member was announced, or is announced by this record."""
    moving: bool = False
    """Its owner is moving: the seat is reserved for `identity` while its key in the bucket `moving` exists."""
    state: State = State.MEMBER
    announce: Announce = Announce.NOTHING
    left_name: str | None = None
    """The name in the leave notification, if it is not `name`: an Agent whose seat another Agent took."""

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
    """Whether exactly this claim wrote the record."""
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
    """The record of a leave. The leave of a member that was never announced is not announced either."""
    return record.model_copy(
        update={
            "state": State.LEFT,
            "announce": Announce.LEAVE if record.is_visible else Announce.NOTHING,
            "announced": False,
            "moving": False,
            "left_name": None,
        }
    )
