"""When a question to the registries is put once more."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Hedges:
    """When a question that has no answer is put once more, beside the others (seconds).

    NATS picks the registry at random, so each try may go to one that stands still. No question is withdrawn for the
    next one: a registry that has it works on it all the same, and the answer of a slow one may be the only one.
    """

    first: float
    longest: float
    """They grow from `first` to this."""
    quick: bool = False
    """Whether it is put again sooner while one of the registries was just seen to stand still."""


HEDGES: Final = Hedges(0.3, 1.0, quick=True)
"""12 tries within 10 s: with one of two registries standing still all of them miss once in 2**12 requests."""
FEWEST_TRIES: Final = 10
"""Of a question that has less time than 10 s: with one of two registries standing still all of them miss once in 2**10
requests."""
BATCH_HEDGES: Final = Hedges(2.0, 2.0)
"""A batch takes its time."""
QUICK: Final = Hedges(0.03, 0.3)
"""Where one of the registries stands still and another answers promptly."""
QUICK_TRIES: Final = 10
"""So many tries of a question are quick; then it goes on as the others do, should all of them stand still by now."""
GROWTH: Final = 1.5
STILL_S: Final = 10.0
"""How long one registry is taken to stand still after that was seen last (seconds)."""
PROMPT: Final = 0.2
"""An answer is prompt that took this share of the time for which an earlier copy of its question is open. Where all
registries are slow none is: a later copy is no quicker than an earlier one."""

COPIES_A_QUESTION: Final = 1.5
"""On average, of all questions of one client. Where one of two registries stands still they need one."""
MOST_COPIES: Final = 50.0
"""What a client may have saved up beside the share of its open questions."""


def hedges_within(seconds: float) -> Hedges:
    """For questions that have so much time."""
    share = seconds / FEWEST_TRIES
    return Hedges(min(HEDGES.first, share), min(HEDGES.longest, share), quick=True)


class Standstill:
    """What one client has seen of its registries."""

    def __init__(self) -> None:
        self._until = 0.0

    def answered(self, now: float, *, asked: float, oldest: float) -> None:
        """A copy of a question was answered while an older one is open.

        Args:
            now, asked, oldest: loop times (seconds): now, and at which those copies were sent.
        """
        if now - asked < PROMPT * (now - oldest) and now - oldest >= QUICK.first:
            self._until = now + STILL_S

    def seen(self, now: float) -> bool:
        """Whether one of the registries is taken to stand still at `now` (loop time)."""
        return now < self._until


class CopyBudget:
    """The further copies that one client may send of its questions. Where registries are slow because there is too much
    to do, copies would make them slower: for seconds every question would be put ten times."""

    def __init__(self) -> None:
        self._left = MOST_COPIES
        self._open = 0

    @contextmanager
    def question(self) -> Iterator[None]:
        """For as long as a question is open: it brings its share, which others may use."""
        self._open += 1
        self._left += COPIES_A_QUESTION
        try:
            yield
        finally:
            self._open -= 1
            self._left = min(self._left, MOST_COPIES + COPIES_A_QUESTION * self._open)

    def spend(self) -> bool:
        """Whether one of them may be put once more."""
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Pace:
    """The times of one question."""

    def __init__(self, hedges: Hedges, standstill: Standstill) -> None:
        self._hedges = hedges
        self._standstill = standstill
        self._next, self._quick = hedges.first, QUICK.first
        self._tries = 0

    def wait(self, now: float) -> float:
        """How long to wait for an answer before the next try (seconds)."""
        quick = self._tries < QUICK_TRIES and self._hedges.quick and self._standstill.seen(now)
        return self._quick if quick else self._next

    def missed(self) -> None:
        """There was no answer in that time."""
        self._tries += 1
        self._next = min(GROWTH * self._next, self._hedges.longest)
        self._quick = min(GROWTH * self._quick, QUICK.longest)
