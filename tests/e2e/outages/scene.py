"""Who is there while something is hurt: in each office an Agent that calls, a watcher, and a neighbour."""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from smcp_agent import SmcpAgent
from smcp_testing.profiles import scaled
from smcp_testing.waiting import Stopwatch, eventually
from tests.e2e.actors.bare import BareMember, comings_and_goings, member
from tests.e2e.actors.crowd import BACK_S, ENTER, LEAVE
from tests.e2e.actors.flights import SLACK_S
from tests.e2e.outages.offices import NORTH, SOUTH, WORKER, runs
from tests.e2e.restarts import runs as noted
from tests.e2e.restarts.caller import Answer, Ask, Caller, Pace, journal
from tests.e2e.restarts.checker import Call, Observed, calls_of, untrue
from tests.e2e.restarts.sdk_agents import ask_of
from tests.e2e.worlds.world import World, lease_s

CALLS_PER_S: Final = scaled(ci=30, soak=100)
"""Of both offices together."""
LONGEST_S: Final = 2.5
"""Of a call."""
LEFT_S: Final = 1.2
"""Of a call that is to be in flight when something is hurt."""
LEASE_S: Final = lease_s(4)
TIMEOUT_S: Final = math.ceil(5 + LEASE_S)
"""Of a call: who is waited for after a node left has 5 s, and who is silent a lease."""
BUDGET_S: Final = TIMEOUT_S + 2.0
"""In which our SDK has an answer, or gives up."""
LEFT_OFFICE_S: Final = 4 * LEASE_S + BACK_S
"""Time in which a dead member has left the office, even on a busy machine."""
CALLER, NEIGHBOUR, WATCHER = "caller", "neighbour", "watcher"


@dataclass
class Scene:
    """Attributes:
    agents, watchers: by office; the watchers are Computers on the gateway that is not hurt.
    """

    world: World
    directory: Path
    journal: Path
    agents: Mapping[str, SmcpAgent]
    watchers: Mapping[str, BareMember]
    over: dict[str, int] = field(default_factory=dict)
    """By office, how many notices its watcher had when the block was over: then everybody goes."""
    took: dict[str, float] = field(default_factory=dict)
    """How many undisturbed seconds each call took, by its id."""

    def calls(self, office: str, since: float = 0.0, until: float = float("inf")) -> list[Call]:
        """Those that were sent between two moments (monotonic seconds)."""
        return [call for call in self._calls().values() if call.office == office and since <= call.sent < until]

    def in_flight(self, office: str, at: float) -> list[Call]:
        """Those whose tool ran at that moment, and had done so for long enough to be there."""
        return [call for call in self._seen(office).in_flight(at) if call.office == office]

    async def flying(self, *offices: str) -> None:
        """Wait until a tool runs in each office that takes as long again as hurting something does.

        Raises:
            AssertionError: none did for a long time.
        """

        def runs_on(office: str) -> bool:
            return any(run.began + run.seconds > time.monotonic() + LEFT_S for run in self._runs(office))

        await eventually(lambda: all(map(runs_on, offices)), timeout=30)

    async def result_after(self, since: Stopwatch, within: float, *offices: str) -> None:
        """Wait until a call of each office that was sent since then has its result; so many undisturbed s later.

        Raises:
            AssertionError: none has.
        """

        def answered() -> bool:
            return all(any(call.text for call in self.calls(office, since=since.began)) for office in offices)

        await eventually(answered, timeout=within + BACK_S, message=f"no result since {since.began:.3f}")
        took = since.undisturbed
        assert took <= within + SLACK_S, f"the first result came after {took:.2f} undisturbed s of {within:g} s"

    async def unknown(self, office: str, computer: str) -> None:
        """Wait until a call that was sent after the Computer had left was answered 404.

        Raises:
            AssertionError: it did not leave, or none was.
        """
        await self.watchers[office].told(LEAVE, timeout=LEFT_OFFICE_S, computer=computer)
        left = self.told_at(office, LEAVE, computer)
        await eventually(
            lambda: any(call.code == 404 for call in self.calls(office, left)), timeout=BACK_S, message="no 404"
        )

    def noticed(self, office: str, name: str) -> list[str]:
        """The comings and goings of a member, from the beginning to the block's end."""
        return comings_and_goings(self.watchers[office].notices[: self.over.get(office)], name)

    def told_at(self, office: str, event: str, name: str) -> float:
        """When the watcher last received an enter or leave (monotonic seconds)."""
        watcher = self.watchers[office]
        told = [
            at
            for at, (what, data) in zip(watcher.told_at, watcher.notices, strict=True)
            if what == event and name in (data.get("computer"), data.get("agent"))
        ]
        assert told, f"{event} of {name} was not told"
        return told[-1]

    async def back(self, office: str, *names: str, since: Stopwatch, within: float) -> None:
        """Wait until the last notification about each is its enter; that many undisturbed seconds since then.

        Raises:
            AssertionError: it was not.
        """

        def entered() -> bool:
            told = {name: self.noticed(office, name) for name in names}
            assert all(each and each[-1] == "enter" for each in told.values()), told
            return True

        await eventually(entered, timeout=within + BACK_S)
        took = since.undisturbed
        assert took <= within + SLACK_S, f"{names} were back after {took:.2f} undisturbed s of {within:g} s"

    def check(self) -> None:
        """Nothing ran twice, no notification is wrong, and all was answered within its budget.

        Raises:
            AssertionError: otherwise.
        """
        for office in self.agents:
            seen = self._seen(office)
            wrong = untrue(seen)
            wrong += [f"took longer than {BUDGET_S:g} s: {call}" for call in seen.calls.values() if self._late(call)]
            assert not wrong, "\n".join([f"{len(wrong)} wrong:", *wrong[:20]])

    def measured(self, ask: Ask) -> Ask:
        """The same; how long each call takes is kept."""

        async def measuring(req_id: str, seconds: float) -> Answer:
            watch = Stopwatch()
            try:
                return await ask(req_id, seconds)
            finally:
                self.took[req_id] = watch.undisturbed

        return measuring

    def _late(self, call: Call) -> bool:
        return self.took[call.id] > BUDGET_S + SLACK_S

    def _seen(self, office: str) -> Observed:
        calls = {call.id: call for call in self.calls(office)}
        return Observed(self._runs(office), calls, [], [])

    def _runs(self, office: str) -> list[noted.Run]:
        return list(noted.read(runs(self.directory, office)))

    def _calls(self) -> dict[str, Call]:
        return calls_of(json.loads(line) for line in self.journal.read_text(encoding="utf-8").splitlines())


@asynccontextmanager
async def scene(world: World, directory: Path, urls: Mapping[str, Sequence[str]] | None = None) -> AsyncIterator[Scene]:
    """Calls go on while the block runs, and after it until one of each office has a result; then all are checked.
    What was noticed by then stays to be asked for.

    Args:
        directory: that of the world.
        urls: of each office's Agent; without it they have one gateway each.
    """
    urls = urls or {NORTH: [world.url(0)], SOUTH: [world.url(1)]}
    path = directory / f"{time.monotonic_ns()}.journal"
    for office in urls:
        runs(directory, office).unlink(missing_ok=True)
    async with AsyncExitStack() as stack:
        watchers = {
            office: await stack.enter_async_context(member(world.url(1), "computer", office, WATCHER))
            for office in urls
        }
        book = stack.enter_context(journal(str(path)))
        agents = {
            office: await stack.enter_async_context(SmcpAgent(several, office=office, name=CALLER))
            for office, several in urls.items()
        }
        for office, watcher in watchers.items():
            await watcher.told(ENTER, agent=CALLER)
            await eventually(partial(_has_its_tool, agents[office]))
        pace, finishing = Pace(CALLS_PER_S / len(agents), LONGEST_S), asyncio.Event()
        there = Scene(world, directory, path, agents, watchers)
        async with asyncio.TaskGroup() as group:
            for office, agent in agents.items():
                ask = there.measured(ask_of(agent, WORKER, TIMEOUT_S))
                caller = Caller("published", office, pace, book, ask)
                group.create_task(caller.run(finishing))
            try:
                await eventually(lambda: all(len(there.calls(office)) > CALLS_PER_S / 2 for office in agents))
                yield there
            finally:
                finishing.set()
        there.over.update({office: len(watcher.notices) for office, watcher in watchers.items()})
        there.check()


def codes(calls: Collection[Call]) -> set[int | None]:
    """How they ended: the codes of errors, None for a result."""
    without = [call for call in calls if call.code is None and call.error is not None]
    assert not without, f"errors without a code: {without[:10]}"
    return {call.code for call in calls}


def flown(there: Scene, office: str, at: float) -> list[Call]:
    """The office's calls that were in flight at that moment (monotonic seconds).

    Raises:
        AssertionError: none was, so nothing can be said of them.
    """
    found = there.in_flight(office, at)
    assert found, f"no call of {office} was in flight"
    return found


async def _has_its_tool(agent: SmcpAgent) -> bool:
    return "work" in {tool.name for tool in await agent.get_tools(WORKER)}
