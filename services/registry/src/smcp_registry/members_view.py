"""The watched view of the bucket `members`: who is in which office, as of a revision.

It lags behind the store: code that must not miss a change waits until the view has reached its revision.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

from pydantic import ValidationError
from pydantic_core import from_json

from smcp_proto.member_names import Role
from smcp_proto.schemas import SessionInfo
from smcp_registry.bucket_watch import Change, View
from smcp_registry.member_records import MemberRecord, record_key
from smcp_registry.store import parse_record
from smcp_service.lifecycle import set_within

Process = tuple[str, str]
"""(credential, process)."""


@dataclass(frozen=True)
class Entry:
    record: MemberRecord
    revision: int

    @cached_property
    def session_json(self) -> bytes:
        """The member's `SessionInfo` (data-structures.txt); kept, since an office is listed at each first join."""
        return session_info(self.record).model_dump_json(by_alias=True, exclude_unset=True).encode()


class Tombstone(NamedTuple):
    revision: int
    seen: float
    """Loop time (seconds) at which this registry saw it, or read its view anew."""


class MembersView(View):
    """`revision` decreases only while a bucket that was made anew is empty; owners then assert again in `lease_s`."""

    def __init__(self, *, lease_s: float = 10.0) -> None:
        super().__init__()
        self._lease_s = lease_s
        self._loop = asyncio.get_running_loop()
        self._entries: dict[str, Entry] = {}
        self._offices: dict[str, dict[str, Entry]] = {}
        self.tombstones: dict[str, Tombstone] = {}
        """By key."""
        self._moved = asyncio.Event()
        self._awaited: dict[str, set[str]] = {}
        self._awaited_until = 0.0
        self.revision = 0

    def reset(self, entries: Sequence[Change]) -> None:
        # a leave would have put a tombstone in the place of each
        for key in (vanished := self._entries.keys() - {change.key for change in entries}):
            self._awaited.setdefault(self._entries[key].record.office, set()).add(key)
        if vanished:
            self._awaited_until = self._loop.time() + self._lease_s
        self._entries, self._offices, self.tombstones = {}, {}, {}
        for change in entries:
            self._put(change)
        # not the stream's last sequence: the consumer may follow a replica that has not come as far
        self._reach(max((change.revision for change in entries), default=0))
        super().reset(entries)

    def apply(self, change: Change) -> None:
        self.tombstones.pop(change.key, None)
        entry = self._entries.pop(change.key, None)
        if entry is not None:
            office = self._offices[entry.record.office]
            del office[change.key]
            if not office:
                del self._offices[entry.record.office]
        self._put(change)
        self._reach(change.revision)

    def member(self, office: str, role: Role, name: str) -> Entry | None:
        """The member of that name; None where there is none (an Agent of another name is another)."""
        entry = self._entries.get(record_key(office, role, name))
        return entry if entry is not None and entry.record.name == name else None

    def awaited(self, office: str) -> Set[str]:
        """The keys of those who were in the office when its bucket was lost, and have not asserted themselves yet."""
        if self._awaited and self._loop.time() > self._awaited_until:
            self._awaited.clear()
        return self._awaited.get(office, frozenset())

    def members(self, office: str) -> Iterable[Entry]:
        return self._offices.get(office, {}).values()

    def sessions_json(self, office: str, own: tuple[str, str, str]) -> bytes:
        """A JSON array of SessionInfo: those that were announced, and what the owner `own` has in any case."""
        shown = [e.session_json for e in self.members(office) if e.record.announced or e.record.owner == own]
        return b"[%b]" % b",".join(shown)

    def owners(self) -> Mapping[Process, set[str]]:
        owners: dict[Process, set[str]] = defaultdict(set)
        for key, entry in self._entries.items():
            owners[entry.record.credential, entry.record.process].add(key)
        return owners

    def by_role(self) -> dict[str, int]:
        return {"agent": 0, "computer": 0} | Counter(entry.record.role for entry in self._entries.values())

    @property
    def offices(self) -> Set[str]:
        return self._offices.keys()

    def moving(self) -> Mapping[str, Entry]:
        """The members that are marked as moving, also those whose time is over, by key."""
        return {key: entry for key, entry in self._entries.items() if entry.record.moving}

    async def reached(self, revision: int, seconds: float) -> bool:
        """Wait until the view has seen `revision`, at most `seconds`; whether it has."""
        until = self._loop.time() + seconds
        while self.revision < revision and await set_within(until - self._loop.time(), self._moved):
            pass
        return self.revision >= revision

    def _put(self, change: Change) -> None:
        record = parse_record(change.value, key=change.key)
        if record is None:
            return
        self._awaited.get(record.office, set()).discard(change.key)
        if not record.is_member:
            self.tombstones[change.key] = Tombstone(change.revision, self._loop.time())
            return
        entry = Entry(record, change.revision)
        self._entries[change.key] = entry
        self._offices.setdefault(record.office, {})[change.key] = entry

    def _reach(self, revision: int) -> None:
        self.revision = revision
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()


def session_info(record: MemberRecord) -> SessionInfo:
    """A member as its room mates see it, without what it did not say, and without capabilities that are not valid."""
    fields = {
        "sid": opaque(record),
        "name": record.name,
        "role": record.role,
        "office_id": record.office,
        "a2c_version": record.a2c_version,
        "capabilities": None if record.capabilities is None else from_json(record.capabilities),
    }
    fields = {field: value for field, value in fields.items() if value is not None}
    try:
        return SessionInfo.model_validate(fields)
    except ValidationError:  # a native Computer's claim may hold anything: it must not cost its room mates their list
        fields.pop("capabilities", None)
        return SessionInfo.model_validate(fields)


def opaque(record: MemberRecord) -> str:
    """32 hex digits that stand for the member's session: the same at every registry, and of no use to anyone."""
    session = "\0".join((record.office, *record.owner))
    return blake2b(session.encode(), digest_size=16, person=b"smcp sid").hexdigest()
