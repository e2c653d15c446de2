"""Each call runs once, has one answer, and can be cancelled."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from smcp_bus.call_records import Keeping
from smcp_computer.in_flight import CallKey, InFlight
from smcp_proto.errors import Malformed, NotFound, Unavailable
from smcp_testing.waiting import eventually

KEY: CallKey = ("lab", "alice", "r1")
RESULT = {"content": [], "isError": False}


class Tool:
    """Runs until it is told to go on; counts."""

    def __init__(self, result: Mapping[str, Any] = RESULT) -> None:
        self.runs = 0
        self.cancelled = asyncio.Event()
        self.started = asyncio.Event()
        self.go_on = asyncio.Event()
        self._result = result

    async def run(self) -> Mapping[str, Any]:
        self.runs += 1
        self.started.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return self._result

    async def at_once(self) -> Mapping[str, Any]:
        self.go_on.set()
        return await self.run()


async def call(in_flight: InFlight, tool: Tool, key: CallKey = KEY, limit: float = 5.0, **params: Any) -> Any:
    return json.loads(await in_flight.call(key, "echo", params, limit=limit, run=tool.run))


async def begun(in_flight: InFlight, tool: Tool, limit: float = 5.0) -> "asyncio.Task[Any]":
    task = asyncio.create_task(call(in_flight, tool, limit=limit))
    await asyncio.wait_for(tool.started.wait(), 5)
    return task


@pytest.mark.rule("answers.calls.dedup.once")
async def test_the_same_call_joins_the_one_that_runs() -> None:
    async with InFlight() as in_flight:
        tool = Tool()
        first = await begun(in_flight, tool)
        second = asyncio.create_task(call(in_flight, tool))
        assert in_flight.knows(KEY)
        assert in_flight.running == 1
        tool.go_on.set()
        assert await first == await second == RESULT
        assert tool.runs == 1
        assert in_flight.running == 0


@pytest.mark.rule("answers.calls.dedup.once")
async def test_the_same_call_again_gets_the_kept_result() -> None:
    async with InFlight() as in_flight:
        tool = Tool()
        tool.go_on.set()
        assert await call(in_flight, tool, a=1, b=2) == await call(in_flight, tool, b=2, a=1) == RESULT
        assert tool.runs == 1
        assert in_flight.knows(KEY)


@pytest.mark.rule("answers.calls.dedup.other")
@pytest.mark.parametrize("ended", [True, False])
async def test_another_call_under_the_same_key_is_refused(ended: bool) -> None:
    async with InFlight() as in_flight:
        tool = Tool()
        first = await begun(in_flight, tool)
        if ended:
            tool.go_on.set()
            await first
        with pytest.raises(Malformed) as raised:
            await call(in_flight, tool, other=True)
        assert raised.value.details == {"field": "req_id"}
        tool.go_on.set()
        await first
        assert tool.runs == 1


@pytest.mark.rule("answers.calls.dedup.key")
async def test_offices_and_agents_do_not_share_keys() -> None:
    async with InFlight() as in_flight:
        tool = Tool()
        tool.go_on.set()
        for key in [("lab", "alice", "r1"), ("lab", "bob", "r1"), ("other", "alice", "r1")]:
            await call(in_flight, tool, key)
        assert tool.runs == 3


@pytest.mark.rule("answers.calls.timeout.meta")
async def test_a_call_that_takes_too_long_is_answered_and_cancelled() -> None:
    async with InFlight() as in_flight:
        tool = Tool()
        result = await (await begun(in_flight, tool, limit=0.05))
        assert result["isError"]
        assert result["meta"] == {"a2c_timeout": True}
        await asyncio.wait_for(tool.cancelled.wait(), 5)


@pytest.mark.rule("answers.calls.cancel.meta")
async def test_a_cancel_answers_at_once_and_stops_the_tool() -> None:
    async with InFlight() as in_flight:
        tool = Tool()
        running = await begun(in_flight, tool)
        assert in_flight.cancel(KEY)
        result = await running
        assert result["meta"] == {"a2c_cancelled": True}
        await asyncio.wait_for(tool.cancelled.wait(), 5)
        assert not in_flight.cancel(KEY)
        assert (await call(in_flight, tool))["meta"] == {"a2c_cancelled": True}
        assert tool.runs == 1


@pytest.mark.rule("answers.calls.cancel.early")
async def test_a_call_that_comes_after_its_cancel_is_not_run() -> None:
    async with InFlight() as in_flight:
        assert not in_flight.cancel(KEY)
        assert not in_flight.knows(KEY)
        tool = Tool()
        assert (await call(in_flight, tool))["meta"] == {"a2c_cancelled": True}
        assert tool.runs == 0


@pytest.mark.rule("answers.calls.cancel.late", "answers.calls.cancel.once")
async def test_a_cancel_after_the_result_changes_nothing() -> None:
    async with InFlight() as in_flight:
        tool = Tool()
        tool.go_on.set()
        await call(in_flight, tool)
        assert not in_flight.cancel(KEY)
        assert await call(in_flight, tool) == RESULT


async def test_who_stops_waiting_does_not_stop_the_call() -> None:
    async with InFlight() as in_flight:
        tool = Tool()
        gone = await begun(in_flight, tool)
        gone.cancel()
        await asyncio.wait([gone])
        tool.go_on.set()
        assert await call(in_flight, tool) == RESULT
        assert tool.runs == 1


async def test_what_the_tool_raises_reaches_who_waits() -> None:
    async def fails() -> Mapping[str, Any]:
        raise NotFound("no")

    async with InFlight() as in_flight:
        with pytest.raises(NotFound):
            await in_flight.call(KEY, "echo", {}, limit=5, run=fails)
        repeated = json.loads(await in_flight.call(KEY, "echo", {}, limit=5, run=fails))
        assert repeated["meta"] == {"a2c_result_expired": True}


@pytest.mark.rule("computer.safety.leaks", "answers.calls.dedup.budget", "answers.calls.dedup.expired")
async def test_a_dropped_result_leaves_its_key_and_is_not_run_again() -> None:
    async with InFlight(Keeping(results_bytes=200)) as in_flight:
        tool = Tool({"content": [], "pad": "x" * 120})
        tool.go_on.set()
        first, second = ("lab", "alice", "r1"), ("lab", "alice", "r2")
        await call(in_flight, tool, first)
        await call(in_flight, tool, second)
        result = await call(in_flight, tool, first)
        assert result["isError"]
        assert result["meta"] == {"a2c_result_expired": True}
        assert "pad" in await call(in_flight, tool, second)
        assert tool.runs == 2


@pytest.mark.rule("answers.calls.dedup.budget")
async def test_results_are_dropped_after_their_time() -> None:
    async with InFlight(Keeping(results_s=0.0)) as in_flight:
        tool = Tool()
        tool.go_on.set()
        await call(in_flight, tool)
        assert (await call(in_flight, tool))["meta"] == {"a2c_result_expired": True}


async def test_leaving_answers_what_still_runs() -> None:
    async with InFlight() as in_flight:
        tool = Tool()
        running = await begun(in_flight, tool)
    assert (await running)["isError"]
    assert tool.cancelled.is_set()


async def test_numbers_that_the_fast_encoder_refuses_are_no_error() -> None:
    async with InFlight() as in_flight:
        tool = Tool({"content": [], "structuredContent": {"n": 2**70}})
        tool.go_on.set()
        assert (await call(in_flight, tool))["structuredContent"]["n"] == 2**70


async def repeated(in_flight: InFlight, tool: Tool, key: CallKey = KEY) -> Any:
    return json.loads(await in_flight.call(key, "echo", {}, limit=5, run=tool.run, repeat=True))


@pytest.mark.parametrize(
    ("repeat", "held_before_s", "runs"),
    [(400, -60.0, 1), (0, -60.0, 1), (400, 5.0, 0), (11_000, -60.0, 0), (True, -60.0, 0), (False, 5.0, 1)],
    ids=["seat held long enough", "just sent", "seat held too short", "too old", "age unknown", "no repeat"],
)
async def test_an_unknown_repeat_runs_only_where_it_would_be_known_if_it_had_run(
    repeat: bool | int, held_before_s: float, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smcp_bus.call_records.HELD_BEFORE_S", held_before_s)
    async with InFlight() as in_flight:
        in_flight.placed(True)
        tool = Tool()
        tool.go_on.set()
        asked = in_flight.call(KEY, "echo", {}, limit=5, run=tool.run, repeat=repeat)
        if runs:
            assert json.loads(await asked) == RESULT
            assert await repeated(in_flight, tool) == RESULT
        else:
            with pytest.raises(Unavailable) as refused:
                await asked
            assert refused.value.details == {"may_have_run": True, "unknown_repeat": True}
        assert tool.runs == runs


async def test_a_place_that_was_lost_and_is_had_again_counts_from_then(monkeypatch: pytest.MonkeyPatch) -> None:
    async with InFlight() as in_flight:
        tool = Tool()
        tool.go_on.set()
        monkeypatch.setattr("smcp_bus.call_records.HELD_BEFORE_S", -60.0)
        with pytest.raises(Unavailable):  # it has no place yet
            await in_flight.call(KEY, "echo", {}, limit=5, run=tool.run, repeat=0)
        in_flight.placed(True)
        since = in_flight._held_since
        in_flight.placed(False)  # confirmed
        assert since is not None
        assert in_flight._held_since == since
        loop = asyncio.get_running_loop()
        await eventually(lambda: loop.time() > since)
        in_flight.placed(True)
        assert in_flight._held_since > since


async def test_a_repeat_of_a_call_that_is_not_known_is_not_run() -> None:
    async with InFlight() as in_flight:
        tool = Tool()
        with pytest.raises(Unavailable) as caught:
            await repeated(in_flight, tool)
        assert caught.value.details == {"may_have_run": True, "unknown_repeat": True}
        assert tool.runs == 0
        assert in_flight.running == 0
        assert not in_flight.knows(KEY)


async def test_a_repeat_of_a_call_that_is_known_joins_it_or_gets_its_result() -> None:
    async with InFlight(Keeping(results_s=0.0)) as forgetful, InFlight() as in_flight:
        tool = Tool()
        first = await begun(in_flight, tool)
        second = asyncio.create_task(repeated(in_flight, tool))
        tool.go_on.set()
        assert await first == await second == await repeated(in_flight, tool) == RESULT
        await call(forgetful, tool)
        assert (await repeated(forgetful, tool))["meta"] == {"a2c_result_expired": True}
        assert tool.runs == 2
        in_flight.cancel(("lab", "alice", "r2"))
        assert (await repeated(in_flight, tool, ("lab", "alice", "r2")))["meta"] == {"a2c_cancelled": True}


async def test_a_call_counts_as_answered_a_little_after_it_ended_and_never_where_it_did_not_run() -> None:
    async with InFlight() as in_flight:
        in_flight.cancel(("lab", "alice", "r2"))
        tool = Tool()
        running = await begun(in_flight, tool)
        assert not in_flight.answered(KEY)
        tool.go_on.set()
        await running
        assert in_flight.knows(KEY)
        assert not in_flight.answered(KEY)
        await eventually(lambda: in_flight.answered(KEY))
        assert not in_flight.answered(("lab", "alice", "r2"))


async def test_waiting_for_idle() -> None:
    async with InFlight() as in_flight:
        await asyncio.wait_for(in_flight.wait_idle(), 1)
        tool = Tool()
        running = await begun(in_flight, tool)
        idle = asyncio.create_task(in_flight.wait_idle())
        tool.go_on.set()
        await running
        await asyncio.wait_for(idle, 5)


async def test_a_result_goes_when_its_time_is_over_also_where_no_call_comes_any_more() -> None:
    async with InFlight(Keeping(results_s=0.05)) as in_flight:
        tool = Tool()
        tool.go_on.set()
        await asyncio.gather(*(call(in_flight, tool, key=("lab", "alice", f"r{number}")) for number in range(3)))
        assert in_flight.kept == 3
        await eventually(lambda: in_flight.kept == 0)
        assert in_flight.knows(("lab", "alice", "r0")), "the key stays"


@pytest.mark.rule("answers.calls.timeout.clean")
async def test_keys_and_cancels_go_when_their_time_is_over_also_where_no_call_comes_any_more() -> None:
    async with InFlight(Keeping(results_s=0.5, keys_s=0.6, tombstones_s=0.5)) as in_flight:
        tool = Tool()
        tool.go_on.set()
        await asyncio.gather(*(call(in_flight, tool, key=("lab", "alice", f"r{number}")) for number in range(3)))
        in_flight.cancel(("lab", "alice", "of another Computer"))
        held = in_flight.held()
        assert (held["ended_calls"], held["kept_results"], held["kept_cancels"]) == (3, 3, 1)
        await eventually(lambda: set(in_flight.held().values()) == {0})


async def test_a_cancel_does_not_wait_for_keys_that_go_later() -> None:
    async with InFlight(Keeping(results_s=600, keys_s=600, tombstones_s=0.05)) as in_flight:
        tool = Tool()
        tool.go_on.set()
        await call(in_flight, tool)
        in_flight.cancel(("lab", "alice", "of another Computer"))
        await eventually(lambda: in_flight.held()["kept_cancels"] == 0)
        assert in_flight.knows(KEY)
        assert in_flight.kept == 1
