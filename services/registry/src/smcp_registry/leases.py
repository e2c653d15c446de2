"""The leases of owner processes, and the query whether one of them lives (`alive`).

All registries watch them. A process whose lease ran out may live; one whose lease lives may have lost a session.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from pydantic import ValidationError

from smcp_bus import subjects
from smcp_bus.bus import OWN_LAG_S, ConnectionLost, NoResponder, NotConnected, Reply, RequestTimedOut, TransferFailed
from smcp_bus.headers import ERROR
from smcp_bus.nats.bus import Bus
from smcp_bus.registry_contract import AliveAnswer, AliveQuestion, LeaseRenewal, LeaseState
from smcp_bus.tracing import sending
from smcp_proto.backoff import Backoff
from smcp_proto.errors import RateLimited, Unavailable
from smcp_registry.admission import OwnerState
from smcp_registry.bucket_watch import Change, ConnectionWatch, View
from smcp_registry.member_records import MemberRecord, lease_key
from smcp_registry.store import ATTEMPTS, Bucket, Conflict

ASK_AGAIN_S: Final = 0.1
"""One "no responder" proves nothing: in a cluster a subscription is known everywhere only after a moment."""
SETTLE_S: Final = 2.0
"""After NATS came back, or a node of it left, owners may take so long to be back (seconds); at most half a lease."""
MOST: Final = 1000
"""Leases of one credential, which can name any process. Each is kept by every registry until it runs out."""
PATIENCE_S: Final = 1.0
"""How long an owner may take to answer (seconds); at most half a lease."""


class Leases(View):
    """The leases that live. Each write is a compare-and-set: a plain one would bring back a lease that ran out."""

    def __init__(self, bucket: Bucket, *, lease_s: float) -> None:
        super().__init__()
        self._bucket = bucket
        self._lease_s = lease_s
        self._leases: dict[str, tuple[int, LeaseRenewal]] = {}
        """The revision, and what its process said last, to whichever registry."""
        self.ran_out = asyncio.Event()
        """Set whenever a lease ran out; its waiter clears it."""

    def reset(self, entries: Sequence[Change]) -> None:
        before = self._leases.keys()
        self._leases = {entry.key: (entry.revision, _renewal(entry.value)) for entry in entries if entry.value}
        if before - self._leases.keys():
            self.ran_out.set()
        super().reset(entries)

    def apply(self, change: Change) -> None:
        if change.value:
            self._leases[change.key] = (change.revision, _renewal(change.value))
        elif self._leases.pop(change.key, None) is not None:
            self.ran_out.set()

    def revision(self, credential: str, process: str) -> int | None:
        lease = self._leases.get(lease_key(credential, process))
        return None if lease is None else lease[0]

    def is_gateway(self, credential: str, process: str, proof: str | None) -> bool:
        """Whether that process holds a gateway's lease, which nats-server lets only gateways write, and the sender is
        that process: it has the lease's proof."""
        lease = self._leases.get(lease_key(credential, process))
        return lease is not None and lease[1].accepting is not None and lease[1].proof == proof

    async def lives(self, credential: str, process: str) -> bool:
        return (await self._bucket.read(lease_key(credential, process))).value is not None

    async def renew(self, credential: str, process: str, renewal: LeaseRenewal) -> LeaseState:
        """Renew a lease, or give one where there is none. Raises RateLimited: its credential has `MOST`."""
        key, all_keys = lease_key(credential, process), lease_key(credential, "")
        value = renewal.model_dump_json().encode()
        backoff = Backoff(first_s=0.02, longest_s=0.2)
        for _ in range(ATTEMPTS):
            stored = await self._bucket.read(key)
            if stored.value is None and sum(each.startswith(all_keys) for each in self._leases) >= MOST:
                raise RateLimited("this credential has too many processes", details={"limit": MOST})
            try:
                await self._bucket.write(key, value, last=stored.revision)
            except Conflict:
                await asyncio.sleep(backoff.next())
            else:
                share = self.fair_share(credential, process, renewal)
                return LeaseState(renewed=stored.value is not None, lease_s=self._lease_s, fair_share=share)
        raise Unavailable("the lease is being written by others; retry")

    def fair_share(self, credential: str, process: str, renewal: LeaseRenewal) -> int | None:
        """See `LeaseState.fair_share`."""
        if not self.synced.is_set() or not renewal.accepting:
            return None
        own = lease_key(credential, process)
        others = [lease for key, (_, lease) in self._leases.items() if key != own and lease.accepting is not None]
        sockets = renewal.sockets + sum(lease.sockets for lease in others)
        accepting = 1 + sum(lease.accepting is True for lease in others)
        return -(-sockets // accepting)


@dataclass(eq=False, repr=False)
class Owners:
    bus: Bus
    connection: ConnectionWatch
    leases: Leases
    _: KW_ONLY
    patience_s: float = PATIENCE_S
    settle_s: float = SETTLE_S
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop, init=False)

    async def ask(
        self,
        credential: str,
        process: str,
        session: str | None,
        *,
        incarnation: str | None = None,
        seat: MemberRecord | None = None,
    ) -> OwnerState:
        """Ask an owner process, as `AliveQuestion` says. Raises Unavailable where NATS is away."""
        subject = subjects.hosts(credential, process, "alive")
        named = {} if seat is None else {"office": seat.office, "role": seat.role, "name": seat.name}
        question = AliveQuestion.model_validate({"session": session, "incarnation": incarnation, **named})
        body = question.model_dump_json(exclude_none=True).encode()
        unheard, attempts = False, 0
        while True:
            attempts += 1
            too_late = self._loop.time() + self.patience_s + OWN_LAG_S
            try:
                with sending(subject) as headers:
                    reply = await self.bus.request(subject, body, timeout=self.patience_s, headers=headers)
            except NoResponder:
                left_at, settled_for = self.bus.node_left_at, self.connection.up_for()
                if left_at is not None:
                    settled_for = min(settled_for, self._loop.time() - left_at)
                if unheard and settled_for >= self.settle_s:
                    return OwnerState.GONE
                unheard = True
                await asyncio.sleep(max(ASK_AGAIN_S, self.settle_s - settled_for))
            except (RequestTimedOut, TransferFailed):
                if self._loop.time() > too_late and attempts < ATTEMPTS:
                    continue
                return OwnerState.SILENT if await self.leases.lives(credential, process) else OwnerState.GONE
            except (NotConnected, ConnectionLost) as error:
                raise Unavailable("the present owner cannot be asked") from error
            else:
                return OwnerState.NO_SESSION if _says_no(reply) else OwnerState.ALIVE


def _says_no(reply: Reply) -> bool:
    try:
        return ERROR not in reply.headers and not AliveAnswer.model_validate_json(reply.body).session
    except ValidationError:
        return False  # whatever it says: somebody is there to say it


def _renewal(value: bytes) -> LeaseRenewal:
    try:
        return LeaseRenewal.model_validate_json(value)
    except ValidationError:
        return LeaseRenewal()  # it cannot be read, which says nothing of whether its process lives
