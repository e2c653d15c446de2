"""What an office is told of one change: a pure function of the record and its revision."""

from dataclasses import dataclass

from smcp_proto.schemas import EnterOfficeNotification, LeaveOfficeNotification
from smcp_registry.records import Announce, MemberRecord


@dataclass(frozen=True, slots=True)
class Announcement:
    """One notification.

    Attributes:
        verb: the last token of its subject.
        epoch: grows with every change of the place: `2 * revision` for a leave, `2 * revision + 1` for an enter.
    """

    verb: str
    body: bytes
    epoch: int


def announcements(record: MemberRecord, revision: int) -> list[Announcement]:
    """What to publish for the record that stands at `revision` of the bucket `members`, in order."""
    told = []
    if record.announce in (Announce.LEAVE, Announce.LEAVE_ENTER):
        who = {"office_id": record.office, record.role: record.left_name or record.name}
        left = LeaveOfficeNotification.model_validate(who)
        told.append(Announcement("leave_office", _json(left), 2 * revision))
    if record.announce in (Announce.ENTER, Announce.LEAVE_ENTER):
        entered = EnterOfficeNotification.model_validate({"office_id": record.office, record.role: record.name})
        told.append(Announcement("enter_office", _json(entered), 2 * revision + 1))
    return told


def _json(notification: EnterOfficeNotification | LeaveOfficeNotification) -> bytes:
    # only the key that applies is there, the other is absent and not null (settled: Rooms and events)
    return notification.model_dump_json(exclude_unset=True).encode()
