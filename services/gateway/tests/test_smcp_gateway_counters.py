"""What passes the replicas, counted by nats-server: as much with four of them as with one.

A notification reaches only replicas that hold members of the office, and each of them once. A call is one request and
one reply at the Agent's replica, and the same again at the replica that holds a Computer's socket.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from smcp_bus import registry_client
from smcp_bus.bus import Incoming, Reply
from smcp_gateway import calls as table
from smcp_testing.gateway_world import NAMESPACE, Client, World, connected, gateway_world, reply
from smcp_testing.guarded_nats import GuardedNats
from smcp_testing.waiting import eventually

OFFICE, OTHER = "office", "other"
TIMES = 25
NOTHING = [(0, 0)]
LONG_S = 600.0
"""No lease is renewed while the test runs, no owner asked after a call, and no registry once more, however slow the
machine is: what is counted is what the test does."""

Counts = dict[str, tuple[int, int]]
"""By connection: messages that nats-server got from it, and those that it sent to it."""


@pytest.fixture(autouse=True)
def _nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "ASK_AFTER_S", LONG_S)
    monkeypatch.setattr(registry_client, "AGAIN_S", LONG_S)
    monkeypatch.setattr(registry_client, "TRIES", 1)


@dataclass
class Counted:
    world: World
    monitoring: str

    async def counts(self) -> Counts:
        for bus in self.world.buses:
            await bus.flush()  # what was sent to it before has arrived
        async with aiohttp.ClientSession() as http, http.get(f"{self.monitoring}/connz") as answer:
            connections = (await answer.json())["connections"]
        return {
            connection["name"]: (connection["in_msgs"], connection["out_msgs"])
            for connection in connections
            if connection["name"].startswith("gateway-")
        }

    async def have_grown(self, before: Counts, by: list[tuple[int, int]]) -> None:
        """The counts of the replicas have grown by just so much, and it stays at that."""

        async def grown() -> bool:
            assert await self._grown(before) == by
            return True

        await eventually(grown)  # nats-server counts what it got a moment after it took it
        assert await self._grown(before) == by

    async def _grown(self, before: Counts) -> list[tuple[int, int]]:
        after = await self.counts()
        return [
            (after[name][0] - before[name][0], after[name][1] - before[name][1])
            for name in (f"gateway-{number}" for number in range(len(self.world.gateways)))
        ]


@asynccontextmanager
async def replicas(directory: Path, count: int) -> AsyncIterator[Counted]:
    """So many, each of which holds a member of another office."""
    nats = GuardedNats(directory / "nats", options=("--http_port", "-1"))
    await nats.start()
    try:
        async with gateway_world(nats.url, gateways=count, lease_s=LONG_S) as world:
            async with AsyncExitStack() as stack:
                for number, gateway in enumerate(world.gateways):
                    client = await stack.enter_async_context(connected(gateway.url))
                    assert await client.join("computer", f"pc-{number}", OTHER) == [True, None]
                yield Counted(world, nats.monitoring_url)
    finally:
        await nats.stop()


async def settled(world: World, anna: Client, *, enters: int) -> None:
    """The joins are over: all members were notified of them, and the rosters are loaded."""
    await eventually(lambda: all(not gateway.readiness.problems() for gateway in world.gateways))
    offices = [office for gateway in world.gateways for office in gateway.offices]
    await eventually(lambda: all(office.roster.known for office in offices))
    await eventually(lambda: len(anna.told("notify:enter_office")) == enters)
    others = [office for office in offices if office.name == OTHER]
    await eventually(lambda: all(len(office.roster.present) == len(world.gateways) for office in others))


async def echo(verb: str, incoming: Incoming) -> Reply:
    return reply({"content": [{"type": "text", "text": verb}], "isError": False})


async def call(agent: Client, computer: str, number: int) -> None:
    request = {
        "agent": "anna", "req_id": f"{computer}-{number}", "computer": computer, "tool_name": "t", "params": {},
        "timeout": 30,
    }  # fmt: skip
    answer = await agent.call("client:tool_call", request)
    assert answer["isError"] is False


@pytest.mark.parametrize("count", [1, 2, 4])
async def test_a_notification_reaches_only_replicas_that_hold_members_of_the_office(tmp_path: Path, count: int) -> None:
    async with (
        replicas(tmp_path, count) as counted,
        connected(counted.world.url) as anna,
        connected(counted.world.url) as box,
        counted.world.computer(OFFICE, "native", echo) as native,
    ):
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        assert await box.join("computer", "box", OFFICE) == [True, None]
        await settled(counted.world, anna, enters=1)
        before = await counted.counts()
        for _ in range(TIMES):
            await native.registry.tell((OFFICE, "computer", "native"), "update_config", b'{"computer":"native"}')
        await eventually(lambda: all(len(each.told("notify:update_config")) == TIMES for each in (anna, box)))
        await counted.have_grown(before, [(0, TIMES), *NOTHING * (count - 1)])


@pytest.mark.parametrize("count", [1, 2, 4])
async def test_a_call_is_one_request_and_one_reply_at_the_agents_replica_alone(tmp_path: Path, count: int) -> None:
    async with replicas(tmp_path, count) as counted, connected(counted.world.url) as anna:
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        async with counted.world.computer(OFFICE, "native", echo):
            # heard after the notification of her own enter, which reaches the replica too and is told to nobody
            await settled(counted.world, anna, enters=1)
            before = await counted.counts()
            for number in range(TIMES):
                await call(anna, "native", number)
            await counted.have_grown(before, [(TIMES, TIMES), *NOTHING * (count - 1)])


@pytest.mark.parametrize("count", [2, 4])
async def test_a_call_to_a_computers_socket_passes_its_replica_and_the_agents_and_no_other(
    tmp_path: Path, count: int
) -> None:
    async with (
        replicas(tmp_path, count) as counted,
        connected(counted.world.url) as anna,
        connected(counted.world.gateways[-1].url) as box,
    ):

        async def answer(_: Any) -> dict[str, Any]:
            return {"content": [], "isError": False}

        box.sio.on("client:tool_call", answer, namespace=NAMESPACE)
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        assert await box.join("computer", "box", OFFICE) == [True, None]
        await settled(counted.world, anna, enters=1)
        before = await counted.counts()
        for number in range(TIMES):
            await call(anna, "box", number)
        await counted.have_grown(before, [(TIMES, TIMES), *NOTHING * (count - 2), (TIMES, TIMES)])
