"""A part is killed, or stands still for longer than a lease, and comes back: what everybody else may notice of it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from smcp_agent import SmcpAgent
from smcp_testing.waiting import eventually
from tests.e2e.actors.agents import SdkAgent
from tests.e2e.actors.bare import BareMember, FlatError, Refused, comings_and_goings, member
from tests.e2e.actors.crowd import BACK_S, ENTER, LEAVE, crowd, nobody_moved_but
from tests.e2e.actors.flights import AT_ONCE_S, Flight, in_flight, refused_within, timed
from tests.e2e.scenarios.calls import text
from tests.e2e.worlds.world import ELSEWHERE, LAB, World


@pytest.mark.rule("answers.rooms.lease.dead", "answers.calls.death")
async def a_computer_is_killed(world: World) -> None:
    alpha = world.computer(LAB, "alpha")
    async with crowd(world) as there:
        async with in_flight(there.agent, alpha, there.flights, seconds=world.lease_s + 6) as answer:
            await alpha.part.kill()
            error = await refused_within(AT_ONCE_S, answer, world)
        assert (error.code, error.details.get("may_have_run")) == (503, True)
        await there.watcher.told(LEAVE, timeout=_swept(world), computer="alpha")
        await alpha.part.start()
        await there.watcher.told(ENTER, timeout=BACK_S, computer="alpha")
    assert there.noticed("alpha") == ["leave", "enter"]
    nobody_moved_but(there, "alpha")
    assert not there.streams[1].failed


@pytest.mark.rule("answers.rooms.lease.paused", "answers.calls.paused")
async def a_computer_is_suspended_past_its_lease(world: World) -> None:
    alpha = world.computer(LAB, "alpha")
    async with crowd(world) as there:
        async with in_flight(there.agent, alpha, there.flights, seconds=world.lease_s + 6) as answer:
            alpha.part.pause()
            error = await refused_within(world.lease_s, answer, world)
        assert (error.code, error.details.get("may_have_run")) == (503, True)
        await there.watcher.told(LEAVE, timeout=_swept(world), computer="alpha")
        alpha.part.resume()
        await there.watcher.told(ENTER, timeout=BACK_S, computer="alpha")
    assert there.noticed("alpha") == ["leave", "enter"]
    nobody_moved_but(there, "alpha")
    assert not there.streams[1].failed


async def a_gateway_is_killed(world: World) -> None:
    """An Agent that knows of another gateway gets its result there; one that does not, when its gateway is back."""
    gateway = world.gateway(0)
    alpha, other = world.computer(LAB, "alpha"), world.computer(ELSEWHERE, "alpha")
    async with (
        crowd(world, gateway=0) as there,
        SmcpAgent(world.url(0), office=ELSEWHERE, name="loner") as loner,
    ):
        async with member(world.url(0), "computer", LAB, "neighbour"):
            await there.watcher.told(ENTER, computer="neighbour")
            async with (
                in_flight(there.agent, alpha, there.flights, seconds=4) as answer,
                in_flight(SdkAgent(loner), other, there.flights, seconds=4) as lost,
            ):
                await gateway.part.kill()
                # Its socket is gone; the SDK is back on the other gateway, and the call was not run again.
                assert text(await asyncio.wait_for(answer, 4 + BACK_S)) == "slept 4.0"
                await there.watcher.told(LEAVE, timeout=_swept(world), computer="neighbour")
                assert not lost.done()
                await gateway.part.start()
                await settled(lost)
        back = await loner.call_tool(other.name, "echo", {"text": "back"}, timeout=int(BACK_S))
        assert back.text == "back"
    assert there.noticed("neighbour") == ["enter", "leave"]
    # Its gateway is dead, and it comes back by the other one.
    assert there.noticed("caller") == ["enter", "leave", "enter"]
    nobody_moved_but(there, "caller")


async def a_gateway_is_suspended_past_its_lease(world: World) -> None:
    gateway = world.gateway(0)
    async with crowd(world, gateway=1) as there, member(world.url(0), "computer", LAB, "neighbour") as neighbour:
        await there.watcher.told(ENTER, computer="neighbour")
        gateway.part.pause()
        # It hears nothing any more, and need not wait until the office has let it go.
        async with timed("the end of its connection", world.lease_s, world):
            await eventually(lambda: not neighbour.connected, timeout=world.lease_s + BACK_S)
        await there.watcher.told(LEAVE, timeout=_swept(world), computer="neighbour")
        gateway.part.resume()
    assert there.noticed("neighbour") == ["enter", "leave"]
    nobody_moved_but(there)
    assert not there.streams[0].failed
    assert not there.streams[1].failed


@pytest.mark.rule("answers.rooms.sdk-silence")
async def a_gateway_is_suspended_with_a_call_in_flight(world: World) -> None:
    """The Agent knows of another gateway: there it gets the result, within the lease."""
    gateway = world.gateway(0)
    alpha = world.computer(LAB, "alpha")
    flights: list[Flight] = []
    async with member(world.url(1), "computer", LAB, "watcher") as watcher:
        async with SmcpAgent([world.url(0), world.url(1)], office=LAB, name="caller") as sdk:
            await watcher.told(ENTER, agent="caller")
            async with in_flight(SdkAgent(sdk), alpha, flights, seconds=1) as answer:
                gateway.part.pause()
                async with timed("the result by the other gateway", world.lease_s, world):
                    assert text(await asyncio.wait_for(answer, world.lease_s + BACK_S)) == "slept 1.0"
            await watcher.told(LEAVE, agent="caller")
            gateway.part.resume()
            # What the old gateway does about the connection that it lost does not concern the new one.
            await past_the_lease(world)
            await sdk.call_tool("alpha", "echo", {"text": "still there"}, timeout=5)
            assert sdk.connected
        await gateway.part.ready(BACK_S)
    assert [flight.runs() for flight in flights] == [1]
    assert comings_and_goings(watcher.notices, "caller")[:3] == ["enter", "leave", "enter"]


@pytest.mark.rule("answers.rooms.sdk-silence")
async def all_gateways_are_suspended_with_a_call_in_flight(world: World) -> None:
    """The Agent hears of its call when they go on."""
    alpha = world.computer(LAB, "alpha")
    flights: list[Flight] = []
    async with SmcpAgent([world.url(0), world.url(1)], office=LAB, name="caller") as sdk:
        agent = SdkAgent(sdk)
        async with in_flight(agent, alpha, flights, seconds=world.lease_s + 6) as answer:
            for gateway in world.gateways:
                gateway.part.pause()
            await eventually(lambda: not sdk.connected, timeout=BACK_S)
            for gateway in world.gateways:
                gateway.part.resume()
            await settled(answer)
        assert text(await agent.call("alpha", "echo", {"text": "back"}, timeout=int(BACK_S))) == "back"
    assert [flight.runs() for flight in flights] == [1]


async def a_registry_is_killed(world: World) -> None:
    registry = world.registries[0]
    async with crowd(world) as there:
        async with _asked_all_the_time(world, there.watcher, within=AT_ONCE_S):
            await registry.kill()
            async with member(world.url(0), "computer", LAB, "newcomer"):
                await there.watcher.told(ENTER, timeout=BACK_S, computer="newcomer")
            await there.watcher.told(LEAVE, timeout=BACK_S, computer="newcomer")
        await past_the_lease(world)
        await registry.start()
    assert there.noticed("newcomer") == ["enter", "leave"]
    nobody_moved_but(there)
    assert not [call for stream in there.streams for call in stream.failed]


async def a_registry_is_suspended_past_a_lease(world: World) -> None:
    registry = world.registries[0]
    async with crowd(world) as there:
        async with _asked_all_the_time(world, there.watcher, within=world.lease_s):
            registry.pause()
            async with member(world.url(0), "computer", LAB, "newcomer"):
                await there.watcher.told(ENTER, timeout=BACK_S, computer="newcomer")
            await there.watcher.told(LEAVE, timeout=BACK_S, computer="newcomer")
            await past_the_lease(world)
        registry.resume()
    assert there.noticed("newcomer") == ["enter", "leave"]
    nobody_moved_but(there)
    assert not [call for stream in there.streams for call in stream.failed]


async def all_registries_are_suspended_with_a_join_in_flight(world: World) -> None:
    """It is refused within the lease, and its claim is given up when the registries go on."""
    async with member(world.url(1), "computer", LAB, "watcher") as watcher:
        for registry in world.registries:
            registry.pause()
        async with timed("the refusal of the join", world.lease_s, world):
            with pytest.raises(Refused, match=r"^503 "):
                async with member(world.url(0), "computer", LAB, "newcomer"):
                    pass
        for registry in world.registries:
            registry.resume()
        async with member(world.url(0), "computer", LAB, "latecomer"):
            await watcher.told(ENTER, timeout=BACK_S, computer="latecomer")
        await watcher.told(LEAVE, timeout=BACK_S, computer="latecomer")

        async def given_up() -> bool:
            return ("computer", "newcomer") not in await watcher.room()

        await eventually(given_up, timeout=BACK_S)
        await eventually(lambda: watcher.comings_and_goings("newcomer") in ([], ["enter", "leave"]), timeout=BACK_S)
    assert watcher.comings_and_goings("latecomer") == ["enter", "leave"]


@pytest.mark.rule("answers.{acks.join.why,rooms.admission.no-quorum,rooms.lease.outage,calls.not-repeated}")
async def nats_is_killed_for_longer_than_a_lease(world: World) -> None:
    alpha = world.computer(LAB, "alpha")
    async with crowd(world) as there:
        async with in_flight(there.agent, alpha, there.flights, seconds=world.lease_s + 6) as answer:
            await world.nats.kill()
            with pytest.raises(Refused, match=r"^503 "):
                async with member(world.url(1), "computer", LAB, "newcomer"):
                    pass
            await past_the_lease(world)
            assert not answer.done()
            await world.nats.start()
            await settled(answer)
    assert there.noticed("newcomer") == []
    nobody_moved_but(there)


async def nats_is_suspended_for_longer_than_a_lease(world: World) -> None:
    alpha = world.computer(LAB, "alpha")
    async with crowd(world) as there:
        async with in_flight(there.agent, alpha, there.flights, seconds=world.lease_s + 6) as answer:
            world.nats.pause()
            await past_the_lease(world)
            world.nats.resume()
            await settled(answer)
    nobody_moved_but(there)


@asynccontextmanager
async def _asked_all_the_time(world: World, asker: BareMember, *, within: float) -> AsyncIterator[None]:
    """The registries are asked for the room again and again: each question is answered within so many seconds."""
    over = asyncio.Event()

    async def ask() -> None:
        while not over.is_set():
            async with timed("the list of the room", within, world):
                assert ("agent", "caller") in await asker.room()

    async with asyncio.TaskGroup() as group:
        group.create_task(ask())
        try:
            yield
        finally:
            over.set()


async def settled(answer: Awaitable[Any]) -> None:
    """The call ends: with a result (of the tool, or that it was cancelled), or with an error that leaves that open."""
    try:
        await asyncio.wait_for(answer, 2 * BACK_S)
    except FlatError as error:
        assert (error.code, error.details.get("may_have_run")) == (503, True), error  # noqa: PT017


async def past_the_lease(world: World) -> None:
    """Time that has to pass, whatever happens in it."""
    await asyncio.sleep(world.lease_s * 1.5)


def _swept(world: World) -> float:
    """In how many seconds the members of a dead process have left."""
    return world.lease_s * 2 + 5
