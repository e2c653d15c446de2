"""Removes the members of dead processes, ends moves that are over, and purges old tombstones.

A lease that ran out proves nothing by itself: an outage of NATS that is longer than a lease takes all leases, and
nobody died. So the process is asked, and only by a registry that has itself seen NATS up for a whole lease. All
registries sweep, at the same time if it comes so: each write is a compare-and-set, and the second one fails.

A process that comes back takes its lease first and asserts its members then; where they stand, nothing is written, and
a compare-and-set notices nothing. So the lease is read once more right before each tombstone.
"""

import asyncio
import logging
from typing import Final

import nats.errors

from smcp_bus.errors import describe, raise_if_cancelled
from smcp_proto.backoff import jittered
from smcp_proto.errors import Unavailable
from smcp_registry.admission import Owner
from smcp_registry.announcer import Announcer
from smcp_registry.audit import Audit
from smcp_registry.bucket_watch import ConnectionWatch
from smcp_registry.leases import Leases, Owners
from smcp_registry.member_records import MemberRecord, tombstone
from smcp_registry.members_view import Entry, MembersView, Process
from smcp_registry.store import Conflict, Store, read_member, write_member

_log = logging.getLogger("smcp_registry.sweeper")

GONE: Final = frozenset({Owner.GONE, Owner.NO_SESSION})
AT_ONCE: Final = 32
"""Processes that are asked at the same time."""
KEEP_TOMBSTONES_S: Final = 600.0
"""Far longer than a late copy of a join may be on its way (ADR 0012)."""


class Sweeper:
    def __init__(
        self,
        connection: ConnectionWatch,
        store: Store,
        view: MembersView,
        leases: Leases,
        owners: Owners,
        announcer: Announcer,
        audit: Audit,
        *,
        lease_s: float,
        keep_tombstones_s: float = KEEP_TOMBSTONES_S,
    ) -> None:
        self._connection = connection
        self._store = store
        self._view = view
        self._leases = leases
        self._owners = owners
        self._announcer = announcer
        self._audit = audit
        self._lease_s = lease_s
        self._keep_tombstones_s = keep_tombstones_s
        self._loop = asyncio.get_running_loop()
        self._asking = asyncio.Semaphore(AT_ONCE)
        # of its own: between "is not back" and the write nothing may wait, and joins must not wait behind a sweep
        self._removing = asyncio.Semaphore(AT_ONCE)
        self.sweeps = 0
        self.swept = 0

    async def run(self) -> None:
        """Sweep after each lease that ran out, and every quarter of a lease."""
        while True:
            raise_if_cancelled()
            await self._wait()
            if self._connection.up_for() < self._lease_s or not (self._view.synced and self._leases.synced):
                continue
            try:
                await self.sweep()
                await self.purge()
                self.sweeps += 1
            except (Unavailable, nats.errors.Error, TimeoutError) as error:
                _log.info("the sweep ends early: %s", describe(error))

    async def sweep(self) -> None:
        moving = self._view.moving()
        async with asyncio.TaskGroup() as group:
            for process, keys in list(self._view.owners().items()):
                swept = sorted(keys - moving.keys())
                if swept and self._leases.revision(*process) is None:
                    group.create_task(self._sweep(process, swept))
            for key, entry in moving.items():
                group.create_task(self._end_move(key, entry))

    async def purge(self) -> None:
        """Remove tombstones that stood for long and were announced.

        Never the bucket's newest record: a view that is read anew would be older than what was asked of it before.
        """
        oldest = self._loop.time() - self._keep_tombstones_s
        old = {key: stone for key, stone in self._view.tombstones().items() if stone.seen <= oldest}
        if not old:
            return
        announced = await self._announcer.announced_upto()
        for key, stone in old.items():
            if stone.revision <= announced and stone.revision < self._view.revision:
                await self._store.members.purge(key, upto=stone.revision)
                self._view.forget_tombstone(key, stone.revision)

    async def _wait(self) -> None:
        ran_out = self._leases.ran_out
        pause = jittered(self._lease_s / 4)  # registries that were started together need not ask at the same moment
        asleep_since = self._loop.time()
        try:
            async with asyncio.timeout(pause):
                await ran_out.wait()
        except TimeoutError:
            pass
        ran_out.clear()
        if self._loop.time() - asleep_since > pause + self._lease_s / 2:
            self._connection.begin_anew("this process was suspended")

    async def _sweep(self, process: Process, keys: list[str]) -> None:
        try:
            async with self._asking:
                if await self._leases.lives(*process) or await self._owners.ask(*process, None) not in GONE:
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
                if await self._store.is_kept(key, record):
                    return
                if await self._owners.ask(*record.owner, seat=record) not in GONE:
                    return
            _log.info("the member %s did not come back from its move", key)
            if await self._bury(key, record, entry.revision):
                self._audit.removed(record, "not_back")
        except (Unavailable, nats.errors.Error) as error:
            _log.info("a move was not ended yet: %s", describe(error))

    async def _remove(self, key: str, process: Process) -> None:
        async with self._removing:
            stored = await read_member(self._store.members, key)
            record = stored.record
            if record is None or not record.is_member or record.moving:
                return
            if (record.credential, record.process) != process:
                return
            if self._leases.revision(*process) is not None or await self._leases.lives(*process):
                _log.info("process %s of %s is back", process[1], process[0])
            elif await self._bury(key, record, stored.revision):
                self.swept += 1
                self._audit.removed(record, "expired")

    async def _bury(self, key: str, record: MemberRecord, revision: int) -> bool:
        try:
            await write_member(self._store.members, key, tombstone(record), last=revision)
        except Conflict:
            _log.debug("another wrote %s first", key)
            return False
        return True
