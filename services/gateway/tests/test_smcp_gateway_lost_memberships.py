"""An Agent that was away for a while hears that its subscriptions have ended there, and its connection stands."""

from smcp_agent import Disconnected, Event, Reconnected, ResourceUpdated, SmcpAgent
from smcp_bus.registry_client import RegistryClient
from smcp_proto.schemas.resources import MISSED
from smcp_testing.gateway_world import World, connected, gateway_world
from smcp_testing.granting_computer import BOX, OFFICE, URI, Granting, ask, heard
from smcp_testing.leaving_gateway import in_time, two_gateways
from smcp_testing.waiting import eventually

LIST_CHANGED = "notify:resources/list_changed"


async def let_go(world: World) -> None:
    """The registry lets the Agent on the first gateway go, as it does when a lease has run out."""
    session = next(session for session in world.gateways[0].sessions if session.role == "agent")
    assert session.name is not None
    assert session.membership is not None
    claim = session.membership.claim
    async with world.bus("sweeper") as bus:
        registry = RegistryClient(bus, credential=claim.credential, process=claim.process)
        await registry.leave((OFFICE, "agent", session.name), claim)


async def test_the_sdk_subscribes_again_after_its_seat_was_lost_and_claimed_again(nats_url: str) -> None:
    async with (
        gateway_world(nats_url, gateways=2) as world,
        connected(world.gateways[1].url) as client,
        SmcpAgent(world.gateways[0].url, office=OFFICE, name="anna") as agent,
    ):
        box, events = Granting(client), list[Event]()
        assert await client.join("computer", BOX, OFFICE) == [True, None]
        await eventually(lambda: agent.computers() == [BOX])
        await agent.subscribe_resource(BOX, URI)
        agent.on_event(events.append)
        await let_go(world)
        await eventually(lambda: ResourceUpdated(BOX, URI) in events)  # it may have changed meanwhile
        await box.updated()
        await eventually(lambda: ResourceUpdated(BOX, URI, title="t") in events)
        assert len(box.asked) >= 2
        assert client.told("notify:leave_office") == [{"office_id": OFFICE, "agent": "anna"}]
        assert not any(isinstance(event, Disconnected) for event in events)


async def test_only_the_agent_that_lost_its_seat_gets_list_changed_and_its_requests_go_on(nats_url: str) -> None:
    async with (
        gateway_world(nats_url, gateways=2) as world,
        connected(world.gateways[1].url) as client,
        connected(world.gateways[0].url) as mate,
        connected(world.gateways[0].url) as anna,
    ):
        box = Granting(client)
        for name, computer in ((BOX, client), ("mate", mate)):
            assert await computer.join("computer", name, OFFICE) == [True, None]
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        await let_go(world)
        await eventually(lambda: len(anna.told(LIST_CHANGED)) == 2)
        payload = {"jsonrpc": "2.0", "method": "notifications/resources/list_changed"}
        assert anna.told(LIST_CHANGED) == [
            {"roomId": OFFICE, "computerId": name, "payload": payload, MISSED: True} for name in sorted((BOX, "mate"))
        ]
        assert "result" in (await ask(anna))["payload"]
        await box.updated()
        assert await heard(anna, box) == [URI]
        assert mate.told(LIST_CHANGED) == client.told(LIST_CHANGED) == []
        assert len(anna.told(LIST_CHANGED)) == 2


async def test_an_agent_moved_by_a_drain_gets_updates_again_without_a_leave(nats_url: str) -> None:
    async with two_gateways(nats_url) as (staying, leaving, leave), connected(staying.url) as client:
        box, events = Granting(client), list[Event]()
        assert await client.join("computer", BOX, OFFICE) == [True, None]
        async with SmcpAgent([leaving.url, staying.url], office=OFFICE, name="anna") as agent:
            await agent.subscribe_resource(BOX, URI)
            agent.on_event(events.append)
            left = leave()
            await eventually(lambda: Reconnected(staying.url) in events)
            await eventually(lambda: ResourceUpdated(BOX, URI) in events)  # it may have changed meanwhile
            await box.updated()
            await eventually(lambda: ResourceUpdated(BOX, URI, title="t") in events)
            assert client.told("notify:leave_office") == []
            await in_time(left)
