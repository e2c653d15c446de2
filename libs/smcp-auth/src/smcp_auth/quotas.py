"""Quotas: how much each office, and each key or token's subject, may ask of a process at a time and in a second.

The settings `SMCP_QUOTA_*` are the defaults for both. What a key's entry or a token's claim says in `quota` replaces
them for that subject, and where it is more, for what it does in its offices. Each process counts by itself.
"""

import asyncio
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from smcp_auth.grants import Quota
from smcp_bus.limits import SWEEP_AT, Rate
from smcp_proto.errors import RateLimited, SmcpCode

RETRY_S: Final = 1.0
"""The `retry_after_s` of a quota that has room when something else ends, at an unknown time."""
RECONNECT_S: Final = 10
"""The same for a connection."""
LATEST_S: Final = 30.0
"""The longest wait of a large message above the quota of bytes: the time of most requests. A longer one is refused."""
ROUND: Final = 8
"""Events of one office that are begun in one round of the event loop. Each takes some 0.3 ms."""
SUBJECT_ROUND: Final = 4 * ROUND
"""The same of one key or token, which may have many offices: together they delay others by some 10 ms."""

SUBJECT_BODIES: Final = 4
"""Bodies of the largest size that one subject, or one address or connection without authentication, may have here at a
time."""
SHARES: Final = 4
"""How many subjects may have as much."""

NAMES: Final = tuple(Quota.model_fields)


@dataclass(frozen=True, slots=True)
class Limits:
    """Quotas, ready to be compared with."""

    sockets: float
    calls_in_flight: float
    subscriptions: float
    calls: Rate
    bytes: Rate
    reads: Rate


class Account:
    """What one office or subject has now, and when its buckets will be full (clock)."""

    __slots__ = ("bytes", "calls", "calls_in_flight", "reads", "sockets", "subscriptions")

    def __init__(self) -> None:
        self.sockets = self.calls_in_flight = self.subscriptions = 0
        self.calls = self.bytes = self.reads = 0.0

    def is_idle(self, now: float) -> bool:
        busy = self.sockets or self.calls_in_flight or self.subscriptions
        return not busy and now >= max(self.calls, self.bytes, self.reads)


class Holder(Protocol):
    """A session, as far as it matters here."""

    counted_in: "CountedIn | None"
    """Kept for `Quotas`."""

    @property
    def membership(self) -> object:
        """Changes with its office."""

    @property
    def tenants(self) -> "tuple[str | None, str | None, Quota | None]":
        """Its office, its subject's identity, and that subject's quota."""


Ticket = Sequence[tuple[str, Account, Limits]]
"""The accounts in which an event counts."""
CountedIn = tuple[object, int, Ticket]
"""A holder's accounts: for that membership, and for as long as none was dropped (`Quotas._drops`)."""


class Quotas:
    """`defaults` by the names of `Quota`; after a pause, the events of `burst_s` seconds may come at once."""

    def __init__(self, defaults: Mapping[str, float], *, burst_s: float, clock: Callable[[], float]) -> None:
        self._values = dict(defaults)
        self._burst_s = burst_s
        self._clock = clock
        self._defaults = self._limits({})
        self._accounts: defaultdict[str, Account] = defaultdict(Account)
        self._sweep_at = SWEEP_AT
        self._drops = 0
        """How often idle accounts were dropped."""
        self.refused = dict.fromkeys(NAMES, 0)
        """How often a quota was met, by its name."""

    def __len__(self) -> int:
        return len(self._accounts)

    def begin(self, holder: Holder, size: int) -> Ticket:
        """Count an event before it is carried out; `size` is 0 if `arrived` has counted its bytes. Raises RateLimited
        if it is above a quota; then it is not counted (`details.quota`, `limit`, `retry_after_s`)."""
        now, ticket = self._clock(), self._ticket_of(holder)
        for key, account, limits in ticket:
            if account.calls_in_flight >= limits.calls_in_flight:
                raise self._refusal(key, "calls_in_flight", limits.calls_in_flight, RETRY_S)
            if (wait := account.calls - now - limits.calls.slack) > 0:  # as `Rate.wait`: every call passes here
                raise self._refusal(key, "calls_per_s", limits.calls.per_s, wait)
            if (wait := account.bytes - now - limits.bytes.slack - LATEST_S) > 0:
                raise self._refusal(key, "bytes_per_s", limits.bytes.per_s, wait)
        for _, account, limits in ticket:  # as `Rate.taken`
            account.calls_in_flight += 1
            account.calls = max(now, account.calls) + limits.calls.interval
            account.bytes = max(now, account.bytes) + size * limits.bytes.interval
        return ticket

    def end(self, ticket: Ticket, size: int) -> None:
        """An event was answered with `size` bytes."""
        now = self._clock()
        for _, account, limits in ticket:
            account.calls_in_flight -= 1
            account.bytes = max(now, account.bytes) + size * limits.bytes.interval

    def connected(self, holder: Holder) -> None:
        """Count a connection of a subject, until `disconnected`. Raises RateLimited."""
        _, identity, quota = holder.tenants
        for key, account, limits in self._ticket(self._of(None, identity, quota)):
            if account.sockets >= limits.sockets:
                raise self._refusal(key, "sockets", limits.sockets, RECONNECT_S)
            account.sockets += 1

    def disconnected(self, holder: Holder) -> None:
        _, identity, _ = holder.tenants
        if identity is not None:
            self._accounts[_subject(identity)].sockets -= 1

    def join(self, holder: Holder, office: str, members: int) -> None:
        """Before a join of an office that has so many members here. Raises RateLimited: it may have no more."""
        _, _, quota = holder.tenants
        for key, limits in self._of(office, None, quota):
            if members >= limits.sockets:
                raise self._refusal(key, "sockets", limits.sockets, RECONNECT_S)

    def read(self, holder: Holder) -> None:
        """Count a request that makes MCP servers work. Raises RateLimited (with `details.smcp_code`)."""
        now, ticket = self._clock(), self._ticket_of(holder)
        for key, account, limits in ticket:
            if (wait := limits.reads.wait(account.reads, now)) > 0:
                code = SmcpCode.RATE_LIMITED.value
                raise self._refusal(key, "reads_per_s", limits.reads.per_s, wait, smcp_code=code)
        for _, account, limits in ticket:
            account.reads = limits.reads.taken(account.reads, now)

    def subscriptions(self, holder: Holder, office: str) -> Callable[[int], None]:
        """Counts the subscriptions at one Computer: takes by how many they change. Raises RateLimited."""
        _, identity, quota = holder.tenants
        shares = tuple(self._of(office, identity, quota))

        def change(by: int) -> None:
            ticket = self._ticket(shares)
            for key, account, limits in ticket:
                if by > 0 and account.subscriptions + by > limits.subscriptions:
                    code = SmcpCode.RATE_LIMITED.value
                    raise self._refusal(key, "subscriptions", limits.subscriptions, smcp_code=code)
            for _, account, _ in ticket:
                account.subscriptions += by

        return change

    def arrived(self, holder: Holder, size: int) -> float:
        """Count a large message from or to the holder. Returns for how many seconds it has to wait."""
        now, late_s = self._clock(), 0.0
        for _, account, limits in self._ticket_of(holder):
            late_s = max(late_s, limits.bytes.wait(account.bytes, now))
            account.bytes = limits.bytes.taken(account.bytes, now, size)
        return late_s

    def _ticket_of(self, holder: Holder) -> Ticket:
        known, membership = holder.counted_in, holder.membership
        if known is None or known[0] is not membership or known[1] != self._drops:
            ticket = self._ticket(self._of(*holder.tenants))
            holder.counted_in = known = membership, self._drops, ticket
        return known[2]

    def _of(self, office: str | None, identity: str | None, quota: Quota | None) -> Iterable[tuple[str, Limits]]:
        own: dict[str, float] = {} if quota is None else quota.model_dump(exclude_none=True)
        if office is not None:
            more = {name: value for name, value in own.items() if not value or value > self._values[name] > 0}
            yield f"office {office}", self._limits(more) if more else self._defaults
        if identity is not None:
            yield _subject(identity), self._limits(own) if own else self._defaults

    def _limits(self, own: Mapping[str, float]) -> Limits:
        values = {**self._values, **own}
        rates = (Rate(values[f"{name}_per_s"], self._burst_s) for name in ("calls", "bytes", "reads"))
        in_flight, subscriptions = values["calls_in_flight"] or math.inf, values["subscriptions"] or math.inf
        return Limits(values["sockets"] or math.inf, in_flight, subscriptions, *rates)

    def _ticket(self, shares: Iterable[tuple[str, Limits]]) -> Ticket:
        if len(self._accounts) >= self._sweep_at:
            self._sweep()  # before any is looked up: none that is counted in may be dropped
        return [(key, self._accounts[key], limits) for key, limits in shares]

    def _sweep(self) -> None:
        now = self._clock()
        for idle in [key for key, account in self._accounts.items() if account.is_idle(now)]:
            del self._accounts[idle]
        self._drops += 1
        self._sweep_at = max(SWEEP_AT, 2 * len(self._accounts))

    def _refusal(self, key: str, quota: str, limit: float, wait: float | None = None, **details: str) -> RateLimited:
        self.refused[quota] += 1
        fields: dict[str, Any] = {"quota": quota, "limit": limit, **details}
        if wait is not None:
            fields["retry_after_s"] = wait if isinstance(wait, int) else math.ceil(wait * 1000) / 1000
        return RateLimited(f"this {key.partition(' ')[0]} has reached its quota {quota}", details=fields)


def _subject(identity: str) -> str:
    return f"key {identity}"


class BodyBudget:
    """The bytes of request bodies that are kept, from when they come until their requests are answered; or those of
    answers, until their clients have read them."""

    def __init__(self, largest: int) -> None:
        self._share = SUBJECT_BODIES * largest
        self._total = SHARES * self._share
        self._held: Counter[str] = Counter()
        self.refused = 0

    @contextmanager
    def of(self, subject: str) -> Iterator[Callable[[int], None]]:
        """While the body runs, the function that it is given adds to the subject's bytes, or raises RateLimited."""
        taken = 0

        def hold(size: int) -> None:
            nonlocal taken
            if self._held[subject] + size > self._share or self._held.total() + size > self._total:
                self.refused += 1
                raise RateLimited(
                    "the unanswered requests, yours or all clients', have too many bytes: send fewer at a time",
                    details={"retry_after_s": 1},
                )
            self._held[subject] += size
            taken += size

        try:
            yield hold
        finally:
            if taken:
                self._held[subject] -= taken
                if not self._held[subject]:
                    del self._held[subject]


class Turns:
    """In which order events are begun: offices take turns, and each begins few between two looks at the network.

    So an office that sends a thousand at once delays its own. The offices of one key or token share a limit, too.
    """

    def __init__(self) -> None:
        self._offices: dict[str, int] = {}
        """Events in this round; its end is scheduled when there are `ROUND`."""
        self._subjects: dict[str, int] = {}
        self._all_begun = 0
        self._waiting: dict[str, deque[tuple[asyncio.Future[None], str]]] = {}
        """By office, with their subjects; in the order of their turns."""

    def take(self, office: str, subject: str = "") -> asyncio.Future[None] | None:
        """None: it is its turn; else it is when the future is done. `subject`: of its key or token."""
        self._all_begun += 1
        if self._all_begun == ROUND:
            asyncio.get_running_loop().call_soon(self._next_round)
        if office not in self._waiting and self._begins(office, subject):
            return None
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(office, deque()).append((turn, subject))
        return turn

    def _begins(self, office: str, subject: str) -> bool:
        of_office, of_subject = self._offices.get(office, 0), self._subjects.get(subject, 0)
        if of_office == ROUND or (subject and of_subject == SUBJECT_ROUND):
            return False
        self._offices[office], self._subjects[subject] = of_office + 1, of_subject + 1
        return True

    def _next_round(self) -> None:
        self._offices.clear()
        self._subjects.clear()
        waiting, self._waiting = self._waiting, {}
        served: dict[str, deque[tuple[asyncio.Future[None], str]]] = {}
        for office, queue in waiting.items():
            while queue and (queue[0][0].done() or self._begins(office, queue[0][1])):
                turn, _ = queue.popleft()
                if not turn.done():  # else its connection has ended: it uses up no place
                    turn.set_result(None)
            if queue:
                (served if office in self._offices else self._waiting)[office] = queue
        self._waiting |= served  # behind those whose key or token had its turns
        self._all_begun = ROUND if self._offices else 0
        if self._all_begun:
            asyncio.get_running_loop().call_soon(self._next_round)
