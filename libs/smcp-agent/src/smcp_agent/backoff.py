"""Pauses between retries: a copy of `smcp_bus.backoff`. The SDK installs no bus; smcp-proto draws nothing at random."""

import random
from dataclasses import dataclass


@dataclass
class Backoff:
    """Doubling pauses with jitter: each is between half of the step and the whole step, in seconds."""

    first_s: float = 0.5
    longest_s: float = 30.0
    _step: float = 0.0

    def next(self) -> float:
        """The pause before the next try."""
        self._step = min(self.longest_s, 2 * self._step if self._step else self.first_s)
        return self._step * random.uniform(0.5, 1.0)  # noqa: S311 -- spreads load; no secret
