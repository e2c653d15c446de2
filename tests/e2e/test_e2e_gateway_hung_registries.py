"""Registries that stand still with a request in hand: who asked hears of it within a lease, or another one answers."""

import asyncio
from typing import Any, Self

from smcp_bus.bus import Incoming, Reply, RequestHandler
from smcp_testing.gateway_world import Client, connected, gateway_world
from smcp_testing.granting_computer import BOX, OFFICE, UPDATED, ask, scene
from smcp_testing.interposed_buses import InterposedBuses
from smcp_testing.waiting import Stopwatch, eventually

LEASE_S = 4.0
"""Less than the 10 s of old, and more than a loaded machine needs for a join."""
SLACK_S = 1.5


class StillRegistries:
    """Takes `stills` requests of members, and answers them when the test says so."""

    def __init__(self, buses: InterposedBuses) -> None:
        buses.between = self._between
        self.stills = 0
        self.still = 0
        self.over = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.go_on()

    def go_on(self) -> None:
        """Carry out what was taken, late; from here on nothing is held."""
        self.stills = 0
        self.over.set()

    async def _between(self, incoming: Incoming, handler: RequestHandler) -> Reply:
        if self.stills and incoming.subject.split(".")[3] == "server":
            self.stills -= 1
            self.still += 1
            await self.over.wait()
        return await handler(incoming)


async def test_every_request_is_answered_within_a_lease_when_all_registries_hang(
    nats_url: str,
) -> None:
    buses = InterposedBuses()
    async with (
        scene(nats_url, registries=2, bad=buses, lease_s=LEASE_S) as (world, anna, box),
        connected(world.url) as car,
        connected(world.url) as mate,
        connected(world.url) as new,
        StillRegistries(buses) as registries,
    ):
        assert await car.join("computer", "car", OFFICE) == [True, None]
        assert await mate.join("computer", "mate", OFFICE) == [True, None]
        await ask(anna)
        registries.stills = 1000
        assert await box.updated() is None  # the registry gets it later

        async def asked(client: Client, event: str, payload: Any) -> str:
            watch = Stopwatch()
            answer = await client.call(event, payload)
            assert watch.undisturbed < LEASE_S + SLACK_S, event
            return str(answer["code"]) if isinstance(answer, dict) else str(answer[1]).split()[0]

        answers = await asyncio.gather(
            asked(new, "server:join_office", {"role": "computer", "name": "new", "office_id": OFFICE}),
            asked(car, "server:leave_office", {"office_id": OFFICE}),
            asked(mate, "server:list_room", {"agent": "mate", "req_id": "1", "office_id": OFFICE}),
            asked(anna, "server:tool_call_cancel", {"agent": "anna", "req_id": "2"}),
            asked(box.client, "server:update_config", {"computer": BOX}),  # behind the update that still waits
        )
        assert set(answers) == {"503"}
        registries.go_on()
        assert await new.join("computer", "new", OFFICE) == [True, None]
        assert await car.call("server:leave_office", {"office_id": OFFICE}) == [True, None]
        await eventually(lambda: anna.told(UPDATED))


async def test_a_request_at_a_hanging_registry_is_sent_to_another_one_within_a_lease(nats_url: str) -> None:
    buses = InterposedBuses()
    async with (
        gateway_world(nats_url, registries=2, bad=buses, lease_s=LEASE_S) as world,
        connected(world.url) as anna,
        connected(world.url) as box,
        StillRegistries(buses) as registries,
    ):
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        registries.stills = 3  # as many tries as go to it
        watch = Stopwatch()
        assert await box.join("computer", "box", OFFICE) == [True, None]
        assert watch.undisturbed < LEASE_S
        assert registries.still == 3
        registries.go_on()
        listed = await anna.call("server:list_room", {"agent": "anna", "req_id": "1", "office_id": OFFICE})
        assert {session["name"] for session in listed["sessions"]} == {"anna", "box"}
        assert anna.events == [("notify:enter_office", {"office_id": OFFICE, "computer": "box"})]
