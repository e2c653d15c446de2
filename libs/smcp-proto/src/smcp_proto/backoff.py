"""Pauses between retries: doubling, with jitter. The SDK and all services use it."""

import random
from dataclasses import dataclass


@dataclass
class Backoff:
    """Each pause is between half of the step and the whole step, from `first_s` to `longest_s` (seconds)."""

    first_s: float = 0.5
    longest_s: float = 30.0
    _step: float = 0.0

    def next(self) -> float:
        """The pause before the next try, in seconds."""
        self._step = min(self.longest_s, 2 * self._step if self._step else self.first_s)
        return self._step * random.uniform(0.5, 1.0)  # noqa: S311 -- spreads load; no secret

    def reset(self) -> None:
        """Begin again with the first step."""
        self._step = 0.0


def jittered(seconds: float) -> float:
    """The time of a regular turn, 20 % shorter at most: processes that were started together do not act together."""
    return seconds * random.uniform(0.8, 1.0)  # noqa: S311 -- spreads load; no secret
