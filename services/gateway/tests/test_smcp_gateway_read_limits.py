"""Requests for resources are limited for an office; what is above it is not relayed."""

import asyncio
from typing import Any

import pytest

from smcp_bus.bus import Incoming, Reply
from smcp_proto.catalog import CATALOG
from smcp_testing.event_payloads import GOOD, OFFICE
from smcp_testing.gateway_world import Client, connected, gateway_world, reply
from smcp_testing.waiting import eventually

METERED = sorted(event for event, row in CATALOG.items() if row.metered)
SLOW = {"quota_reads_per_s": 0.01, "quota_burst_s": 300.0}
"""Nothing comes in while a test runs."""


class Computer:
    """Counts what it is asked, but for the gateway's probes: there is one where an answer takes its time."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def serve(self, verb: str, _: Incoming) -> Reply:
        if verb == "pending":
            return reply({"unknown": []})
        self.asked.append(verb)
        return reply({"verb": verb})


async def read(agent: Client, event: str = "client:resources/read") -> Any:
    return await agent.call(event, GOOD[event])


@pytest.mark.rule("computer.resources.{server.limits.session,errors.rate.reads}", "answers.resources.limits.answer")
@pytest.mark.parametrize("event", METERED)
async def test_requests_above_the_limit_are_429_with_retry_after_and_not_relayed(nats_url: str, event: str) -> None:
    box = Computer()
    async with (
        gateway_world(nats_url, settings=SLOW) as world,
        connected(world.url) as anna,
        world.computer(OFFICE, "box", box.serve),
    ):
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        verb = CATALOG[event].verb
        for _ in range(3):
            assert (await read(anna, event))["verb"] == verb
        for _ in range(2):
            refused = await read(anna, event)
            assert refused["code"] == 429
            assert refused["details"].keys() == {"smcp_code", "retry_after_s", "quota", "limit"}
            assert refused["details"]["smcp_code"] == "SMCP_RATE_LIMITED"
            assert 0 < refused["details"]["retry_after_s"] <= 100
        assert box.asked == [verb] * 3
        for free in ("client:get_tools", "client:resources/unsubscribe", "client:tool_call"):
            assert (await read(anna, free))["verb"] == CATALOG[free].verb


@pytest.mark.rule("answers.resources.limits.kinds")
async def test_all_metered_requests_count_together_and_refused_ones_do_not_count(nats_url: str) -> None:
    box = Computer()
    async with (
        gateway_world(nats_url, settings=SLOW) as world,
        connected(world.url) as anna,
        world.computer(OFFICE, "box", box.serve),
    ):
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        good = GOOD["client:resources/read"]
        for _ in range(5):
            assert (await anna.call("client:resources/read", good | {"payload": {}}))["code"] == 400
            assert (await anna.call("client:resources/read", good | {"roomId": "other"}))["code"] == 403
        for event in ("client:resources/read", "client:get_desktop"):
            assert "verb" in await read(anna, event)
        unknown = GOOD["client:get_tools"]
        assert "verb" in await anna.call("client:get_resources", unknown)
        assert (await anna.call("client:get_resources", unknown))["code"] == 429
        assert (await read(anna, "client:completion/complete"))["code"] == 429
        assert len(box.asked) == 3


@pytest.mark.rule("answers.resources.limits.answer")
async def test_a_request_after_retry_after_is_served(nats_url: str) -> None:
    box = Computer()
    async with (
        gateway_world(nats_url, settings={"quota_reads_per_s": 5.0, "quota_burst_s": 0.2}) as world,
        connected(world.url) as anna,
        world.computer(OFFICE, "box", box.serve),
    ):
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        assert "verb" in await read(anna)
        refused = await asyncio.gather(*(read(anna) for _ in range(3)))
        waits = [answer["details"]["retry_after_s"] for answer in refused if "details" in answer]
        assert waits
        assert max(waits) <= 0.2
        loop = asyncio.get_running_loop()
        until = loop.time() + max(waits)
        await eventually(lambda: loop.time() >= until)
        assert "verb" in await read(anna)


@pytest.mark.rule("computer.resources.server.limits.room", "answers.resources.limits.end")
async def test_each_office_has_its_own_limit(nats_url: str) -> None:
    box = Computer()
    async with (
        gateway_world(nats_url, settings=SLOW) as world,
        world.computer(OFFICE, "box", box.serve),
        world.computer("other", "box", box.serve),
        connected(world.url) as otto,
    ):
        codes = []
        for name in ("anna", "anna", "ben"):
            async with connected(world.url) as agent:
                assert await agent.join("agent", name, OFFICE) == [True, None]
                codes.append([(await read(agent)).get("code") for _ in range(2)])
                assert await agent.call("server:leave_office", {"office_id": OFFICE}) == [True, None]
        assert codes == [[None, None], [None, 429], [429, 429]]
        assert await otto.join("agent", "anna", "other") == [True, None]
        assert "verb" in await otto.call("client:resources/read", GOOD["client:resources/read"] | {"roomId": "other"})
        assert len(box.asked) == 4


async def test_without_a_limit_any_number_is_relayed(nats_url: str) -> None:
    box = Computer()
    async with (
        gateway_world(nats_url, settings={"quota_reads_per_s": 0.0, "quota_burst_s": 0.2}) as world,
        world.computer(OFFICE, "box", box.serve),
        connected(world.url) as anna,
    ):
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        assert ["verb" in await read(anna) for _ in range(3)] == [True] * 3
