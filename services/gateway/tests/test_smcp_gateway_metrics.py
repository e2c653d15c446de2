"""`/metrics` of a gateway, scraped over HTTP after real calls: the counts are those of what was called."""

import asyncio
from typing import Any

import aiohttp

from smcp_bus.bus import Incoming, Reply
from smcp_testing.gateway_world import Client, connected, gateway_world, reply
from smcp_testing.scraping import Samples, scraped
from smcp_testing.waiting import eventually

OFFICE = "office"


def counted(samples: Samples, event: str) -> dict[str, float]:
    """How many calls of an event there were, by outcome."""
    return {
        dict(labels)["outcome"]: value
        for (name, labels), value in samples.items()
        if name == "smcp_gateway_call_duration_seconds_count" and dict(labels)["event"] == event
    }


async def tool(verb: str, incoming: Incoming) -> Reply:
    """A Computer whose tools answer, say that they were too slow, or never end."""
    if b'"late"' in incoming.body:
        return reply({"content": [], "isError": True, "meta": {"a2c_timeout": True}})
    if b'"hang"' in incoming.body:
        await asyncio.Event().wait()
    # a tool may say so in its own words, without being cancelled
    return reply({"content": [{"type": "text", "text": '"a2c_cancelled":true'}], "isError": False})


async def call(agent: Client, number: int, tool_name: str = "t", computer: str = "box", timeout: int = 30) -> Any:
    request = {"agent": "anna", "req_id": f"r{number}", "computer": computer, "tool_name": tool_name, "params": {}}
    return await agent.call("client:tool_call", request | {"timeout": timeout})


async def test_calls_are_counted_by_event_and_outcome(nats_url: str) -> None:
    async with (
        gateway_world(nats_url) as world,
        connected(world.url) as anna,
        world.computer(OFFICE, "box", tool),
    ):
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        for number in range(3):
            assert (await call(anna, number))["isError"] is False
        assert (await call(anna, 3, "late"))["meta"] == {"a2c_timeout": True}
        assert (await call(anna, 4, computer="nobody"))["code"] == 404
        assert (await call(anna, 5, "hang", timeout=1))["code"] == 408
        assert (await anna.call("client:tool_call", {"agent": "anna"}))["code"] == 400
        waiting = asyncio.create_task(call(anna, 6, "hang"))
        await eventually(lambda: len(world.gateways[0].calls) == 1)
        during = await scraped(world.health_url)
        assert during["smcp_gateway_calls_in_flight", ()] == 1
        assert during["smcp_gateway_sockets", ()] == 1
        assert during["smcp_gateway_members", (("role", "agent"),)] == 1
        assert await anna.call("server:tool_call_cancel", {"agent": "anna", "req_id": "r6"}) is None
        assert (await asyncio.wait_for(waiting, 30))["meta"] == {"a2c_cancelled": True}

        after = await scraped(world.health_url)
        assert counted(after, "client:tool_call") == {
            "ok": 3, "timeout": 1, "404": 1, "408": 1, "400": 1, "cancelled": 1,
        }  # fmt: skip
        assert counted(after, "server:join_office") == {"ok": 1}
        labels = (("event", "client:tool_call"), ("outcome", "408"))
        assert 0.9 < after["smcp_gateway_call_duration_seconds_sum", labels] < 10
        assert after["smcp_gateway_call_duration_seconds_bucket", (labels[0], ("le", "0.5"), labels[1])] == 0
        assert after["smcp_gateway_call_duration_seconds_bucket", (labels[0], ("le", "+Inf"), labels[1])] == 1
        assert after["smcp_gateway_calls_in_flight", ()] == 0
        assert after["smcp_lease_held", ()] == 1
        assert after["smcp_lease_renewals_total", ()] >= 1
        assert after["smcp_gateway_computer_requests_total", (("owner", "bus"),)] >= 6
        assert after["smcp_gateway_computer_requests_total", (("owner", "here"),)] == 0
        for name, label in (("moves", ("way", "away")), ("connections_refused", ("why", "token"))):
            assert after[f"smcp_gateway_{name}_total", (label,)] == 0


async def test_names_from_clients_do_not_become_labels(nats_url: str) -> None:
    async with gateway_world(nats_url) as world, connected(world.url) as anna:
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        for number in range(3):
            await anna.call(f"client:made_up_{number}", {"agent": "anna", "req_id": f"r{number}", "computer": "box"})
        samples = await scraped(world.health_url)
        events = {dict(labels)["event"] for _, labels in samples if "event" in dict(labels)}
        assert events <= {"server:join_office", "other"}
        assert sum(counted(samples, "other").values()) == 3


async def test_gauges_return_to_zero_when_the_clients_disconnect(nats_url: str) -> None:
    async with gateway_world(nats_url) as world:
        async with connected(world.url) as anna:
            assert await anna.join("agent", "anna", OFFICE) == [True, None]
            assert (await scraped(world.health_url))["smcp_gateway_sockets", ()] == 1

        async def nothing_is_left() -> bool:
            samples = await scraped(world.health_url)
            gauges = ("sockets", "offices", "calls_in_flight", "events_in_flight", "computer_calls")
            assert [samples[f"smcp_gateway_{name}", ()] for name in gauges] == [0] * len(gauges)
            assert samples["smcp_gateway_members", (("role", "agent"),)] == 0
            return True

        await eventually(nothing_is_left)


async def test_metrics_allow_only_get_on_their_own_path(nats_url: str) -> None:
    async with gateway_world(nats_url) as world, aiohttp.ClientSession() as http:
        async with http.post(f"{world.health_url}/metrics") as posted:
            assert posted.status == 405
        async with http.get(f"{world.health_url}/metrics/more") as other:
            assert other.status == 404


async def test_metrics_and_counts_are_on_the_health_port_only(nats_url: str) -> None:
    async with gateway_world(nats_url, settings={"stats": True}) as world, aiohttp.ClientSession() as http:

        async def ready() -> bool:
            async with http.get(f"{world.url}/readyz") as answer:
                return answer.status == 200

        await eventually(ready)
        for path, for_clients in (("metrics", 404), ("statz", 404), ("livez", 200), ("readyz", 200)):
            async with http.get(f"{world.url}/{path}") as answer, http.get(f"{world.health_url}/{path}") as other:
                assert (answer.status, other.status) == (for_clients, 200), path
