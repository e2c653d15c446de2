"""Requests for resources are limited for a session and for its office; what is above it is not relayed."""

import asyncio
from typing import Any

import pytest

from smcp_bus.bus import Incoming, Reply
from smcp_gateway.sockets.session import Session
from smcp_proto.catalog import CATALOG
from smcp_testing.event_payloads import GOOD, OFFICE
from smcp_testing.gateway_world import Client, World, connected, gateway_world, reply
from smcp_testing.waiting import eventually

METERED = sorted(event for event, row in CATALOG.items() if row.metered)
SLOW = {"gateway_reads_per_s": 0.01, "gateway_reads_burst": 3}
"""Nothing comes in while a test runs."""
UNLIMITED = {"gateway_reads_per_s": 0.0}


class Computer:
    """Counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def serve(self, verb: str, _: Incoming) -> Reply:
        self.asked.append(verb)
        return reply({"verb": verb})


async def read(agent: Client, event: str = "client:resources/read") -> Any:
    return await agent.call(event, GOOD[event])


def session(world: World) -> Session:
    return next(session for session in world.gateways[0].sessions if session.role == "agent")


@pytest.mark.rule(
    "computer.resources.server.limits.session",
    "answers.resources.limits.answer",
    "computer.resources.errors.rate.reads",
)
@pytest.mark.parametrize("event", METERED)
async def test_what_is_above_the_limit_is_429_says_when_to_come_back_and_is_not_relayed(
    nats_url: str, event: str
) -> None:
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
            assert refused["details"].keys() == {"smcp_code", "retry_after_s", "limit_of"}
            assert refused["details"]["smcp_code"] == "SMCP_RATE_LIMITED"
            assert refused["details"]["limit_of"] == "session"
            assert 0 < refused["details"]["retry_after_s"] <= 100
        assert box.asked == [verb] * 3
        for free in ("client:get_tools", "client:resources/unsubscribe", "client:tool_call"):
            assert (await read(anna, free))["verb"] == CATALOG[free].verb


@pytest.mark.rule("answers.resources.limits.kinds")
async def test_all_of_them_count_together_and_what_is_malformed_or_forbidden_does_not(nats_url: str) -> None:
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
async def test_who_waits_as_long_as_it_is_told_is_served(nats_url: str) -> None:
    box = Computer()
    async with (
        gateway_world(nats_url, settings={"gateway_reads_per_s": 5.0, "gateway_reads_burst": 1}) as world,
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


@pytest.mark.rule("computer.resources.server.limits.room", "computer.resources.errors.rate.reads")
async def test_an_agent_of_another_name_has_its_own_share_and_the_office_one_for_all_of_them(nats_url: str) -> None:
    box = Computer()
    office = {"gateway_office_reads_per_s": 0.01, "gateway_office_reads_burst": 5}
    async with (
        gateway_world(nats_url, settings=SLOW | office) as world,
        connected(world.url) as mate,
        world.computer(OFFICE, "box", box.serve),
        world.computer("other", "box", box.serve),
        connected(world.url) as otto,
    ):
        assert await mate.join("computer", "mate", OFFICE) == [True, None]  # the office is held here all the time
        limited = []
        for name in ("anna", "ben"):
            async with connected(world.url) as agent:
                assert await agent.join("agent", name, OFFICE) == [True, None]
                answers = [await read(agent) for _ in range(4)]
                limited.append([answer.get("details", {}).get("limit_of") for answer in answers])
            await eventually(lambda: len(world.gateways[0].sessions) == 2)
        assert limited == [[None, None, None, "session"], [None, None, "office", "office"]]
        assert await otto.join("agent", "anna", "other") == [True, None]
        assert "verb" in await otto.call("client:resources/read", GOOD["client:resources/read"] | {"roomId": "other"})
        assert len(box.asked) == 6


async def test_a_refusal_by_one_limit_takes_nothing_from_the_other(nats_url: str) -> None:
    box = Computer()
    office = {"gateway_office_reads_per_s": 0.01, "gateway_office_reads_burst": 4}
    async with (
        gateway_world(nats_url, settings=SLOW | office) as world,
        connected(world.url) as mate,
        world.computer(OFFICE, "box", box.serve),
    ):
        assert await mate.join("computer", "mate", OFFICE) == [True, None]
        async with connected(world.url) as anna:
            assert await anna.join("agent", "anna", OFFICE) == [True, None]
            assert [(await read(anna)).get("code") for _ in range(20)] == [None] * 3 + [429] * 17
        await eventually(lambda: len(world.gateways[0].sessions) == 1)
        async with connected(world.url) as ben:
            assert await ben.join("agent", "ben", OFFICE) == [True, None]
            assert [(await read(ben)).get("code") for _ in range(2)] == [None, 429]


@pytest.mark.rule("answers.resources.limits.end")
async def test_what_was_counted_outlives_the_session_and_the_office(nats_url: str) -> None:
    box = Computer()
    office = {"gateway_office_reads_per_s": 0.01, "gateway_office_reads_burst": 3}
    async with (
        gateway_world(nats_url, settings=UNLIMITED | office) as world,
        world.computer(OFFICE, "box", box.serve),
        connected(world.url) as anna,
    ):
        answers: list[list[Any]] = []
        for _ in range(2):
            assert await anna.join("agent", "anna", OFFICE) == [True, None]
            assert session(world).reads is None  # without a limit nothing is kept
            answers.append([(await read(anna)).get("details", {}).get("limit_of") for _ in range(4)])
            assert await anna.call("server:leave_office", {"office_id": OFFICE}) == [True, None]
            await eventually(lambda: len(world.gateways[0].offices) == 0)
        assert answers == [[None, None, None, "office"], ["office"] * 4]
        assert len(box.asked) == 3


@pytest.mark.rule("answers.resources.limits.end")
async def test_an_agent_that_connects_anew_has_what_it_had(nats_url: str) -> None:
    box = Computer()
    async with gateway_world(nats_url, settings=SLOW) as world, world.computer(OFFICE, "box", box.serve):
        answers: list[list[Any]] = []
        for _ in range(2):
            async with connected(world.url) as anna:
                assert await anna.join("agent", "anna", OFFICE) == [True, None]
                answers.append([(await read(anna)).get("details", {}).get("limit_of") for _ in range(2)])
            await eventually(lambda: len(world.gateways[0].sessions) == 0 and len(world.gateways[0].offices) == 0)
        assert answers == [[None, None], [None, "session"]]
        assert len(box.asked) == 3


@pytest.mark.rule("answers.resources.limits.end")
async def test_a_session_keeps_what_it_used_when_it_leaves_and_joins_again(nats_url: str) -> None:
    box = Computer()
    async with (
        gateway_world(nats_url, settings=SLOW) as world,
        world.computer(OFFICE, "box", box.serve),
        connected(world.url) as anna,
    ):
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        for _ in range(3):
            assert "verb" in await read(anna)
        assert await anna.call("server:leave_office", {"office_id": OFFICE}) == [True, None]
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        assert (await read(anna))["code"] == 429
