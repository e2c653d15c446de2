"""NATS comes back with an empty store: the rooms are as before, and later changes are announced."""

from typing import Any

from smcp_testing.gateway_world import Client, World, connected, gateway_world
from smcp_testing.nats_process import NatsServer
from smcp_testing.waiting import eventually

OFFICE = "office"


async def lists(client: Client, own_name: str, names: list[str]) -> None:
    """A client receives the enters again."""
    question = {"agent": own_name, "req_id": "1", "office_id": OFFICE}

    async def listed() -> bool:
        answer = await client.call("server:list_room", question)
        return sorted(session["name"] for session in answer.get("sessions", [])) == names

    await eventually(listed, timeout=30)


async def visits(world: World, name: str, count: int) -> None:
    async with connected(world.url) as visitor:
        for _ in range(count):
            assert await visitor.join("computer", name, OFFICE) == [True, None]
            assert await visitor.call("server:leave_office", {"office_id": OFFICE}) == [True, None]


async def test_members_list_their_room_and_hear_who_comes_and_goes_after_the_store_was_lost(
    nats_server: NatsServer,
) -> None:
    async with (
        gateway_world(nats_server.url, gateways=2, registries=2) as world,
        connected(world.gateways[0].url) as anna,
        connected(world.gateways[0].url) as box,
        connected(world.gateways[1].url) as car,
    ):
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        await visits(world, "visitor", 10)  # so that the lost store had come further than the new one will
        assert await box.join("computer", "box", OFFICE) == [True, None]
        assert await car.join("computer", "car", OFFICE) == [True, None]
        await eventually(lambda: anna.told("notify:enter_office")[-1:] == [{"office_id": OFFICE, "computer": "car"}])

        await nats_server.restart_empty()
        for client, own_name in ((anna, "anna"), (box, "box"), (car, "car")):
            await lists(client, own_name, ["anna", "box", "car"])

        for name in ("visitor", "stranger"):
            for client in (anna, car):
                client.events.clear()
            await visits(world, name, 1)
            for client in (anna, car):
                about = {"office_id": OFFICE, "computer": name}
                await told(client, name, [("notify:enter_office", about), ("notify:leave_office", about)])
        assert await car.call("server:leave_office", {"office_id": OFFICE}) == [True, None]
        await told(anna, "car", [("notify:leave_office", {"office_id": OFFICE, "computer": "car"})])
        await lists(anna, "anna", ["anna", "box"])
        await eventually(lambda: not any(registry.readiness.problems() for registry in world.registries))


async def told(client: Client, name: str, expected: list[tuple[str, Any]]) -> None:
    """A client hears of somebody's coming and going what is expected, and nothing else."""
    kinds = ("notify:enter_office", "notify:leave_office")

    def heard() -> list[tuple[str, Any]]:
        return [(kind, about) for kind, about in client.events if kind in kinds and about.get("computer") == name]

    await eventually(lambda: len(heard()) >= len(expected))
    assert heard() == expected
