"""What is in another office is as if it was nowhere."""

import asyncio
from typing import Any

import orjson

from smcp_bus import subjects
from smcp_bus.bus import Incoming, Reply
from smcp_testing.box_calls import Hanging
from smcp_testing.event_payloads import GOOD
from smcp_testing.gateway_world import connected, gateway_world, reply
from smcp_testing.waiting import eventually

HERE, THERE = "office", "other"


async def test_a_cancel_cancels_no_call_of_another_office_with_the_same_names(nats_url: str) -> None:
    hanging = Hanging()
    cancelled: list[str] = []

    async with (
        gateway_world(nats_url) as world,
        world.computer(THERE, "box", hanging) as there,
        connected(world.url) as otto,
        connected(world.url) as eve,
    ):

        async def heard(incoming: Incoming) -> None:
            cancelled.append(orjson.loads(incoming.body)["req_id"])

        await there.bus.listen(subjects.notify(THERE, "tool_call_cancel"), heard)
        await otto.join("agent", "anna", THERE)
        await eve.join("agent", "anna", HERE)
        waiting = asyncio.create_task(otto.call("client:tool_call", GOOD["client:tool_call"] | {"req_id": "same"}))
        await asyncio.wait_for(hanging.running.wait(), 30)
        assert await eve.call("server:tool_call_cancel", {"agent": "anna", "req_id": "same"}) is None
        assert await otto.call("server:tool_call_cancel", {"agent": "anna", "req_id": "another"}) is None
        await eventually(lambda: cancelled == ["another"])
        hanging.released.set()
        assert await waiting == {"unknown": []}


async def test_an_unknown_computer_and_one_of_another_office_get_404_by_the_same_steps(nats_url: str) -> None:
    """The same body, and what is asked on the way is the same, of the same services: so is the time."""

    async def serve(verb: str, _: Incoming) -> Reply:
        return reply({"verb": verb})

    async with gateway_world(nats_url) as world, world.bus("tap") as tap, connected(world.url) as anna:
        await anna.join("agent", "anna", HERE)
        steps: list[str] = []

        async def read(incoming: Incoming) -> None:
            if "GET.KV_members" in incoming.subject:
                steps.append(f"{incoming.subject} {incoming.body.decode()}")

        await tap.listen("$JS.API.>", read)  # what the registry looks up
        request = world.buses[0].request

        async def asked(subject: str, *given: Any, **named: Any) -> Reply:
            if not subject.startswith("smcp.hosts."):
                steps.append(subject)
            return await request(subject, *given, **named)

        world.buses[0].request = asked  # type: ignore[method-assign]

        async def ask() -> tuple[Any, list[str]]:
            steps.clear()
            answer = await anna.call("client:get_tools", GOOD["client:get_tools"])
            await tap.flush()
            await eventually(lambda: len(steps) >= 3, message=str(steps))
            return answer, list(steps)

        nowhere, unknown_steps = await ask()
        async with world.computer(THERE, "box", serve):
            elsewhere, foreign_steps = await ask()
        assert nowhere == elsewhere
        assert nowhere["code"] == 404
        assert nowhere["details"] == {"computer": "box"}
        assert unknown_steps == foreign_steps
        assert unknown_steps[:2] == [
            "smcp.v1.office.client.box.get_tools",
            "smcp.v1.office.server.agent.anna.find",
        ]
        assert len(unknown_steps) == 3
        assert THERE not in "".join(unknown_steps)
