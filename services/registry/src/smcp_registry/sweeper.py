"""Removes the members of dead processes, ends moves that are over, and purges old tombstones (ADR 0006).

A process whose lease ran out is asked, and only by a registry that has seen NATS up for a whole lease. Its lease is
read once more before each tombstone: to come back changes no record, so that compare-and-set would not notice it.
"""

import asyncio
import logging
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

import nats.errors

from smcp_bus.bus import describe, raise_if_cancelled
from smcp_proto.backoff import jittered
from smcp_proto.errors import Unavailable
from smcp_registry.admission import OwnerState
from smcp_registry.announcer import Announcer
from smcp_registry.audit import Audit
from smcp_registry.leases import Owners
from smcp_registry.member_records import MemberRecord, tombstone
from smcp_registry.members_view import Entry, MembersView, Process
from smcp_registry.store import AT_ONCE, Conflict, Store, read_member, write_member
from smcp_service.lifecycle import set_within

_log = logging.getLogger("smcp_registry.sweeper")

GONE: Final = frozenset({OwnerState.GONE, OwnerState.NO_SESSION})
KEEP_TOMBSTONES_S: Final = 600.0
"""Far longer than a late copy of a join may be on its way (ADR 0012)."""


@dataclass(eq=False, repr=False)
class Sweeper:
    store: Store
    view: MembersView
    owners: Owners
    announcer: Announcer
    audit: Audit
    _: KW_ONLY
    lease_s: float
    keep_tombstones_s: float = KEEP_TOMBSTONES_S
    swept: int = field(default=0, init=False)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop, init=False)
    _asking: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE), init=False)
    _removing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE), init=False)
    """Of its own: between "is not back" and the write nothing may wait, and joins must not wait behind a sweep."""

    async def run(self) -> None:
        """Sweep after each lease that ran out, and every quarter of a lease."""
        while True:
            raise_if_cancelled()
            await self._wait()
            synced = self.view.synced.is_set() and self.owners.leases.synced.is_set()
            if self.owners.connection.up_for() < self.lease_s or not synced:
                continue
            try:
                await self.sweep()
                await self.purge()
            except (Unavailable, nats.errors.Error, TimeoutError) as error:
                _log.info("the sweep ends early: %s", describe(error))

    async def sweep(self) -> None:
        moving = self.view.moving()
        async with asyncio.TaskGroup() as group:
            for process, keys in list(self.view.owners().items()):
                swept = sorted(keys - moving.keys())
                if swept and self.owners.leases.revision(*process) is None:
                    group.create_task(self._sweep(process, swept))
            for key, entry in moving.items():
                group.create_task(self._end_move(key, entry))

    async def purge(self) -> None:
        """Remove tombstones older than `keep_tombstones_s` whose leave was announced. The bucket's newest record stays:
        without it, a view that is read anew would be older than it was before.
        """
        oldest = self._loop.time() - self.keep_tombstones_s
        old = {key: stone for key, stone in self.view.tombstones.items() if stone.seen <= oldest}
        if not old:
            return
        announced = await self.announcer.announced_upto()
        for key, stone in old.items():
            if stone.revision <= announced and stone.revision < self.view.revision:
                await self.store.members.purge(key, upto=stone.revision)
                if self.view.tombstones.get(key) == stone:  # else there is a newer one
                    del self.view.tombstones[key]

    async def _wait(self) -> None:
        ran_out = self.owners.leases.ran_out
        pause = jittered(self.lease_s / 4)  # registries that were started together need not ask at the same moment
        asleep_since = self._loop.time()
        await set_within(pause, ran_out)
        ran_out.clear()
        if self._loop.time() - asleep_since > pause + self.lease_s / 2:
            self.owners.connection.begin_anew()

    async def _sweep(self, process: Process, keys: list[str]) -> None:
        try:
            async with self._asking:
                if await self.owners.leases.lives(*process) or await self.owners.ask(*process, None) not in GONE:
                    return
            _log.warning("process %s of %s is gone, its members leave: %d", process[1], process[0], len(keys))
            async with asyncio.TaskGroup() as group:
                for key in keys:
                    group.create_task(self._remove(key, process))
        except* (Unavailable, nats.errors.Error) as errors:
            _log.info("a sweep was not finished: %s", errors.exceptions[0])

    async def _end_move(self, key: str, entry: Entry) -> None:
        record = entry.record
        try:
            async with self._asking:
                if await self.store.is_kept(key, record):
                    return
                if await self.owners.ask(*record.owner, seat=record) not in GONE:
                    return
            _log.info("the member %s did not come back from its move", key)
            if await self._bury(key, record, entry.revision):
                self.audit.seat_changed("leave", record, "not_back")
        except (Unavailable, nats.errors.Error) as error:
            _log.info("a move was not ended yet: %s", describe(error))

    async def _remove(self, key: str, process: Process) -> None:
        async with self._removing:
            stored = await read_member(self.store.members, key)
            record = stored.record
            if record is None or not record.is_member or record.moving:
                return
            if (record.credential, record.process) != process:
                return
            if self.owners.leases.revision(*process) is not None or await self.owners.leases.lives(*process):
                _log.info("process %s of %s is back", process[1], process[0])
            elif await self._bury(key, record, stored.revision):
                self.swept += 1
                self.audit.seat_changed("leave", record, "expired")

    async def _bury(self, key: str, record: MemberRecord, revision: int) -> bool:
        try:
            await write_member(self.store.members, key, tombstone(record), last=revision)
        except Conflict:
            _log.debug("another wrote %s first", key)
            return False
        return True
