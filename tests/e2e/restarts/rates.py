"""How much the system was really asked, and did, between the first SIGTERM and the last. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from tests.e2e.restarts.checker import DONE, Observed


@dataclass(frozen=True)
class Rates:
    """Calls sent, and joins that were done, a second: a call may fail only as `checker` says, a join by any refusal."""

    calls: float
    joins: float

    def __str__(self) -> str:
        return f"{self.calls:.0f} calls/s, {self.joins:.0f} joins/s"


def reached(seen: Observed) -> Rates:
    """Raises: ValueError: there were fewer than two SIGTERMs."""
    first, *_, last = (sigterm.at for sigterm in seen.sigterms)

    def a_second(moments: Iterable[float]) -> float:
        return sum(first <= at < last for at in moments) / (last - first)

    return Rates(
        a_second(call.sent for call in seen.calls.values()),
        a_second(join.at for join in seen.joins if join.answer == DONE),
    )


def too_few(reached: Rates, wanted: Rates, enough: float) -> list[str]:
    """What was not asked of the system, or not done by it, as often as it was to be, a line each.

    Args:
        enough: which part of it has to be: calls come at random, and who joins waits for the answer to the join before.
    """
    return [
        f"only {got:.1f} {what}/s of {want:g}"
        for what, got, want in (
            ("calls", reached.calls, wanted.calls),
            ("joins", reached.joins, wanted.joins),
        )
        if got < enough * want
    ]
