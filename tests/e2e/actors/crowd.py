"""Who is there while something is hurt, and what they may notice of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from smcp_agent import SmcpAgent
from smcp_testing.waiting import eventually
from tests.e2e.actors.agents import SdkAgent
from tests.e2e.actors.bare import BareMember, FlatError, Refused, comings_and_goings, member
from tests.e2e.actors.flights import SLACK_S, Flight
from tests.e2e.actors.traffic import TIMEOUT_S, Traffic, traffic
from tests.e2e.scenarios.calls import text
from tests.e2e.worlds.world import LAB, ComputerHost, World

ENTER, LEAVE = "notify:enter_office", "notify:leave_office"

BACK_S = 20.0
"""In which everybody is back."""


@dataclass
class Crowd:
    """Who is there while something is hurt: an Agent that makes calls, and somebody who watches."""

    agent: SdkAgent
    watcher: BareMember
    """On gateway 1, in LAB."""
    streams: list[Traffic]

    end: int | None = None
    """How much the watcher had been told when the Agent left by itself."""
    flights: list["Flight"] = field(default_factory=list)
    """What was in flight while something was hurt: looked at again when everybody is back."""

    def noticed(self, name: str) -> list[str]:
        """The comings and goings of a member, as far as the watcher received them before the end."""
        return comings_and_goings(self.watcher.notices[: self.end], name)


@asynccontextmanager
async def crowd(world: World, *, gateway: int = 0) -> AsyncIterator[Crowd]:
    """The Agent comes by `gateway`, and by the others where it cannot. At the end the watcher has heard everything."""
    urls = [world.url(gateway), world.url(gateway + 1)]
    hosts = [world.computer(LAB, name) for name in ("alpha", "beta")]
    async with member(world.url(1), "computer", LAB, "watcher") as watcher:
        async with SmcpAgent(urls, office=LAB, name="caller") as sdk:
            await watcher.told(ENTER, agent="caller")
            agent = SdkAgent(sdk)
            async with traffic(agent, *hosts) as streams:
                there = Crowd(agent, watcher, streams)
                yield there
            await _back(world, agent, watcher)
            there.end = len(watcher.notices)
    for flight in there.flights:
        assert flight.runs() == 1
    for call in [call for stream in streams for call in stream.calls]:
        assert call.took <= TIMEOUT_S + 2 + SLACK_S, f"{call} took {call.took:.2f} s"


def nobody_moved_but(there: Crowd, *names: str) -> None:
    """Those that live, and whose gateway lives, neither leave nor enter."""
    still = {"alpha": [], "beta": [], "watcher": [], "caller": ["enter"]}
    noticed = {name: there.noticed(name) for name in still if name not in names}
    assert noticed == {name: still[name] for name in noticed}, noticed


async def _back(world: World, agent: SdkAgent, watcher: BareMember) -> None:
    """Everybody can be called by everybody, nobody was restarted for it, and all notifications have arrived."""

    async def answers(host: ComputerHost) -> bool:
        try:
            return text(await agent.call(host.name, "echo", {"text": "still there"}, timeout=5)) == "still there"
        except FlatError:
            return False

    for name in ("alpha", "beta"):
        await eventually(partial(answers, world.computer(LAB, name)), timeout=BACK_S)
    for part in world.parts:
        await part.ready(BACK_S)
    for number in range(len(world.gateways)):
        newcomer = BareMember("computer", LAB, f"after {number}")
        await newcomer.connect(world.url(number))
        try:
            await eventually(partial(_joined, newcomer), timeout=BACK_S)
            # Announcements come in the order of the log.
            await watcher.told(ENTER, timeout=BACK_S, computer=newcomer.name)
            everyone = {("agent", "caller"), *(("computer", name) for name in ("alpha", "beta", "watcher"))}
            assert everyone | {("computer", newcomer.name)} <= await newcomer.room()
        finally:
            await newcomer.close()


async def _joined(member: BareMember) -> bool:
    try:
        await member.join()
    except Refused:
        return False
    return True
