"""Calls that time out leave nothing behind: not at the gateway, not on the bus, not at the Computer, of any kind.

A native Computer with a real tool that is too slow, one on Socket.IO that acknowledges nothing, and an owner that does
not answer at all, so that it is the gateway that gives up.
"""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from smcp_bus.bus import Incoming, Reply
from smcp_computer.computer import Computer
from smcp_testing.computer_world import native_computer
from smcp_testing.gateway_world import NAMESPACE, connected, gateway_world, reply
from smcp_testing.held_counts import FOR_SOME_TIME, held, held_at_rest, kept
from smcp_testing.mcp_servers import configs
from smcp_testing.profiles import scaled
from smcp_testing.waiting import eventually

OFFICE = "office"
CALLS = scaled(ci=150, soak=1002)
KINDS = ("slow", "silent", "deaf")
QUIET_S = 30.0


def without_tasks(counts: dict[str, int]) -> dict[str, int]:
    """Those of the clients in this process come and go, too."""
    return {name: count for name, count in counts.items() if not name.startswith("task ")}


def of_calls(computer: Computer) -> dict[str, int]:
    """What a native Computer holds, but for what it keeps for some time."""
    return {name: count for name, count in computer.calls.held().items() if name not in FOR_SOME_TIME}


@pytest.mark.rule("answers.calls.timeout.clean")
async def test_a_thousand_timed_out_calls_leave_nothing_behind(nats_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    hanging = asyncio.Event()

    async def hang(verb: str, _: Incoming) -> Reply:
        if verb == "tool_call":
            await hanging.wait()
        return reply({"unknown": []})

    async with (
        gateway_world(nats_url, gateways=2, registries=2, lease_s=30.0) as world,
        native_computer(
            world, OFFICE, "slow", {"toolbox": configs.stdio(log=log)}, lease_s=30.0, keep_results_s=1.0
        ) as slow,
        world.computer(OFFICE, "deaf", hang) as deaf,
        connected(world.gateways[0].url) as anna,
        connected(world.gateways[1].url) as silent,
    ):
        assert await silent.join("computer", "silent", OFFICE) == [True, None]
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        never = asyncio.Event()
        cancelled: list[str] = []

        async def unanswered(event: str, payload: Any) -> None:
            if event == "client:tool_call":
                await never.wait()
            elif event == "notify:tool_call_cancel":
                cancelled.append(payload["req_id"])

        silent.sio.on("*", unanswered, namespace=NAMESPACE)

        async def ask(number: int) -> str:
            kind = KINDS[number % len(KINDS)]
            payload = {"agent": "anna", "req_id": f"r{number}", "computer": kind, "tool_name": "sleep"}
            params = {"seconds": 600, "mark": f"m{number}"}
            answer = await anna.call("client:tool_call", payload | {"params": params, "timeout": 2}, timeout=60)
            return f"{kind} {answer['code']}" if "code" in answer else f"{kind} {sorted(answer['meta'])}"

        before = without_tasks(await held_at_rest(world))
        outcomes, peak = Counter[str](), Counter[str]()
        for start in range(0, CALLS, 150):
            asked = asyncio.gather(*map(ask, range(start, min(start + 150, CALLS))))
            await eventually(lambda: len(world.gateways[0].calls) > 0 and slow.owner.running > 0)
            peak |= Counter(held(world)) | Counter(of_calls(slow))
            outcomes.update(await asked)
        assert {"calls", "bus: pending", "tool_tasks"} <= set(peak), "what is counted was there"
        # a machine that is busy lets the gateway be the first to give up
        assert set(outcomes) <= {"slow ['a2c_timeout']", "silent ['a2c_timeout']", *(f"{kind} 408" for kind in KINDS)}
        assert outcomes["deaf 408"] == CALLS // len(KINDS)
        hanging.set()
        never.set()

        def nothing_is_left() -> bool:
            assert without_tasks(held(world)) == before
            assert set(of_calls(slow).values()) == {0}
            assert deaf.bus.stats()["running"] == deaf.bus.stats()["pending"] == 0
            assert not [task for task in asyncio.all_tasks() if task.get_name() == "tool_call"]
            return True

        await eventually(nothing_is_left, timeout=QUIET_S)
        await eventually(lambda: slow.owner.held()["kept_results"] == 0, timeout=QUIET_S)
        # So that none runs twice: a key where it ran, a cancel with each who might still be asked for it. These go by
        # themselves when their time is over (tests of `Owner`).
        at_slow, at_silent = slow.owner.held(), kept(world)
        assert 0 < at_slow["ended_calls"] <= CALLS // len(KINDS)
        assert at_silent["kept_results"] <= at_silent["ended_calls"] <= CALLS // len(KINDS)
        assert at_slow["kept_cancels"] <= CALLS  # of its own calls, too, where the gateway was the first to give up
        assert at_silent["kept_cancels"] <= CALLS
        ran = {line.split()[1] for line in log.read_text().splitlines() if line.startswith("sleep ")}
        stopped = {line.split()[1] for line in log.read_text().splitlines() if line.startswith("cancelled ")}
        assert ran, "the tool did run"
        assert ran == stopped, "and each run was stopped"
        assert len(cancelled) >= outcomes["silent ['a2c_timeout']"], "the Computer on Socket.IO got the cancel"
