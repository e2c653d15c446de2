"""Calls among faults: each that is sampled or fails has one whole trace, and each has one record in the audit trail."""

import asyncio
import re
from collections import Counter
from itertools import cycle, islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from smcp_testing.profiles import scaled
from smcp_testing.waiting import eventually
from tests.e2e.actors.bare import BareMember, FlatError, member
from tests.e2e.actors.operator_commands import Record, records, smcp
from tests.e2e.traces.recorder import recording
from tests.e2e.worlds.kinds import CONTAINERS, PROCESSES, kinds
from tests.e2e.worlds.world import ELSEWHERE, LAB

FAILED_ONLY = {
    "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
    "OTEL_TRACES_SAMPLER_ARG": "0",
    "SMCP_TRACE_SLOW_S": "120",
}
AT_ONCE = 15
CALLS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    *[("alpha", "echo", {"text": "x"})] * 3,
    ("alpha", "fail", {}),
    ("alpha", "no_such_tool", {}),
    ("nobody", "echo", {"text": "x"}),
    ("alpha", "add", {"a": "no number", "b": 1}),
    ("alpha", "sleep", {"seconds": 60}),
)
"""Computer, tool, parameters."""
Span = dict[str, Any]


@pytest.mark.alone
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", kinds(PROCESSES, CONTAINERS))
async def test_each_call_among_faults_has_one_record_and_a_whole_trace_if_it_is_sampled_or_fails(
    kind: str, tmp_path: Path
) -> None:
    each = scaled(ci=500, soak=5_000)
    opened = recording(kind, tmp_path, {"SMCP_AUDIT": "on"}, of_their_own={"gateway-2": FAILED_ONLY})
    async with opened as recorder:
        world = recorder.world
        with world.telling():
            async with (
                member(world.url(0), "agent", LAB, "caller") as sampled,
                member(world.url(1), "agent", ELSEWHERE, "caller") as unsampled,
            ):
                half = asyncio.Event()
                running = asyncio.gather(run(sampled, each, half), run(unsampled, each, half))
                await half.wait()
                await sampled.call("alpha", "die")
                await world.nats.kill()
                await world.nats.start()
                all_of_one, all_of_other = await running
            failed = {req_id for req_id, is_failed in {**all_of_one, **all_of_other}.items() if is_failed}
            wanted = all_of_one.keys() | failed

            async def whole() -> bool:
                found: dict[str, list[Span]] = {}
                for span in await recorder.spans(*all_of_one, *all_of_other):
                    found.setdefault(span["trace_id"], []).append(span)
                assert found.keys() == wanted
                broken = {req_id: spans for req_id, spans in found.items() if not is_whole(spans)}
                assert not broken, next(iter(broken.values()))
                return True

            await eventually(whole, timeout=60)

            asked = all_of_one.keys() | all_of_other.keys()

            async def recorded() -> list[Record]:
                kinds = ("call", "refusal")
                found = [each for kind in kinds for each in await records(world, "--kind", kind)]
                counted = Counter(record["req_id"] for record in found)
                assert {req_id: counted[req_id] for req_id in asked if counted[req_id] > 1} == {}
                assert len(asked - counted.keys()) == sum(map(refusals_not_recorded, found))
                return [record for record in found if record["req_id"] in asked]

            found = await eventually(recorded, timeout=60)
            succeeded = {record["req_id"] for record in found if record["outcome"] == "ok"}
            assert asked - succeeded == failed
            assert (await smcp(world, "audit", "verify"))[0] == 0


async def run(agent: BareMember, count: int, half: asyncio.Event) -> dict[str, bool]:
    """Whether each of the calls failed, by `req_id`."""
    waiting, ended = list(islice(cycle(CALLS), count)), dict[str, bool]()

    async def one_after_the_other() -> None:
        while waiting:
            computer, tool, params = waiting.pop()
            req_id, seconds = uuid4().hex, 1 if tool == "sleep" else 30
            try:
                answer = await agent.call(computer, tool, params, timeout=seconds, req_id=req_id)
                ended[req_id] = bool(answer.get("isError"))
            except FlatError:
                ended[req_id] = True
            if len(waiting) < count // 2:
                half.set()

    await asyncio.gather(*(one_after_the_other() for _ in range(AT_ONCE)))
    return ended


def refusals_not_recorded(record: Record) -> int:
    """How many it counts: of one sender 250 at once are recorded, and then 10 a minute (ADR 0041)."""
    said = re.match(r"(\d+) refusals before it are not recorded", record.get("why") or "")
    return int(said[1]) if said else 0


def is_whole(spans: list[Span]) -> bool:
    """One span without a parent, the gateway's, and the parents of all others are there."""
    ids = {span["span_id"] for span in spans}
    roots = [span["name"] for span in spans if span["parent_span_id"] is None]
    return roots == ["client:tool_call"] and all(span["parent_span_id"] in {*ids, None} for span in spans)
