"""Whether a call was lost, run twice or cut off: by the file of runs, what each caller got, and the SIGTERMs. Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tests.e2e.restarts.runs import Run

ARRIVED_S: Final = 1.0
"""After so long a call that was sent has arrived, also where its tool does not run yet."""
DONE: Final = "done"
"""What a join that was done is answered."""
LONG_S: Final = 3.0
"""In so many seconds between two SIGTERMs somebody joins, also in a short play with 5 joins/s."""
MANY: Final = 10
"""Of so many joins asked between two SIGTERMs at least half have to be done; of fewer one."""


@dataclass
class Call:
    """What a caller saw of one call (monotonic seconds). Without an end it was never answered."""

    id: str
    client: Literal["sdk", "published"]
    office: str
    sent: float
    ended: float | None = None
    text: str | None = None
    error: str | None = None
    code: int | None = None
    may_have_run: bool | None = None


@dataclass(frozen=True)
class Sigterm:
    """A part got the signal to end."""

    part: str
    at: float


@dataclass(frozen=True)
class Join:
    """What became of one: `done`, or why not."""

    at: float
    answer: str


@dataclass
class Observed:
    """All that is known of a play."""

    runs: Sequence[Run]
    calls: Mapping[str, Call]
    sigterms: Sequence[Sigterm]
    joins: Sequence[Join]
    lost: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """When connections of published clients ended, by office, in order. They wait on for the answers."""
    _began: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        self._began = {run.id: run.began for run in reversed(self.runs)}

    def in_flight(self, at: float) -> list[Call]:
        """The calls that had reached the system then, and were not answered."""
        return [call for call in self.calls.values() if self._in_flight(call, at)]

    def _in_flight(self, call: Call, at: float) -> bool:
        arrived = min(self._began.get(call.id, call.sent + ARRIVED_S), call.sent + ARRIVED_S)
        return arrived < at < self._over(call)

    def _over(self, call: Call) -> float:
        ends = [end for end in self.lost.get(call.office, ()) if end > call.sent] if call.client == "published" else []
        return min([math.inf if call.ended is None else call.ended, *ends])


def calls_of(lines: Iterable[Mapping[str, Any]]) -> dict[str, Call]:
    """The calls in a journal: first what was sent, then what it gave."""
    calls: dict[str, Call] = {}
    for line in lines:
        if "id" not in line:
            continue
        if "sent" in line:
            calls[line["id"]] = Call(**line)
        else:
            call = calls[line["id"]]
            for name in ("ended", "text", "error", "code", "may_have_run"):
                setattr(call, name, line[name])
    return calls


def lost_of(lines: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """When connections ended by a journal, by office."""
    lost: dict[str, list[float]] = {}
    for line in lines:
        if "lost" in line:
            lost.setdefault(line["office"], []).append(line["lost"])
    return lost


def joins_of(lines: Iterable[Mapping[str, Any]]) -> list[Join]:
    """The joins in a journal."""
    return [Join(line["at"], line["join"]) for line in lines if "join" in line]


def untrue(seen: Observed) -> list[str]:
    """What must not be of any call, whatever was hurt, a line each: an error is none of it, where it is true."""
    ran = Counter(run.id for run in seen.runs)
    found = [f"{name} ran and was never sent" for name in ran if name not in seen.calls]
    for call in seen.calls.values():
        found += [f"{why}: {call}" for why in _untrue(call, ran[call.id])]
    return found


def _untrue(call: Call, runs: int) -> list[str]:
    found = []
    if runs > 1:
        found.append(f"ran {runs} times")
    if call.ended is None:
        return [*found, "was never answered"]
    if call.error is None:
        if runs == 0:
            found.append("has a result and did not run")
        if call.text != call.id:
            found.append("has another's result")
    elif call.may_have_run is False and runs:
        found.append("is said not to have run and ran")
    return found


def wrongs(seen: Observed, at_least: int) -> list[str]:
    """What must not be, a line each.

    Args:
        at_least: so many calls were to be in flight at each SIGTERM.
    """
    ran = Counter(run.id for run in seen.runs)
    found = untrue(seen)
    for call in seen.calls.values():
        if call.client == "sdk" and call.error is not None:
            found.append(f"{'ran and lost its result' if ran[call.id] else 'lost: did not run'}: {call}")
    ends = [sigterm.at for sigterm in seen.sigterms[1:]]
    for sigterm, end in zip(seen.sigterms, [*ends, math.inf], strict=True):
        answers = [join.answer for join in seen.joins if sigterm.at < join.at < end]
        done = answers.count(DONE)
        if not done and (answers or end - sigterm.at >= LONG_S):
            found.append(f"nobody joined between the SIGTERM of {sigterm.part} and the next")
        elif len(answers) >= MANY and 2 * done < len(answers):
            found.append(f"only {done} of {len(answers)} joined between the SIGTERM of {sigterm.part} and the next")
        flying = seen.in_flight(sigterm.at)
        if len(flying) < at_least:
            found.append(f"only {len(flying)} calls were in flight at the SIGTERM of {sigterm.part}")
        found += [
            f"cut off by the SIGTERM of {sigterm.part}: {call}"
            for call in flying
            if call.client == "published" and call.error is not None
        ]
    return found


def summary(seen: Observed) -> str:
    """What was played and what became of it, in a few lines."""
    ran = Counter(run.id for run in seen.runs)
    lines = []
    for client in ("sdk", "published"):
        calls = [call for call in seen.calls.values() if call.client == client]
        answered = sum(call.error is None and call.ended is not None for call in calls)
        codes = Counter(str(call.code or "the client's own") for call in calls if call.error is not None)
        lost = sum(call.error is None and not ran[call.id] for call in calls)
        if client == "sdk":
            lost = sum(call.error is not None or not ran[call.id] for call in calls)
        lines.append(
            f"{client}: {len(calls)} calls, {answered} answered, errors {dict(codes)}, "
            f"doubled {sum(ran[call.id] > 1 for call in calls)}, lost {lost}"
        )
    answers = Counter(join.answer if join.answer == "cut off" else join.answer.split()[0] for join in seen.joins)
    lines.append(f"joins: {len(seen.joins)}, {answers.pop(DONE, 0)} done, others {dict(answers)}")
    lines.append(
        "in flight at SIGTERM: " + ", ".join(f"{one.part} {len(seen.in_flight(one.at))}" for one in seen.sigterms)
    )
    return "\n".join(lines)
