"""The members of an office as `server:list_room` shows them: each written once, and the whole once for each change."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from pydantic import ValidationError

from smcp_proto.schemas import SessionInfo
from smcp_registry.records import MemberRecord
from smcp_registry.view import Entry, MembersView

KEPT_BYTES: Final = 16 * 1024 * 1024
"""Of lists that are kept written, with what keeping them costs; beyond it those that were not asked for longest are
written anew."""

_OVERHEAD: Final = 512
"""Bytes of a list of one, about."""


@dataclass(slots=True)
class _List:
    version: int = 0
    shown: dict[str, tuple[Entry, bytes]] = field(default_factory=dict)
    """By key: the member, and its JSON."""
    announced: bytes = b""
    unannounced: Sequence[Entry] = ()

    @property
    def size(self) -> int:
        return _OVERHEAD + 2 * len(self.announced)


class RoomLists:
    """Reads the view, and is as new as it.

    Args:
        kept_bytes: of lists that are kept written.
    """

    def __init__(self, view: MembersView, *, kept_bytes: int = KEPT_BYTES) -> None:
        self._view = view
        self._kept_bytes = kept_bytes
        self._lists: OrderedDict[str, _List] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        """How many lists are kept."""
        return len(self._lists)

    def sessions(self, office: str, own: tuple[str, str, str]) -> bytes:
        """A JSON array of SessionInfo: those that were announced, and what the owner `own` has in any case."""
        known = self._of(office)
        unseen = [session_json(entry.record) for entry in known.unannounced if entry.record.owner == own]
        return b"[%b]" % b",".join([known.announced, *unseen] if known.announced else unseen)

    def _of(self, office: str) -> _List:
        known = self._lists.get(office)
        version = self._view.version(office)
        if known is not None and known.version == version:
            self._lists.move_to_end(office)
            return known
        before = self._lists.pop(office, None)
        if before is None:
            before = _List()
        else:
            self._bytes -= before.size
        after = self._written(office, version, before)
        if not after.shown:
            return after  # nobody is there, or nobody was announced yet
        self._lists[office] = after
        self._bytes += after.size
        while self._bytes > self._kept_bytes:
            _, dropped = self._lists.popitem(last=False)
            self._bytes -= dropped.size
        return after

    def _written(self, office: str, version: int, before: _List) -> _List:
        written = _List(version)
        unannounced = []
        for key, entry in self._view.entries(office):
            if not entry.record.announced:
                unannounced.append(entry)
                continue
            shown = before.shown.get(key)
            if shown is None or shown[0] is not entry:
                shown = (entry, session_json(entry.record))
            written.shown[key] = shown
        written.announced = b",".join([shown for _, shown in written.shown.values()])
        written.unannounced = unannounced
        return written


def session_json(record: MemberRecord) -> bytes:
    """A member's `SessionInfo` as JSON (data-structures.txt, SessionInfo)."""
    return session_info(record).model_dump_json(by_alias=True, exclude_unset=True).encode()


def session_info(record: MemberRecord) -> SessionInfo:
    """A member as its room mates see it; what it did not say is absent, and capabilities that are none."""
    said = {
        "sid": opaque(record),
        "name": record.name,
        "role": record.role,
        "office_id": record.office,
        "a2c_version": record.a2c_version,
        "capabilities": record.capabilities,
    }
    said = {field: value for field, value in said.items() if value is not None}
    try:
        return SessionInfo.model_validate(said)
    except ValidationError:  # a native Computer's claim may hold anything: it must not cost its room mates their list
        said.pop("capabilities", None)
        return SessionInfo.model_validate(said)


def opaque(record: MemberRecord) -> str:
    """32 hex digits that stand for the member's session: the same at every registry, and of no use to anyone."""
    session = "\0".join((record.office, *record.owner))
    return blake2b(session.encode(), digest_size=16, person=b"smcp sid").hexdigest()
