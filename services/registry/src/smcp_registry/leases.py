"""The leases of owner processes: renewed by them, run out by themselves, watched by all registries."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import orjson
from pydantic import ValidationError

from smcp_bus.registry_contract import LeaseRenewal, LeaseState
from smcp_proto.errors import Unavailable
from smcp_registry.records import lease_key
from smcp_registry.store import Bucket, Conflict
from smcp_registry.watch import Change

ATTEMPTS: Final = 6
PAUSE_S: Final = 0.02


class LeasesView:
    """A `watch.Sink`: which leases live, as far as this registry has seen."""

    def __init__(self) -> None:
        self._revisions: dict[str, int] = {}
        self._gateways: dict[str, LeaseRenewal] = {}
        """What the gateways among them said last, to whichever registry."""
        self._synced = asyncio.Event()
        self.ran_out = asyncio.Event()
        """Set whenever a lease ran out; who waits for it clears it."""

    def reset(self, entries: Sequence[Change], revision: int) -> None:
        """As `watch.Sink.reset`; a lease that is not among them any more ran out."""
        before = self._revisions.keys()
        self._revisions = {entry.key: entry.revision for entry in entries if entry.value is not None}
        self._gateways.clear()
        for entry in entries:
            self._note(entry)
        if before - self._revisions.keys():
            self.ran_out.set()
        self._synced.set()

    def apply(self, change: Change) -> None:
        """As `watch.Sink.apply`."""
        self._note(change)
        if change.value is not None:
            self._revisions[change.key] = change.revision
        elif self._revisions.pop(change.key, None) is not None:
            self.ran_out.set()

    def __len__(self) -> int:
        return len(self._revisions)

    def unsynced(self) -> None:
        """The connection is down, or the watch begins anew: what is known may be old."""
        self._synced.clear()

    @property
    def synced(self) -> bool:
        """Whether the view follows the bucket now."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Wait until the view follows the bucket; who calls bounds the wait."""
        await self._synced.wait()

    def revision(self, credential: str, process: str) -> int | None:
        """The revision of a lease that lives; None where there is none."""
        return self._revisions.get(lease_key(credential, process))

    def fair_share(self, credential: str, process: str, renewal: LeaseRenewal) -> int | None:
        """How many of all sockets a gateway would have if each that takes new ones had as many, rounded up.

        Args:
            renewal: what the gateway itself says just now; of the others what they said last counts.

        Returns:
            None where it is not to be told anything: it takes no sockets, or this registry has not heard of all others.
        """
        if not self.synced or not renewal.accepting:
            return None
        own = lease_key(credential, process)
        others = [said for key, said in self._gateways.items() if key != own]
        sockets = renewal.sockets + sum(said.sockets for said in others)
        accepting = 1 + sum(said.accepting is True for said in others)
        return -(-sockets // accepting)

    def _note(self, change: Change) -> None:
        said = None if change.value is None else _said(change.value)
        if said is None or said.accepting is None:
            self._gateways.pop(change.key, None)
        else:
            self._gateways[change.key] = said


def _said(value: bytes) -> LeaseRenewal | None:
    """What stands in a lease; None where it cannot be read, which says nothing of whether its process lives."""
    try:
        return LeaseRenewal.model_validate_json(value)
    except ValidationError:
        return None


class Leases:
    """What the registries do with leases. Each write is a compare-and-set: a plain one would raise the dead."""

    def __init__(self, bucket: Bucket, view: LeasesView, *, lease_s: float, now: Callable[[], float]) -> None:
        self._bucket = bucket
        self._view = view
        self._lease_s = lease_s
        self._now = now

    async def renew(self, credential: str, process: str, renewal: LeaseRenewal) -> LeaseState:
        """Renew a lease, or give one where there is none (`renewed` is then False).

        Raises:
            Unavailable: no quorum, or others wrote the same lease again and again.
        """
        key = lease_key(credential, process)
        value = orjson.dumps({**renewal.model_dump(), "renewed_at": self._now()})
        # what was seen last is right nearly always, and saves the read; a lease that ran out since refuses the write
        last = self._view.revision(credential, process)
        lives = last is not None
        for attempt in range(ATTEMPTS):
            if last is None:
                stored = await self._bucket.read(key)
                last, lives = stored.revision, stored.value is not None
            try:
                await self._bucket.write(key, value, last=last)
            except Conflict:
                last = None
                await asyncio.sleep(PAUSE_S * attempt)
            else:
                share = self._view.fair_share(credential, process, renewal)
                return LeaseState(renewed=lives, lease_s=self._lease_s, fair_share=share)
        raise Unavailable("the lease is being written by others; ask again")

    async def lives(self, credential: str, process: str) -> bool:
        """Whether the process has a lease now, read from the store.

        Raises:
            Unavailable: no quorum.
        """
        return (await self._bucket.read(lease_key(credential, process))).value is not None
