"""Whether the history of one place has an order in which each step is right: linearizability. Pure.

A place is an office's Agent, or a name of a Computer in an office. Each operation happened at one moment between its
start and its end (seconds of one clock; an end that nobody saw is infinite). The search is Wing's and Gong's: take one
operation after another that may be the next, remember the states from which there was no way on.

What the system does by itself stands in the history as spans of time, in which it may happen any number of times:
`Lapse` (a sweep takes the place from a session, which asserts it again) and `Doubt` (a join without an answer).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

MOST_STATES: Final = 200_000


class Kind(Enum):
    JOINED = "joined"
    """The session claimed the place and got it: it was free, or its own."""
    REFUSED = "refused"
    """It was refused, since the place was another's."""
    RELEASED = "released"
    """It left, or died: afterwards it does not have the place."""
    SEEN = "seen"
    """Somebody read whose the place is; `session` is None where it was nobody's."""


@dataclass(frozen=True, slots=True)
class Operation:
    kind: Kind
    session: str | None
    start: float
    end: float = math.inf


@dataclass(frozen=True, slots=True)
class Lapse:
    """A span in which the session may lose the place without a word, and get back what it lost."""

    session: str
    start: float
    end: float = math.inf


@dataclass(frozen=True, slots=True)
class Doubt:
    """A span in which the session may get the place, and lose it, until it is released: its join had no answer."""

    session: str
    start: float
    end: float = math.inf


Span = Lapse | Doubt


@dataclass(frozen=True)
class History:
    """All that happened to one place."""

    operations: Sequence[Operation]
    spans: Sequence[Span] = ()

    def __str__(self) -> str:
        entries = sorted([*self.operations, *self.spans], key=lambda entry: entry.start)
        return "\n".join(_line(entry) for entry in entries)


class NoOrder(AssertionError):
    """The history has no right order; says how far one came."""


@dataclass(frozen=True, slots=True)
class _State:
    done: int
    """Bit by bit, the operations that are in the order already."""
    owner: str | None
    lost: frozenset[str]
    """Who lost the place in a lapse and may get it back."""


def check(history: History) -> None:
    """Look for a right order.

    Raises:
        NoOrder: there is none.
        ValueError: an operation ends before it starts, or the search would take more than `MOST_STATES` states.
    """
    operations = sorted(history.operations, key=lambda operation: operation.end)
    if wrong := [operation for operation in operations if operation.end < operation.start]:
        raise ValueError(f"it ends before it starts: {_line(wrong[0])}")
    search = _Search(operations, history.spans)
    if not search.found():
        stuck = search.furthest
        left = [operation for number, operation in enumerate(operations) if not stuck.done >> number & 1]
        raise NoOrder(
            f"no order explains this; at best, with {stuck.owner or 'nobody'} in the place, these are left:\n"
            + "\n".join(map(_line, left[:10]))
            + f"\nthe history:\n{history}"
        )


class _Search:
    def __init__(self, operations: Sequence[Operation], spans: Sequence[Span]) -> None:
        self._operations = operations
        self._spans = spans
        self._all = (1 << len(operations)) - 1
        self._releases: dict[str | None, int] = {}
        for number, operation in enumerate(operations):
            if operation.kind is Kind.RELEASED:
                self._releases[operation.session] = self._releases.get(operation.session, 0) | 1 << number
        self._earliest: dict[_State, float] = {}
        """When a state was reached; what comes to it later has fewer ways on."""
        self.furthest = _State(0, None, frozenset())

    def found(self) -> bool:
        waiting: list[tuple[_State, float]] = [(self.furthest, -math.inf)]
        while waiting:
            state, now = waiting.pop()
            if state.done == self._all:
                return True
            if self._earliest.get(state, math.inf) <= now:
                continue
            self._earliest[state] = now
            if len(self._earliest) > MOST_STATES:
                raise ValueError(f"more than {MOST_STATES} states: make the history shorter")
            if state.done.bit_count() > self.furthest.done.bit_count():
                self.furthest = state
            # the last one is tried first: what has to be done soonest, and what the system does by itself at the end
            waiting.extend(reversed(list(self._next(state, now))))
        return False

    def _next(self, state: _State, now: float) -> Iterator[tuple[_State, float]]:
        open_ = [number for number in range(len(self._operations)) if not state.done >> number & 1]
        until = self._operations[open_[0]].end  # they are sorted by their ends
        may_be_next = [number for number in open_ if self._operations[number].start <= until]
        for number in may_be_next:
            operation = self._operations[number]
            # What only looks, is right now and closes no span: there is no better moment for it.
            if _only_looks(operation) and _right(operation, state) and not self._ends(now, operation.start):
                yield _after(operation, number, state), max(now, operation.start)
                return
        for number in may_be_next:
            operation = self._operations[number]
            if _right(operation, state):
                yield _after(operation, number, state), max(now, operation.start)
        for span in self._spans:
            then = max(now, span.start)
            if then <= min(span.end, until) and (state_after := self._by_itself(span, state)) is not None:
                yield state_after, then

    def _ends(self, now: float, then: float) -> bool:
        return any(now <= span.end < then for span in self._spans)

    def _by_itself(self, span: Span, state: _State) -> _State | None:
        """The state after what may happen in the span; None where nothing may."""
        session = span.session
        match span:
            case Lapse() if state.owner == session:
                return _State(state.done, None, state.lost | {session})
            case Lapse() if state.owner is None and session in state.lost:
                return _State(state.done, session, state.lost - {session})
            case Doubt() if state.owner == session:
                return _State(state.done, None, state.lost)
            case Doubt() if state.owner is None and self._releases.get(session, 0) & ~state.done:
                return _State(state.done, session, state.lost)
        return None


def _only_looks(operation: Operation) -> bool:
    return operation.kind in (Kind.REFUSED, Kind.SEEN)


def _right(operation: Operation, state: _State) -> bool:
    match operation.kind:
        case Kind.JOINED:
            return state.owner in (None, operation.session)
        case Kind.REFUSED:
            return state.owner not in (None, operation.session)
        case Kind.SEEN:
            return state.owner == operation.session
        case Kind.RELEASED:
            return True


def _after(operation: Operation, number: int, state: _State) -> _State:
    owner, lost = state.owner, state.lost
    match operation.kind:
        case Kind.JOINED:
            owner = operation.session
        case Kind.RELEASED:
            owner = None if owner == operation.session else owner
    if not _only_looks(operation):
        lost = frozenset(session for session in lost if session != operation.session)
    return _State(state.done | 1 << number, owner, lost)


def _line(entry: Operation | Span) -> str:
    what = entry.kind.value if isinstance(entry, Operation) else type(entry).__name__.lower()
    end = "..." if math.isinf(entry.end) else f"{entry.end:.3f}"
    return f"  {entry.start:9.3f} - {end:>9}  {what:8} {entry.session or 'nobody'}"
