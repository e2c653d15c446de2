"""Each call runs once, has one answer, and can be cancelled; what has ended is kept within bounds."""

import asyncio
import gc
import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_bus import owner as module
from smcp_bus.callers import Caller
from smcp_bus.dispatch import Answer, Call, Dispatcher
from smcp_bus.nats.bus import Bus
from smcp_bus.owner import Keeping, Owner
from smcp_bus.ownership import Ownership, RunningCall, Seat, Stop
from smcp_bus.registry_contract import PendingAnswer, PendingQuestion
from smcp_proto.catalog import CATALOG
from smcp_proto.errors import Malformed, NotFound, TooLarge, Unavailable
from smcp_proto.schemas.tools import ToolCallReq
from smcp_testing.waiting import eventually

RESULT = b'{"content": [], "isError": false}'


@contextmanager
def owning(keeping: Keeping | None = None) -> Iterator[Owner]:
    owner = Owner(keeping)
    yield owner
    owner.close()


class Tool:
    """Starts calls, and lets them run until the test ends them."""

    def __init__(self, owner: Owner, seat: Seat | None = None) -> None:
        self.owner = owner
        self.seat = seat or Seat("lab", "pc")
        self.calls: list[RunningCall] = []
        self.stopped: list[str] = []
        self.dispatcher = Dispatcher({"client:tool_call": self._dispatched})

    async def _dispatched(self, request: ToolCallReq, call: Call) -> Answer:
        return Answer(await self.owner.call(self.seat, request, 30.0, self.start))

    async def call(
        self, req_id: str = "r1", agent: str = "alice", limit: float = 30.0, subject: str = "", **given: Any
    ) -> Any:
        request = ToolCallReq.model_validate(
            {
                "agent": agent, "req_id": req_id, "computer": self.seat.computer, "tool_name": "echo",
                "params": given.pop("params", {}), "timeout": 30, **given,
            }
        )  # fmt: skip
        # what is left of the time is less by the smaller of 0.5 s and a tenth of the time-out
        return json.loads(await self.owner.call(self.seat, request, limit + 0.5, self.start, subject=subject))

    def start(self, call: RunningCall) -> Stop:
        self.calls.append(call)
        return self.stopped.append

    def end(self, outcome: bytes | Exception = RESULT) -> None:
        for call in self.calls:
            self.owner.settle(call, outcome)

    async def begun(self, *args: Any, **given: Any) -> "asyncio.Task[Any]":
        number = len(self.calls)
        task = asyncio.create_task(self.call(*args, **given))
        await eventually(lambda: len(self.calls) > number)
        return task

    async def done(self, req_id: str = "r1", outcome: bytes | Exception = RESULT, **given: Any) -> None:
        task = await self.begun(req_id, **given)
        self.end(outcome)
        await asyncio.wait([task])
        task.exception()

    def cancel(self, req_id: str = "r1", agent: str = "alice", subject: str = "") -> bool:
        return self.owner.cancel([self.seat], self.seat.office, agent, req_id, subject)

    def pending(self, *req_ids: str) -> PendingAnswer:
        question = PendingQuestion(calls=[("alice", req_id) for req_id in req_ids])
        return self.owner.pending(self.seat, question, self.dispatcher)


@pytest.mark.rule("answers.calls.dedup.once")
async def test_a_repeated_call_joins_the_running_one_or_gets_its_result() -> None:
    with owning() as owner:
        tool = Tool(owner)
        first = await tool.begun(params={"a": 1, "b": 2})
        second = asyncio.create_task(tool.call(params={"b": 2, "a": 1}))
        await asyncio.sleep(0)
        assert tool.owner.knows(tool.seat, "alice", "r1")
        assert owner.running == 1
        tool.end()
        assert await first == await second == await tool.call(params={"a": 1, "b": 2}) == json.loads(RESULT)
        assert len(tool.calls) == 1
        assert owner.running == 0
        assert tool.stopped == []
        assert owner.repeats == {"running": 1, "kept": 1, "expired": 0}


@pytest.mark.rule("answers.calls.dedup.other")
@pytest.mark.parametrize("ended", [True, False])
async def test_another_call_under_the_same_key_is_refused(ended: bool) -> None:
    with owning() as owner:
        tool = Tool(owner)
        first = await tool.begun()
        if ended:
            tool.end()
        for other in ({"params": {"other": True}}, {"tool_name": "sleep"}):
            with pytest.raises(Malformed) as raised:
                await tool.call(**other)
            assert raised.value.details == {"field": "req_id"}
        tool.end()
        await first
        assert len(tool.calls) == 1


@pytest.mark.rule("answers.calls.dedup.key")
async def test_offices_computers_and_agents_do_not_share_keys() -> None:
    with owning() as owner:
        for seat in (Seat("lab", "pc"), Seat("other", "pc"), Seat("lab", "box")):
            tool = Tool(owner, seat)
            for agent in ("alice", "bob"):
                await tool.done(agent=agent)
            assert len(tool.calls) == 2


@pytest.mark.rule("answers.calls.timeout.meta")
async def test_a_call_that_takes_too_long_is_answered_and_stopped() -> None:
    with owning() as owner:
        tool = Tool(owner)
        result = await tool.call(limit=0.05)
        assert result["isError"]
        assert result["meta"] == {"a2c_timeout": True}
        assert tool.stopped == ["timeout"]


class ToolOfAnotherProcess(Tool):
    """Ends the call at the gateway when its own time is over."""

    def __init__(self, owner: Owner, gateway: Tool) -> None:
        super().__init__(owner)
        self.gateway = gateway

    def start(self, call: RunningCall) -> Stop:
        return lambda why: self.gateway.end(b'{"own": 1}')


@pytest.mark.rule("answers.calls.timeout.meta")
async def test_a_computer_that_is_another_process_says_itself_why_a_call_took_too_long() -> None:
    with owning() as owner, owning() as of_computer:
        gateway = Tool(owner, Seat("lab", "pc", cancel_grace_s=0.9))
        computer = ToolOfAnotherProcess(of_computer, gateway)
        answer, own = await asyncio.gather(gateway.call(limit=0.05), computer.call(limit=0.05))
        assert answer == {"own": 1}
        assert own["meta"] == {"a2c_timeout": True}


@pytest.mark.rule("answers.calls.cancel.meta")
async def test_a_cancel_answers_at_once_and_stops_the_tool() -> None:
    with owning() as owner:
        tool = Tool(owner)
        running = await tool.begun()
        assert tool.cancel()
        assert (await running)["meta"] == {"a2c_cancelled": True}
        assert tool.stopped == ["cancelled"]
        assert not tool.cancel()
        assert (await tool.call())["meta"] == {"a2c_cancelled": True}
        assert len(tool.calls) == 1


@pytest.mark.rule("answers.calls.cancel.once")
@pytest.mark.parametrize("in_time", [True, False])
async def test_a_cancelled_call_may_bring_its_own_answer_within_its_grace(in_time: bool) -> None:
    with owning() as owner:
        tool = Tool(owner, Seat("lab", "pc", cancel_grace_s=30.0 if in_time else 0.05))
        running = await tool.begun()
        assert tool.cancel()
        assert tool.cancel()
        if in_time:
            tool.end(b'{"own": 1}')
        assert await running == ({"own": 1} if in_time else {**await running, "meta": {"a2c_cancelled": True}})
        assert tool.stopped == ([] if in_time else ["cancelled"])
        assert await tool.call() == await running


@pytest.mark.rule("answers.calls.cancel.early")
async def test_a_call_that_comes_after_its_cancel_is_not_run() -> None:
    with owning() as owner:
        tool = Tool(owner)
        assert not tool.cancel()
        assert not owner.knows(tool.seat, "alice", "r1")
        for repeat in (None, True):
            assert (await tool.call(a2c_repeat=repeat))["meta"] == {"a2c_cancelled": True}
        assert tool.calls == []


async def test_a_cancel_of_another_subject_of_the_same_name_ends_nothing_and_keeps_nothing_from_running() -> None:
    with owning() as owner:
        tool = Tool(owner)
        running = await tool.begun(subject="anna")
        assert not tool.cancel(subject="mallory")
        late = await tool.begun("r2", subject="anna")
        assert not tool.cancel("r3", subject="mallory")
        after = await tool.begun("r3", subject="anna")
        tool.end()
        assert await running == await late == await after == json.loads(RESULT)
        assert not tool.cancel("r4", subject="mallory")
        assert (await tool.call("r4", subject="mallory"))["meta"] == {"a2c_cancelled": True}


async def test_cancels_of_one_call_for_thousands_of_users_take_no_more_memory_than_those_for_a_few() -> None:
    with owning() as owner:
        tool = Tool(owner)
        tracemalloc.start()
        try:
            for number in range(5000):
                tool.cancel(subject=f"{number:032x}")
            assert tracemalloc.get_traced_memory()[0] < 20_000
        finally:
            tracemalloc.stop()
        assert owner.held()["kept_cancels"] == 1
        assert (await tool.call(subject=f"{4999:032x}"))["meta"] == {"a2c_cancelled": True}


@pytest.mark.rule("answers.calls.cancel.late", "answers.calls.cancel.once")
async def test_a_cancel_after_the_result_changes_nothing() -> None:
    with owning() as owner:
        tool = Tool(owner)
        await tool.done()
        assert not tool.cancel()
        assert await tool.call() == json.loads(RESULT)


async def test_a_cancelled_waiter_does_not_stop_the_call() -> None:
    with owning() as owner:
        tool = Tool(owner)
        gone = await tool.begun()
        gone.cancel()
        await asyncio.wait([gone])
        tool.end()
        assert await tool.call() == json.loads(RESULT)
        assert len(tool.calls) == 1


async def test_waiters_get_the_settled_result_and_a_failed_start_leaves_no_entry() -> None:
    with owning() as owner:
        tool = Tool(owner)
        running = await tool.begun()
        tool.end(NotFound("no"))
        for asked in (running, tool.call(), tool.call()):
            with pytest.raises(NotFound, match="no"):
                await asked

        def refuse(call: RunningCall) -> Stop:
            raise NotFound("not begun")

        tool.start = refuse  # type: ignore[method-assign]
        for _ in range(2):
            with pytest.raises(NotFound):
                await tool.call("r2")
        assert not owner.knows(tool.seat, "alice", "r2")
        await owner.idle.wait()


async def test_closing_answers_running_calls() -> None:
    owner = Owner()
    tool = Tool(owner)
    running = await tool.begun()
    owner.close()
    assert (await running)["isError"]
    assert tool.stopped == ["aborted"]


async def test_idle_waits_until_no_call_runs() -> None:
    with owning() as owner:
        tool = Tool(owner)
        await owner.idle.wait()
        await tool.begun()
        idle = asyncio.create_task(owner.idle.wait())
        tool.end()
        await asyncio.wait_for(idle, 30)


# -- repeats


@pytest.mark.parametrize(
    ("repeat", "held_before_s", "runs"),
    [(400, -60.0, 1), (0, -60.0, 1), (400, 5.0, 0), (11_000, -60.0, 0), (True, -60.0, 0), (False, 5.0, 1)],
    ids=["seat held long enough", "just sent", "seat held too short", "too old", "age unknown", "no repeat"],
)
async def test_an_unknown_repeat_runs_only_if_an_earlier_run_would_be_known(
    repeat: bool | int, held_before_s: float, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HELD_BEFORE_S", held_before_s)
    with owning() as owner:
        tool = Tool(owner)
        tool.seat.confirmed(new_tenure=True)
        if runs:
            await tool.done(a2c_repeat=repeat)
            assert await tool.call(a2c_repeat=repeat) == json.loads(RESULT)
        else:
            with pytest.raises(Unavailable) as refused:
                await tool.call(a2c_repeat=repeat)
            assert refused.value.details == {"may_have_run": True, "unknown_repeat": True}
            assert not owner.knows(tool.seat, "alice", "r1")
        assert len(tool.calls) == runs


@pytest.mark.parametrize(("waited_s", "held_s", "runs"), [(0.0, 20.0, True), (9.0, 14.2, False), (11.0, 60.0, False)])
async def test_a_repeats_age_includes_its_time_in_transit(waited_s: float, held_s: float, runs: bool) -> None:
    with owning() as owner:
        tool = Tool(owner)
        tool.seat.held_since = asyncio.get_running_loop().time() - held_s
        if runs:
            await tool.done(a2c_repeat=500, limit=29.5 - waited_s)
        else:
            with pytest.raises(Unavailable):
                await tool.call(a2c_repeat=500, limit=29.5 - waited_s)


async def test_a_seat_lost_and_claimed_again_counts_from_the_new_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    with owning() as owner:
        tool = Tool(owner)
        monkeypatch.setattr(module, "HELD_BEFORE_S", -60.0)
        with pytest.raises(Unavailable):  # it has no seat yet
            await tool.call(a2c_repeat=0)
        tool.seat.confirmed(new_tenure=True)
        since = tool.seat.held_since
        tool.seat.confirmed(new_tenure=False)  # confirmed
        assert since is not None
        assert tool.seat.held_since == since
        loop = asyncio.get_running_loop()
        await eventually(lambda: loop.time() > since)
        tool.seat.confirmed(new_tenure=True)
        assert tool.seat.held_since > since


async def test_a_repeat_of_a_call_that_is_known_joins_it_or_gets_its_result() -> None:
    with owning(Keeping(results_s=0.0)) as forgetful, owning() as owner:
        tool, other = Tool(owner), Tool(forgetful)
        first = await tool.begun()
        second = asyncio.create_task(tool.call(a2c_repeat=True))
        await asyncio.sleep(0)
        tool.end()
        assert await first == await second == await tool.call(a2c_repeat=True) == json.loads(RESULT)
        await other.done()
        assert (await other.call(a2c_repeat=True))["meta"] == {"a2c_result_expired": True}


# -- what gateways and offices ask and say


async def test_pending_reports_unknown_and_recently_ended_calls() -> None:
    with owning() as owner:
        tool = Tool(owner)
        tool.cancel("r2")
        await tool.begun()
        assert tool.pending("r1", "r2") == PendingAnswer(unknown=[("alice", "r2")], ended=[])
        tool.end()
        assert tool.pending("r1") == PendingAnswer(unknown=[], ended=[])
        await eventually(lambda: tool.pending("r1").ended == [("alice", "r1")])


@pytest.mark.parametrize("size", [1, 100_000], ids=["small", "large"])
async def test_a_call_is_not_unknown_while_it_is_read_begun_or_refused(size: int) -> None:
    def refuse(call: RunningCall) -> Stop:
        raise TooLarge("its socket does not take it")

    with owning() as owner:
        tool = Tool(owner)
        tool.start = refuse  # type: ignore[method-assign]
        request = {"agent": "alice", "req_id": "r1", "computer": "pc", "tool_name": "echo", "timeout": 30}
        body = json.dumps({**request, "params": {"text": "x" * size}}).encode()
        caller = Caller(role="agent", office="lab", name="alice")
        dispatched = asyncio.create_task(tool.dispatcher.dispatch(CATALOG["client:tool_call"], caller, body))
        await asyncio.sleep(0)  # it has arrived
        while not dispatched.done():
            assert tool.pending("r1").unknown == []
            await asyncio.sleep(0)
        assert (await dispatched).error == 413
        assert tool.pending("r1").unknown == [("alice", "r1")]
        elsewhere = Caller(role="agent", office="fab", name="alice")
        dispatched = asyncio.create_task(tool.dispatcher.dispatch(CATALOG["client:tool_call"], elsewhere, body))
        await asyncio.sleep(0)
        assert tool.pending("r2").unknown == [("alice", "r2")], "another office's is none of these calls"
        await dispatched


async def test_calls_of_a_departed_agent_are_cancelled_unless_it_returns_or_may_have_or_repeats_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ABSENT_S", 0.1)
    with owning() as owner:
        tool = Tool(owner)
        gone, asked = await tool.begun("r1"), await tool.begun("r2")
        back = await tool.begun("r3", agent="bob")
        missed = await tool.begun("r4", agent="carol")
        bus = cast("Bus", None)
        kept, lost = Ownership(bus, lease_s=60), Ownership(bus, lease_s=60)
        owner.agent_left("lab", "alice", kept, lambda: False)
        owner.agent_left("lab", "bob", kept, lambda: True)
        owner.agent_left("lab", "carol", lost, lambda: False)
        lost.close("the connection to NATS broke")
        again = asyncio.create_task(tool.call("r2"))
        assert (await gone)["meta"] == {"a2c_cancelled": True}
        assert tool.stopped == ["abandoned"]
        assert owner.running == 3
        tool.end()
        assert await asked == await again == await back == await missed == json.loads(RESULT)


# -- what is kept


@pytest.mark.rule("computer.safety.leaks", "answers.calls.dedup.budget", "answers.calls.dedup.expired")
async def test_a_dropped_result_leaves_its_key_and_is_not_run_again() -> None:
    with owning(Keeping(results_bytes=200)) as owner:
        tool, large = Tool(owner), json.dumps({"content": [], "pad": "x" * 120}).encode()
        await tool.done("r1", large)
        await tool.done("r2", large)
        result = await tool.call("r1")
        assert result["isError"]
        assert result["meta"] == {"a2c_result_expired": True}
        assert "pad" in await tool.call("r2")
        assert len(tool.calls) == 2
        assert owner.repeats == {"running": 0, "kept": 1, "expired": 1}


@given(st.lists(st.integers(0, 100) | st.none(), max_size=20))
def test_results_stay_within_their_bytes_and_keys_stay(sizes: list[int | None]) -> None:
    async def check() -> None:
        with owning(Keeping(results_bytes=64)) as owner:
            tool = Tool(owner)
            for number, size in enumerate(sizes):
                await tool.done(f"r{number}", NotFound("no") if size is None else b'"%b"' % (b"x" * size))
                assert owner.kept_bytes <= 64
            assert owner.held()["ended_calls"] == len(sizes)
            assert all(owner.knows(tool.seat, "alice", f"r{number}") for number in range(len(sizes)))

    asyncio.run(check())


async def test_the_oldest_keys_are_forgotten_above_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEYS", 2)
    with owning() as owner:
        tool = Tool(owner)
        for number in range(4):
            await tool.done(f"r{number}")
            tool.cancel(f"cancelled {number}")
        tool.pending()
        assert [owner.knows(tool.seat, "alice", f"r{number}") for number in range(4)] == [False, False, True, True]
        assert owner.kept_bytes == 2 * len(RESULT)
        assert owner.held()["kept_cancels"] == 2


async def test_an_old_result_expires_without_further_calls() -> None:
    with owning(Keeping(results_s=2)) as owner:
        tool = Tool(owner)
        for number in range(3):
            await tool.done(f"r{number}")
        assert owner.held()["kept_results"] == 3
        await eventually(lambda: owner.held()["kept_results"] == 0)
        assert owner.kept_bytes == 0
        assert owner.knows(tool.seat, "alice", "r0"), "the key stays"


@pytest.mark.rule("answers.calls.timeout.clean")
async def test_old_keys_and_cancels_expire_without_further_calls() -> None:
    with owning(Keeping(results_s=2, keys_s=2.5, tombstones_s=2)) as owner:
        tool = Tool(owner)
        for number in range(3):
            await tool.done(f"r{number}")
        tool.cancel("of another Computer")
        held = owner.held()
        assert (held["ended_calls"], held["kept_results"], held["kept_cancels"]) == (3, 3, 1)
        await eventually(lambda: set(owner.held().values()) == {0})


async def test_a_call_of_another_subject_is_not_joined_and_gives_no_result() -> None:
    with owning() as owner:
        tool = Tool(owner)
        first = await tool.begun(subject="anna")
        for _ in range(2):  # while it runs, and when it has ended
            with pytest.raises(Malformed, match="req_id"):
                await tool.call(subject="mallory")
            tool.end()
        assert await first == await tool.call(subject="anna") == json.loads(RESULT)
        assert len(tool.calls) == 1


async def test_a_call_that_failed_for_another_subject_blocks_no_id() -> None:
    with owning() as owner:
        tool = Tool(owner)
        await tool.done(subject="mallory", outcome=NotFound("no such tool"))
        await tool.done(subject="anna")
        assert await tool.call(subject="anna") == json.loads(RESULT)


async def test_calls_with_large_parameters_run_within_the_share_of_their_office(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their requests stay in memory while they run, also without their callers."""
    monkeypatch.setattr("smcp_bus.owner.RUNNING_BYTES", 4000)
    with owning() as owner:
        loud, quiet = Tool(owner), Tool(owner, Seat("quiet", "pc"))
        params = {"a": "x" * 900}
        for number in range(2):
            await loud.begun(f"r{number}", params=params)
        with pytest.raises(Unavailable) as refused:
            await loud.call("r2", params=params)
        assert refused.value.details == {"may_have_run": False}
        await quiet.begun(params=params)
        loud.end()
        await loud.begun("r2", params=params)
        loud.end()
        quiet.end()


async def test_errors_are_kept_as_text_within_the_bytes_of_all_results() -> None:
    """A Computer's error may have 16 KB: parsed, those of 100,000 calls took 40 GB."""
    with owning(Keeping(results_bytes=2000)) as owner:
        tool = Tool(owner)
        for number in range(5):
            await tool.done(f"r{number}", NotFound("no such tool", details={"a": [[]] * 200}))
        assert 600 < owner.kept_bytes <= 2000
        with pytest.raises(NotFound, match="no such tool") as again:
            await tool.call("r4")
        assert again.value.details == {"a": [[]] * 200}
        assert (await tool.call("r0"))["meta"]["a2c_result_expired"] is True
        assert len(tool.calls) == 5


async def test_a_call_that_has_ended_and_whose_result_is_not_kept_takes_less_than_450_bytes() -> None:
    """Before, each had its own copies of the names of its Agent and its subject: 500 bytes."""
    loop, calls = asyncio.get_running_loop(), 500

    def start(call: RunningCall) -> Stop:
        loop.call_soon(owner.settle, call, RESULT)
        return lambda why: None

    async def call(number: int) -> None:
        asked = {"agent": "alice", "req_id": f"{number:032x}", "computer": "pc", "tool_name": "echo", "timeout": 30}
        request = ToolCallReq.model_validate_json(json.dumps(asked | {"params": {}}))
        await owner.call(seat, request, 30.0, start, subject=f"{1:064x}")

    with owning(Keeping(results_bytes=0)) as owner:
        seat = Seat("lab", "pc")
        await call(0)
        tracemalloc.start()
        try:
            for number in range(1, calls + 1):
                await call(number)
            gc.collect()
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert owner.held()["ended_calls"] == calls + 1
        assert held < 450 * calls
