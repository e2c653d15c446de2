"""A collector that goes away and comes back: calls go on, little memory is used, and lost spans are counted."""

from pathlib import Path

import psutil

from smcp_testing.otlp_process import otlp_receiver
from smcp_testing.profiles import scaled
from smcp_testing.tcp_proxy import open_line
from smcp_testing.waiting import eventually
from tests.e2e.actors.bare import member
from tests.e2e.scenarios.metrics import scraped
from tests.e2e.worlds.layout import ALPHA
from tests.e2e.worlds.processes import open_processes
from tests.e2e.worlds.world import LAB, Part

QUEUE = 100
"""Spans that may wait at each process."""
SPANS = 2
"""Of a gateway, for each request."""
JOIN_SPANS = 3
"""Of the gateway, for the Agent's join: it asks for the list of the room, too."""
LARGEST_GROWTH = 32 * 1024 * 1024
"""Bytes, of a gateway that lost ten times as many spans as may wait, or thousands in `make soak`."""


async def test_calls_go_on_while_the_collector_is_away_and_each_lost_span_is_counted(tmp_path: Path) -> None:
    async with otlp_receiver() as receiver, open_line(port_of(receiver.url)) as line:
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": line.url,
            "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_BSP_MAX_QUEUE_SIZE": str(QUEUE),
        }
        opened = open_processes(tmp_path, gateways=1, registries=1, places=(ALPHA,), environment=environment)
        async with opened as world, member(world.url(), "agent", LAB, "caller") as agent:
            gateway, requests = world.gateway(0).part, 0

            async def call(count: int) -> None:
                nonlocal requests
                for _ in range(count):
                    requests += 1
                    assert not (await agent.call("alpha", "echo", {"text": "x"})).get("isError")

            async def all_counted() -> dict[str, float]:
                found = await outcomes(gateway)
                assert sum(found.values()) == JOIN_SPANS + SPANS * requests
                return found

            await call(50)
            assert (await eventually(all_counted))["exported"] == JOIN_SPANS + SPANS * requests
            before = psutil.Process(gateway.pid).memory_info().rss
            there, line.port = line.port, 1  # nobody listens there
            line.cut()
            await call(scaled(ci=10 * QUEUE // SPANS, soak=1_000 * QUEUE))
            assert psutil.Process(gateway.pid).memory_info().rss - before < LARGEST_GROWTH
            line.port = there

            async def is_exported_again() -> bool:
                await call(1)
                return (await outcomes(gateway))["exported"] > JOIN_SPANS + SPANS * 50

            await eventually(is_exported_again)
            found = await eventually(all_counted)
            # refused by nobody's port, or too many to wait for it: that depends on how fast the calls came
            assert found.get("failed", 0) + found.get("dropped", 0) > 0
            received = [span for span in await receiver.spans() if span["service"] == "smcp-gateway"]
            # what the collector took, but acknowledged too late, counts as failed
            assert found["exported"] <= len(received) <= found["exported"] + found.get("failed", 0)


async def outcomes(part: Part) -> dict[str, float]:
    name = "smcp_telemetry_spans_total"
    return {labels[0][1]: value for (of, labels), value in (await scraped(part)).items() if of == name}


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])
