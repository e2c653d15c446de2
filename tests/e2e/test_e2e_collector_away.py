"""A collector that goes away and comes back: calls go on, little memory is used, and lost spans are counted."""

from collections import Counter
from pathlib import Path

import psutil
import pytest

from smcp_testing.profiles import scaled
from smcp_testing.waiting import eventually
from tests.e2e.actors.bare import member
from tests.e2e.scenarios.metrics import scraped
from tests.e2e.traces.recorder import recording
from tests.e2e.worlds.kinds import CONTAINERS, PROCESSES, kinds
from tests.e2e.worlds.layout import ALPHA
from tests.e2e.worlds.world import LAB, Part

QUEUE = 100
"""Spans that may wait at each process."""
SPANS = 2
"""Of a gateway, for each request."""
JOIN_SPANS = 3
"""Of the gateway, for the Agent's join: it asks for the list of the room, too."""
LARGEST_GROWTH = 32 * 1024 * 1024
"""Bytes, of a gateway that lost ten times as many spans as may wait, or thousands in `make soak`."""


@pytest.mark.parametrize("kind", kinds(PROCESSES, CONTAINERS))
async def test_calls_go_on_while_the_collector_is_away_and_each_lost_span_is_counted(kind: str, tmp_path: Path) -> None:
    environment = {"OTEL_EXPORTER_OTLP_TIMEOUT": "3", "OTEL_BSP_MAX_QUEUE_SIZE": str(QUEUE)}
    opened = recording(kind, tmp_path, environment, gateways=1, registries=1, places=(ALPHA,))
    async with opened as recorder, member(recorder.world.url(), "agent", LAB, "caller") as agent:
        collector, gateway, requests = recorder.collector.part, recorder.world.gateway(0).part, 0

        async def call(count: int) -> None:
            nonlocal requests
            for _ in range(count):
                requests += 1
                assert not (await agent.call("alpha", "echo", {"text": "x"})).get("isError")

        async def all_counted() -> dict[str, float]:
            found = await outcomes(gateway)
            assert sum(found.values()) == JOIN_SPANS + SPANS * requests
            return found

        async def received() -> Counter[str]:
            return Counter(span["resource"]["service.instance.id"] for span in await recorder.spans())

        async def all_arrived() -> bool:
            arrived = await received()
            exported = {part.name: await outcomes(part) for part in recorder.world.parts if part.name != "nats"}
            assert exported == {name: {"exported": count, "failed": 0, "dropped": 0} for name, count in arrived.items()}
            return True

        await call(50)
        assert (await eventually(all_counted))["exported"] == JOIN_SPANS + SPANS * requests
        await eventually(all_arrived)
        before = psutil.Process(gateway.pid).memory_info().rss
        await collector.stop()
        await call(scaled(ci=10 * QUEUE // SPANS, soak=1_000 * QUEUE))
        assert psutil.Process(gateway.pid).memory_info().rss - before < LARGEST_GROWTH
        await collector.start()

        async def is_exported_again() -> bool:
            await call(1)
            return (await outcomes(gateway))["exported"] > JOIN_SPANS + SPANS * 50

        await eventually(is_exported_again)
        found = await eventually(all_counted)
        # refused where nobody listens, or too many to wait for it: that depends on how fast the calls came
        assert found["failed"] + found["dropped"] > 0
        exported = found["exported"] - (JOIN_SPANS + SPANS * 50)
        # what the collector took, but acknowledged too late, counts as failed
        assert exported <= (await received())[gateway.name] <= exported + found["failed"]


async def outcomes(part: Part) -> dict[str, float]:
    name = "smcp_telemetry_spans_total"
    return {labels[0][1]: value for (of, labels), value in (await scraped(part)).items() if of == name}
