"""A part is killed, or stands still for longer than a lease, and comes back: what everybody else may notice of it."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from smcp_agent import SmcpAgent
from smcp_testing.waiting import eventually
from tests.e2e.actors.agents import SdkAgent
from tests.e2e.actors.bare import BareMember, FlatError, Refused, comings_and_goings, member
from tests.e2e.actors.traffic import Traffic, traffic
from tests.e2e.scenarios.calls import text
from tests.e2e.worlds.world import ELSEWHERE, LAB, ComputerHost, World

ENTER, LEAVE = "notify:enter_office", "notify:leave_office"

AT_ONCE_S = 1.0
"""In which what was in flight at a death is answered."""
SLACK_S = 0.75
"""What a loaded machine may take on top of any promise."""
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

    def noticed(self, name: str) -> list[str]:
        """The comings and goings of a member, as far as the watcher was told before the end."""
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


async def a_computer_is_killed(world: World) -> None:
    alpha = world.computer(LAB, "alpha")
    async with crowd(world) as there:
        async with in_flight(there.agent, alpha, seconds=world.lease_s + 6) as answer:
            await alpha.part.kill()
            error = await refused_within(AT_ONCE_S, answer)
        assert (error.code, error.details.get("may_have_run")) == (503, True)
        await there.watcher.told(LEAVE, timeout=_swept(world), computer="alpha")
        await alpha.part.start()
        await there.watcher.told(ENTER, timeout=BACK_S, computer="alpha")
    assert there.noticed("alpha") == ["leave", "enter"]
    assert there.noticed("beta") == []
    assert there.noticed("caller")[0] == "enter"
    assert not there.streams[1].errors


async def a_computer_stands_still_past_its_lease(world: World) -> None:
    alpha = world.computer(LAB, "alpha")
    async with crowd(world) as there:
        async with in_flight(there.agent, alpha, seconds=world.lease_s + 6) as answer:
            alpha.part.pause()
            error = await refused_within(world.lease_s, answer)
        assert (error.code, error.details.get("may_have_run")) == (503, True)
        await there.watcher.told(LEAVE, timeout=_swept(world), computer="alpha")
        alpha.part.resume()
        await there.watcher.told(ENTER, timeout=BACK_S, computer="alpha")
    assert there.noticed("alpha") == ["leave", "enter"]
    assert there.noticed("beta") == []
    assert not there.streams[1].errors


async def a_gateway_is_killed(world: World) -> None:
    """An Agent that knows of another gateway gets its result there; to one that does not, nobody can say any more what
    becomes of its call, and it hears that at once."""
    gateway = world.gateway(0)
    alpha, other = world.computer(LAB, "alpha"), world.computer(ELSEWHERE, "alpha")
    async with (
        crowd(world, gateway=0) as there,
        SmcpAgent(world.url(0), office=ELSEWHERE, name="loner") as loner,
    ):
        async with member(world.url(0), "computer", LAB, "neighbour"):
            await there.watcher.told(ENTER, computer="neighbour")
            async with (
                in_flight(there.agent, alpha, seconds=4) as answer,
                in_flight(SdkAgent(loner), other, seconds=4) as lost,
            ):
                await gateway.part.kill()
                error = await refused_within(AT_ONCE_S, lost)
                assert (error.code, error.details.get("may_have_run")) == (503, True)
                # Its socket is gone; the SDK is back on the other gateway, and the call was not run again.
                assert text(await asyncio.wait_for(answer, 4 + BACK_S)) == "slept 4.0"
            await there.watcher.told(LEAVE, timeout=_swept(world), computer="neighbour")
        await gateway.part.start()
        back = await loner.call_tool(other.name, "echo", {"text": "back"}, timeout=int(BACK_S))
        assert back.text == "back"
    assert there.noticed("alpha") == []
    assert there.noticed("beta") == []
    assert there.noticed("neighbour") == ["enter", "leave"]
    assert there.noticed("caller")[-1] == "enter"


async def a_gateway_stands_still_past_its_lease(world: World) -> None:
    gateway = world.gateway(0)
    async with crowd(world, gateway=1) as there, member(world.url(0), "computer", LAB, "neighbour") as neighbour:
        await there.watcher.told(ENTER, computer="neighbour")
        gateway.part.pause()
        # It hears nothing any more, and need not wait until the office has let it go.
        await eventually(lambda: not neighbour.connected, timeout=world.lease_s + SLACK_S)
        await there.watcher.told(LEAVE, timeout=_swept(world), computer="neighbour")
        gateway.part.resume()
    assert there.noticed("neighbour") == ["enter", "leave"]
    assert there.noticed("alpha") == []
    assert there.noticed("beta") == []
    assert there.noticed("caller") == ["enter"]
    assert not there.streams[0].errors
    assert not there.streams[1].errors


async def a_gateway_stands_still_with_a_call_in_flight(world: World) -> None:
    """The Agent knows of another gateway: there it gets the result, within the lease."""
    gateway = world.gateway(0)
    alpha = world.computer(LAB, "alpha")
    async with member(world.url(1), "computer", LAB, "watcher") as watcher:
        async with SmcpAgent([world.url(0), world.url(1)], office=LAB, name="caller") as sdk:
            await watcher.told(ENTER, agent="caller")
            async with in_flight(SdkAgent(sdk), alpha, seconds=1) as answer:
                gateway.part.pause()
                assert text(await asyncio.wait_for(answer, world.lease_s + SLACK_S)) == "slept 1.0"
            await watcher.told(LEAVE, agent="caller")
            gateway.part.resume()
            # What the old gateway does about the connection that it lost does not concern the new one.
            await past_the_lease(world)
            await sdk.call_tool("alpha", "echo", {"text": "still there"}, timeout=5)
            assert sdk.connected
        await gateway.part.ready(BACK_S)
    assert comings_and_goings(watcher.notices, "caller")[:3] == ["enter", "leave", "enter"]


async def all_gateways_stand_still_with_a_call_in_flight(world: World) -> None:
    """Nobody can tell what became of the call, and that is said within the lease."""
    alpha = world.computer(LAB, "alpha")
    async with SmcpAgent([world.url(0), world.url(1)], office=LAB, name="caller") as sdk:
        agent = SdkAgent(sdk)
        async with in_flight(agent, alpha, seconds=world.lease_s + 6) as answer:
            for gateway in world.gateways:
                gateway.part.pause()
            error = await refused_within(world.lease_s, answer)
        assert (error.code, error.details.get("may_have_run")) == (503, True)
        for gateway in world.gateways:
            gateway.part.resume()
        assert text(await agent.call("alpha", "echo", {"text": "back"}, timeout=int(BACK_S))) == "back"


async def a_registry_is_killed(world: World) -> None:
    registry = world.registries[0]
    async with crowd(world) as there:
        await registry.kill()
        async with member(world.url(0), "computer", LAB, "newcomer"):
            await there.watcher.told(ENTER, timeout=BACK_S, computer="newcomer")
        await there.watcher.told(LEAVE, timeout=BACK_S, computer="newcomer")
        await past_the_lease(world)
        await registry.start()
    assert there.noticed("newcomer") == ["enter", "leave"]
    _nobody_else_moved(there)
    assert not [error for stream in there.streams for error in stream.errors]


async def a_registry_stands_still_past_a_lease(world: World) -> None:
    registry = world.registries[0]
    async with crowd(world) as there:
        registry.pause()
        await past_the_lease(world)
        registry.resume()
    _nobody_else_moved(there)
    assert not [error for stream in there.streams for error in stream.errors]


async def nats_is_killed_for_longer_than_a_lease(world: World) -> None:
    alpha = world.computer(LAB, "alpha")
    async with crowd(world) as there:
        async with in_flight(there.agent, alpha, seconds=world.lease_s + 6) as answer:
            await world.nats.kill()
            error = await refused_within(AT_ONCE_S, answer)
        assert (error.code, error.details.get("may_have_run")) == (503, True)
        with pytest.raises(Refused, match=r"^503 "):
            async with member(world.url(1), "computer", LAB, "newcomer"):
                pass
        await past_the_lease(world)
        await world.nats.start()
    assert there.noticed("newcomer") == []
    _nobody_else_moved(there)


async def nats_stands_still_for_longer_than_a_lease(world: World) -> None:
    alpha = world.computer(LAB, "alpha")
    async with crowd(world) as there:
        async with in_flight(there.agent, alpha, seconds=world.lease_s + 6) as answer:
            world.nats.pause()
            error = await refused_within(world.lease_s, answer)
            world_stood_still = asyncio.create_task(past_the_lease(world))
            assert (error.code, error.details.get("may_have_run")) == (503, True)
            await world_stood_still
        world.nats.resume()
    _nobody_else_moved(there)


def _nobody_else_moved(there: Crowd) -> None:
    assert there.noticed("alpha") == []
    assert there.noticed("beta") == []
    assert there.noticed("watcher") == []
    assert there.noticed("caller") == ["enter"]


@asynccontextmanager
async def in_flight(
    agent: SdkAgent, host: ComputerHost, *, seconds: float
) -> AsyncIterator["asyncio.Task[dict[str, Any]]"]:
    """A call of `sleep` that runs by now; after the block it has ended, and it ran once."""
    mark = uuid4().hex
    call = asyncio.create_task(
        agent.call(host.name, "sleep", {"seconds": seconds, "mark": mark}, timeout=int(seconds) + 30)
    )

    def starts() -> int:
        return host.ran.read_text(encoding="utf-8").split("\n").count(f"sleep {mark}") if host.ran.exists() else 0

    try:
        await eventually(lambda: call.done() or starts() == 1, timeout=10)
        if call.done():
            raise AssertionError(f"the call ended before it ran: {call.exception() or call.result()}")
        yield call
        assert call.done()
        assert starts() == 1
    finally:
        call.cancel()
        await asyncio.wait({call})


async def refused_within(seconds: float, answer: Awaitable[Any]) -> FlatError:
    """The error that a call ends with. Raises AssertionError where it comes late, or is none."""
    started = time.monotonic()
    with pytest.raises(FlatError) as refused:
        await asyncio.wait_for(answer, seconds + 30)
    took = time.monotonic() - started
    assert took <= seconds + SLACK_S, f"{refused.value} came after {took:.2f} s"
    return refused.value


async def past_the_lease(world: World) -> None:
    """Time that has to pass, whatever happens in it."""
    await asyncio.sleep(world.lease_s * 1.5)


def _swept(world: World) -> float:
    """In how many seconds the members of a dead process have left."""
    return world.lease_s * 2 + 5


async def _back(world: World, agent: SdkAgent, watcher: BareMember) -> None:
    """Everybody can be called by everybody, nobody was restarted for it, and all that was told has arrived."""

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
