"""What a bad bus does to which message: drawn from a seed, and counted."""

import random
from collections import Counter
from dataclasses import dataclass
from typing import Literal

Kind = Literal["request", "reply", "served", "notice", "chunk"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How often, from 0 to 1."""

    lost: float = 0.0
    doubled: float = 0.0
    late: float = 0.0


SOUND = Rates()


@dataclass(frozen=True, slots=True)
class Fate:
    """Of one message. What is lost is neither doubled nor late; `delay` is in seconds, 0 for what is not late."""

    lost: bool
    doubled: bool
    delay: float


class Fates:
    """A message's fate follows from the seed, its kind, its subject and its number on that subject.

    Attributes:
        met: how many messages met with what: `"request lost"`, `"served doubled"`, `"notice late"`, … Bad luck that
            nobody had proves nothing, so tests look here.
    """

    def __init__(self, seed: int, max_delay: float) -> None:
        self._seed = seed
        self._max_delay = max_delay
        self._numbers: Counter[tuple[Kind, str]] = Counter()
        self.met: Counter[str] = Counter()

    def draw(self, kind: Kind, subject: str, rates: Rates) -> Fate:
        """The fate of the next message of that kind on that subject."""
        key = (kind, subject)
        self._numbers[key] += 1
        dice = random.Random(f"{self._seed}:{kind}:{subject}:{self._numbers[key]}")
        lost, doubled, late = dice.random(), dice.random(), dice.random()
        delay = dice.uniform(0, self._max_delay) if late < rates.late else 0.0
        if lost < rates.lost:
            return self._count(kind, Fate(True, False, 0.0))
        return self._count(kind, Fate(False, doubled < rates.doubled, delay))

    def _count(self, kind: Kind, fate: Fate) -> Fate:
        what = {"lost": fate.lost, "doubled": fate.doubled, "late": fate.delay > 0}
        self.met.update(f"{kind} {word}" for word, true in what.items() if true)
        return fate
