"""A call is taken for lost when it is, and only then: broken lines, slow lines and lost answers."""

import asyncio
from functools import partial
from typing import Any

import orjson
import pytest

from smcp_bus.bus import Incoming, Reply
from smcp_bus.errors import BodyTooLarge, BusError, NotConnected
from smcp_bus.headers import ERROR, NOT_RUN
from smcp_bus.nats.bus import NatsBus
from smcp_gateway.calls.pending import MOST_LOST
from smcp_proto.schemas.tools import REPEAT
from smcp_testing.box_calls import Hanging, ask, call, late
from smcp_testing.gateway_world import MIB, SHORT_LEASE_S, connected, gateway_world, reply
from smcp_testing.nats_process import NatsServer
from smcp_testing.waiting import eventually

OFFICE = "office"
NOT_READY = Reply(b'{"code":503,"message":"ask again"}', {ERROR: "503", NOT_RUN: "1"})
UNKNOWN = Reply(b'{"code":503,"message":"not known","details":{"may_have_run":true}}', {ERROR: "503"})
REFUSED = Reply(b'{"code":503,"message":"too many","details":{"may_have_run":false}}', {ERROR: "503"})


class Losing:
    """A Computer whose first answers are lost on the way: the call has ended, and nothing comes."""

    def __init__(self, again: Reply | None = None, *, times: int = 1) -> None:
        self.asked = 0
        self.pending = 0
        self.again = again
        self.times = times

    async def __call__(self, verb: str, incoming: Incoming) -> Reply:
        if verb == "pending":
            self.pending += 1
            return reply({"unknown": [], "ended": orjson.loads(incoming.body)["calls"]})
        self.asked += 1
        if self.again is None or self.asked <= self.times:
            await asyncio.Event().wait()
        assert self.again is not None
        return self.again


async def test_an_answer_that_was_lost_on_the_way_is_fetched_from_its_computer_within_a_second(nats_url: str) -> None:
    box = Losing(reply({"content": "kept"}))
    async with gateway_world(nats_url) as world, connected(world.url) as anna, world.computer(OFFICE, "box", box):
        await anna.join("agent", "anna", OFFICE)
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await ask(anna, call(), timeout=60) == {"content": "kept"}
        assert loop.time() - began < 5
        assert box.asked == 2
        assert box.pending == 2
        assert len(world.gateways[0].calls) == 0


async def test_an_answer_that_is_lost_some_times_is_had_in_the_end(nats_url: str) -> None:
    box = Losing(reply({"content": "kept"}), times=MOST_LOST)
    async with gateway_world(nats_url) as world, connected(world.url) as anna, world.computer(OFFICE, "box", box):
        await anna.join("agent", "anna", OFFICE)
        assert await ask(anna, call(), timeout=60) == {"content": "kept"}
        assert box.asked == 1 + MOST_LOST
        assert len(world.gateways[0].calls) == 0


async def test_an_answer_that_is_lost_each_time_is_503_and_may_have_run(nats_url: str) -> None:
    box = Losing()
    async with gateway_world(nats_url) as world, connected(world.url) as anna, world.computer(OFFICE, "box", box):
        await anna.join("agent", "anna", OFFICE)
        answer = await ask(anna, call(), timeout=60)
        assert answer["code"] == 503
        assert answer["details"] == {"may_have_run": True}
        assert box.asked == 1 + MOST_LOST


async def test_a_lost_answer_that_cannot_be_had_any_more_may_have_run(nats_url: str) -> None:
    box = Losing(NOT_READY)
    async with gateway_world(nats_url) as world, connected(world.url) as anna, world.computer(OFFICE, "box", box):
        await anna.join("agent", "anna", OFFICE)
        answer = await ask(anna, call(), timeout=60)
        assert answer["code"] == 503
        assert answer["details"] == {"may_have_run": True}


@pytest.mark.parametrize(
    ("again", "failure", "code"),
    [(NOT_READY, NotConnected("no bus"), 503), (NOT_READY, BodyTooLarge(2, 1), 413), (REFUSED, None, 503)],
)
async def test_whatever_becomes_of_the_question_for_a_lost_answer_the_call_may_have_run(
    nats_url: str, again: Reply, failure: BusError | None, code: int
) -> None:
    box = Losing(again)
    async with gateway_world(nats_url) as world, connected(world.url) as anna, world.computer(OFFICE, "box", box):
        await anna.join("agent", "anna", OFFICE)
        bus = world.buses[0]
        request = bus.request

        async def broken(subject: str, *given: Any, **named: Any) -> Reply:
            if failure is not None and box.asked > 2 and subject.endswith(".tool_call"):
                raise failure
            return await request(subject, *given, **named)

        bus.request = broken  # type: ignore[method-assign]
        answer = await ask(anna, call(), timeout=60)
        assert answer["code"] == code
        assert answer["details"]["may_have_run"] is True
        assert box.asked == (2 if failure is None else 3)


@pytest.mark.rule("answers.calls.not-repeated")
async def test_a_call_whose_answer_was_lost_does_not_run_again_at_a_computer_that_was_restarted(nats_url: str) -> None:
    bodies: list[dict[str, Any]] = []
    tried = 0

    async def serve(verb: str, incoming: Incoming) -> Reply:
        nonlocal tried
        if verb == "pending":
            return reply({"unknown": [], "ended": orjson.loads(incoming.body)["calls"]})
        bodies.append(orjson.loads(incoming.body))
        if len(bodies) == 1:
            await asyncio.Event().wait()  # it runs, and its answer is lost
        tried += 1
        if tried < 4:
            return NOT_READY  # the gate of the first process is closed until it ends
        # the second process: its table is empty
        return UNKNOWN if bodies[-1].get(REPEAT) else reply({"content": "run again"})

    async with gateway_world(nats_url) as world, connected(world.url) as anna, world.computer(OFFICE, "box", serve):
        await anna.join("agent", "anna", OFFICE)
        answer = await ask(anna, call(text="} "), timeout=60)
        assert answer["code"] == 503
        assert answer["details"] == {"may_have_run": True}
        first, *repeats = bodies
        assert REPEAT not in first
        ages = [repeat.pop(REPEAT) for repeat in repeats]
        assert repeats == [first] * 4
        assert ages == sorted(ages)
        assert ages[0] > 0


async def test_a_connection_that_is_back_in_a_moment_costs_no_answer(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a cluster one node died: the Computer goes on with the call, and gives the answer when it is asked again."""
    monkeypatch.setattr("smcp_gateway.handlers.relay.RECONNECTED_S", 20)  # a busy machine may need more
    bodies: list[bytes] = []

    async def box(verb: str, incoming: Incoming) -> Reply:
        if verb == "pending":
            return reply({"unknown": [], "ended": []})
        bodies.append(incoming.body)
        if len(bodies) == 1:
            await asyncio.Event().wait()
        return reply({"content": "kept"})

    async with (
        gateway_world(nats_server.url) as world,
        connected(world.url) as anna,
        world.computer(OFFICE, "box", box),
    ):
        await anna.join("agent", "anna", OFFICE)
        asking = asyncio.create_task(ask(anna, call(), timeout=60))
        await eventually(lambda: len(bodies) == 1)
        await nats_server.restart()
        assert await asking == {"content": "kept"}
        first, again = [orjson.loads(body).get(REPEAT) for body in bodies]
        assert first is None
        assert 0 < again < 60_000


async def test_how_old_a_call_is_that_another_gateway_may_have_sent_is_not_said(nats_server: NatsServer) -> None:
    ages: list[object] = []

    async def box(verb: str, incoming: Incoming) -> Reply:
        if verb == "pending":
            return reply({"unknown": [], "ended": orjson.loads(incoming.body)["calls"]})
        ages.append(orjson.loads(incoming.body)[REPEAT])
        if len(ages) == 1:
            await asyncio.Event().wait()  # its answer is lost
        return reply({"content": "kept"})

    async with (
        gateway_world(nats_server.url) as world,
        connected(world.url) as anna,
        world.computer(OFFICE, "box", box),
    ):
        await anna.join("agent", "anna", OFFICE)
        assert await ask(anna, {**call(), REPEAT: True}, timeout=60) == {"content": "kept"}
        assert ages == [True, True]


async def test_a_call_that_was_lost_on_its_way_is_sent_once_more_and_has_its_result(nats_url: str) -> None:
    """As where a node of NATS that is restarted had taken it."""
    asked: list[bool] = []

    async def deaf_once(verb: str, incoming: Incoming) -> Reply:
        if verb == "pending":
            return reply({"unknown": orjson.loads(incoming.body)["calls"] if len(asked) == 1 else []})
        asked.append(REPEAT in orjson.loads(incoming.body))
        if len(asked) == 1:
            await asyncio.Event().wait()
        return reply({"content": "run"})

    async with gateway_world(nats_url) as world, connected(world.url) as anna, world.computer(OFFICE, "box", deaf_once):
        await anna.join("agent", "anna", OFFICE)
        assert await ask(anna, call(), timeout=60) == {"content": "run"}
        assert asked == [False, True]


async def test_a_computer_that_left_without_a_word_is_404_although_something_holds_its_subject(nats_url: str) -> None:
    """As nats-server does, for minutes, where the line to it was cut."""

    async def silent(_: str, __: Incoming) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError

    async with (
        gateway_world(nats_url, lease_s=SHORT_LEASE_S) as world,
        connected(world.url) as anna,
        world.computer(OFFICE, "box", silent) as box,
    ):
        await anna.join("agent", "anna", OFFICE)
        member = await ask(anna, call(1), timeout=60)
        assert (member["code"], member["details"]) == (503, {"may_have_run": True})
        await box.registry.leave(OFFICE, "computer", "box", box.claim)
        left = await ask(anna, call(2), timeout=60)
        assert (left["code"], left["details"]) == (404, {"computer": "box", "may_have_run": True})


async def test_a_computer_that_left_and_then_is_gone_is_404_for_what_was_in_flight(nats_url: str) -> None:
    """As where nats-server closes the connection that it had held since the line to it was cut."""
    hanging = Hanging()
    async with (
        gateway_world(nats_url) as world,
        connected(world.url) as anna,
        world.computer(OFFICE, "box", hanging) as box,
    ):
        await anna.join("agent", "anna", OFFICE)
        waiting = asyncio.create_task(ask(anna, call(timeout=60), timeout=60))
        await asyncio.wait_for(hanging.running.wait(), 5)
        await box.registry.leave(OFFICE, "computer", "box", box.claim)
        await box.subscription._host.release(box.subscription.sid)
        answer = await waiting
        hanging.released.set()
        assert (answer["code"], answer["details"]) == (404, {"computer": "box", "may_have_run": True})


async def test_an_answer_that_is_being_pulled_is_not_lost_although_its_call_has_ended(nats_url: str) -> None:
    body = b'"' + b"x" * (4 * MIB - 2) + b'"'
    calls = 0

    async def large(verb: str, incoming: Incoming) -> Reply:
        nonlocal calls
        if verb == "pending":
            return reply({"unknown": [], "ended": orjson.loads(incoming.body)["calls"]})
        calls += 1
        return Reply(body)

    async with (
        gateway_world(nats_url) as world,
        connected(world.url, auth={"max_message": 8 * MIB}, take=9 * MIB) as anna,
        world.computer(OFFICE, "box", large) as box,
    ):
        await anna.join("agent", "anna", OFFICE)
        loop = asyncio.get_running_loop()
        assert isinstance(box.bus, NatsBus)
        box.bus.transfers.interpose(partial(late, 1.5))
        began = loop.time()
        assert len(await ask(anna, call(), timeout=60)) == 4 * MIB - 2
        assert loop.time() - began > 1.4
        assert calls == 1


async def test_a_call_that_timed_out_may_have_run(nats_url: str) -> None:
    async def hang(verb: str, _: Incoming) -> Reply:
        if verb == "tool_call":
            await asyncio.Event().wait()
        return reply({"unknown": []})

    async with gateway_world(nats_url) as world, connected(world.url) as anna, world.computer(OFFICE, "box", hang):
        await anna.join("agent", "anna", OFFICE)
        answer = await ask(anna, call(timeout=1), timeout=60)
        assert answer["code"] == 408
        assert answer["details"]["may_have_run"] is True


async def test_a_cancel_counts_from_its_arrival_and_not_from_the_registrys_word(nats_url: str) -> None:
    async def hang(verb: str, _: Incoming) -> Reply:
        if verb == "tool_call":
            await asyncio.Event().wait()
        return reply({"unknown": []})

    async with gateway_world(nats_url) as world, connected(world.url) as anna, world.computer(OFFICE, "box", hang):
        await anna.join("agent", "anna", OFFICE)
        waiting = asyncio.create_task(ask(anna, call(timeout=60), timeout=60))
        await eventually(lambda: len(world.gateways[0].calls) == 1)
        bus = world.buses[0]
        request = bus.request

        async def slow(subject: str, *given: Any, **named: Any) -> Reply:
            if "tool_call_cancel" in subject:
                await released.wait()
            return await request(subject, *given, **named)

        released = asyncio.Event()
        bus.request = slow  # type: ignore[method-assign]
        await anna.sio.emit("server:tool_call_cancel", {"agent": "anna", "req_id": "r0"}, namespace="/smcp")
        answer = await asyncio.wait_for(waiting, 3)
        assert answer["meta"] == {"a2c_cancelled": True}
        released.set()
