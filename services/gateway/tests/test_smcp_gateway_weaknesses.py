"""What the published server gets wrong: a refused join listens in, and 500 joins take 6 s and 100 MB."""

import time
from typing import Final

import psutil
import pytest

from bench.members import Room
from smcp_testing.gateway_world import Client, connected, gateway_world
from smcp_testing.profiles import scaled
from smcp_testing.waiting import eventually

PUBLISHED_S: Final = 6.0
PUBLISHED_BYTES: Final = 100_000_000
"""What 500 joins cost the published server."""

HERE, THERE = "office", "other"


async def names(client: Client, agent: str, office: str) -> list[str]:
    listed = await client.call("server:list_room", {"agent": agent, "req_id": "r", "office_id": office})
    return sorted(session["name"] for session in listed["sessions"])


@pytest.mark.rule("answers.rooms.refused.hears-nothing")
async def test_a_refused_client_gets_no_notifications_and_can_do_nothing_in_the_room(nats_url: str) -> None:
    async with (
        gateway_world(nats_url) as world,
        connected(world.url) as anna,
        connected(world.url) as box,
        connected(world.url) as spy,
        connected(world.url) as namesake,
    ):
        await anna.join("agent", "anna", HERE)
        await box.join("computer", "box", HERE)
        assert (await spy.join("agent", "spy", HERE))[0] is False
        assert (await namesake.join("computer", "box", HERE))[0] is False
        for verb in ("update_config", "update_tool_list", "update_desktop"):
            assert await box.call(f"server:{verb}", {"computer": "box"}) is None
        assert await anna.call("server:tool_call_cancel", {"agent": "anna", "req_id": "r"}) is None
        await eventually(lambda: len(anna.events) == 4 and len(box.events) == 1)
        for refused, me in ((spy, "spy"), (namesake, "box")):
            assert refused.events == []
            listed = await refused.call("server:list_room", {"agent": me, "req_id": "r", "office_id": HERE})
            assert listed["code"] == 4103
        assert (await spy.call("client:get_tools", {"agent": "spy", "req_id": "r", "computer": "box"}))["code"] == 4103
        assert (await namesake.call("server:update_config", {"computer": "box"}))["code"] == 4103
        assert await names(anna, "anna", HERE) == ["anna", "box"]


async def test_hundreds_of_joins_into_one_office_take_neither_seconds_nor_a_hundred_megabytes(nats_url: str) -> None:
    joins, process = scaled(ci=100, soak=500), psutil.Process()
    # servers and clients share this process, so all of them count; CPU, since others may use the machine, too
    async with gateway_world(nats_url, lease_s=60) as world:
        room = Room(world.url, joins)
        try:
            await room.connect()
            bytes_before, cpu_before = process.memory_info().rss, time.process_time()
            await room.join(at_once=True)  # all are in the list, and received the enters of all who came later
            assert time.process_time() - cpu_before < PUBLISHED_S * joins / 500
            assert process.memory_info().rss - bytes_before < PUBLISHED_BYTES * joins / 500
        finally:
            await room.close()
