"""A token bucket. Pure: who uses it says what time it is."""

from dataclasses import dataclass
from typing import Final

_NEARLY: Final = 1e-9
"""Tokens that count as there: what is added in many small parts is not exact."""


@dataclass(frozen=True, slots=True)
class Rate:
    """`per_s` tokens a second (above 0), of which at most `burst` (at least 1) are saved up."""

    per_s: float
    burst: int

    def __post_init__(self) -> None:
        if not (self.per_s > 0 and self.burst >= 1):
            raise ValueError("a rate gives something, and saves at least one token")


class TokenBucket:
    """Full at first.

    Args:
        now: seconds of a clock that does not go back; the same clock in all calls.
    """

    __slots__ = ("_at", "_tokens", "rate")

    def __init__(self, rate: Rate, now: float) -> None:
        self.rate = rate
        self._tokens = float(rate.burst)
        self._at = now

    def wait(self, now: float) -> float:
        """Seconds until a token is there; 0 where one is."""
        missing = 1 - self._tokens_at(now)
        return missing / self.rate.per_s if missing > _NEARLY else 0.0

    def is_full(self, now: float) -> bool:
        """Whether it gives what a new one would give."""
        return self.rate.burst - self._tokens_at(now) <= _NEARLY

    def take(self, now: float) -> None:
        """Take a token that is there (`wait` says 0)."""
        self._tokens = max(0.0, self._tokens_at(now) - 1)
        self._at = max(self._at, now)

    def _tokens_at(self, now: float) -> float:
        return min(float(self.rate.burst), self._tokens + max(0.0, now - self._at) * self.rate.per_s)
