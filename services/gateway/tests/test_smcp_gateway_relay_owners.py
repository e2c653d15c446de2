"""Owners of Computers that are not ready, not there, moving, dead or standing still; lost calls and answers."""

import asyncio
from typing import Any

import orjson
import pytest

from smcp_bus import subjects
from smcp_bus.bus import Incoming, Reply
from smcp_bus.callers import SeatKey
from smcp_bus.headers import ERROR, NOT_RUN
from smcp_bus.nats.bus import Bus
from smcp_bus.nats.transfers import Send
from smcp_bus.ownership import MOVING
from smcp_bus.registry_contract import Joined
from smcp_gateway.handlers import relay
from smcp_gateway.rooms.memberships import Memberships
from smcp_gateway.rooms.offices import Office
from smcp_testing.bad_bus import interpose
from smcp_testing.box_calls import Hanging, ask, call, echo, late, repeated
from smcp_testing.gateway_world import MIB, SHORT_LEASE_S, TinyComputer, connected, gateway_world, reply
from smcp_testing.nats_process import NatsServer
from smcp_testing.socketio_pair import RESULT, serve
from smcp_testing.waiting import Stopwatch, eventually, within

OFFICE = "office"


@pytest.mark.rule("answers.calls.no-responder")
async def test_an_owner_that_is_not_ready_is_asked_again(nats_url: str) -> None:
    asked = 0

    async def gated(verb: str, incoming: Incoming) -> Reply:
        nonlocal asked
        asked += 1
        if asked < 4:
            return Reply(b'{"code":503,"message":"retry"}', {ERROR: "503", NOT_RUN: "1"})
        return await echo(verb, incoming)

    async with gateway_world(nats_url) as world, connected(world.url) as anna, world.computer(OFFICE, "box", gated):
        await anna.join("agent", "anna", OFFICE)
        assert (await ask(anna, call()))["verb"] == "tool_call"
        assert asked == 4


async def test_a_call_to_a_moving_computer_is_retried_for_its_whole_time(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "WAIT_S", 0.2)
    loop = asyncio.get_running_loop()
    moved_at = loop.time() + 3600

    async def gated(verb: str, incoming: Incoming) -> Reply:
        if loop.time() < moved_at:
            return Reply(b'{"code":503,"message":"retry"}', {ERROR: "503", NOT_RUN: MOVING})
        return await echo(verb, incoming)

    async with gateway_world(nats_url) as world, connected(world.url) as anna, world.computer(OFFICE, "box", gated):
        await anna.join("agent", "anna", OFFICE)
        moved_at = loop.time() + 5 * relay.WAIT_S
        assert (await ask(anna, call()))["verb"] == "tool_call"
        assert loop.time() > moved_at
        moved_at = loop.time() + 3600
        answer = await ask(anna, call(2, timeout=1))
        assert (answer["code"], answer["details"]) == (503, {"may_have_run": False})


async def returned(_: dict[str, Any]) -> Any:
    return RESULT


async def test_a_call_waits_for_a_computer_whose_join_is_not_finished(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "WAIT_S", 0.2)
    granted, go = asyncio.Event(), asyncio.Event()
    claim = Memberships._claim

    async def later(self: Memberships, office: Office, place: SeatKey, *said: Any) -> Joined:
        joined = await claim(self, office, place, *said)
        if place[1] == "computer":
            granted.set()
            await go.wait()
        return joined

    monkeypatch.setattr(Memberships, "_claim", later)
    async with (
        gateway_world(nats_url, gateways=2) as world,
        connected(world.gateways[0].url) as anna,
        connected(world.gateways[1].url) as box,
    ):
        await anna.join("agent", "anna", OFFICE)
        serve(box, "client:tool_call", returned)
        joining = asyncio.create_task(box.join("computer", "box", OFFICE))
        await granted.wait()
        asked = asyncio.create_task(ask(anna, call(timeout=20), timeout=20))
        done, _ = await asyncio.wait({asked}, timeout=5 * relay.WAIT_S)
        assert not done
        go.set()
        assert await joining == [True, None]
        async with asyncio.timeout(30):
            assert (await asked)["isError"] is False


@pytest.mark.rule("answers.errors.503", "answers.calls.no-responder")
async def test_a_call_to_a_member_without_an_owner_is_503_and_not_run(nats_url: str) -> None:
    async with (
        gateway_world(nats_url) as world,
        connected(world.url) as anna,
        world.computer(OFFICE, "box", echo, served=False),
    ):
        await anna.join("agent", "anna", OFFICE)
        watch = Stopwatch()
        answer = await ask(anna, call(timeout=20))
        assert answer["code"] == 503
        assert answer["details"] == {"may_have_run": False}
        assert watch.took > 4.5
        assert watch.undisturbed < 7, "it was looked for for five seconds"


@pytest.mark.rule("answers.calls.no-responder")
async def test_a_call_that_no_registry_answers_for_waits_no_longer_than_others(nats_url: str) -> None:
    async with gateway_world(nats_url, registry=False) as world, connected(world.url) as anna:
        async with gateway_world(nats_url, gateways=0), world.computer(OFFICE, "box", echo, served=False):
            await anna.join("agent", "anna", OFFICE)
        watch = Stopwatch()
        answer = await ask(anna, call(timeout=20), timeout=60)
        assert (answer["code"], answer["details"]) == (503, {"may_have_run": False})
        assert watch.took > 4.5
        assert watch.undisturbed < 9, "not twice as long"


async def serve_echo(box: TinyComputer) -> None:
    async def served(incoming: Incoming) -> Reply:
        return await echo("tool_call", incoming)

    await box.bus.serve(subjects.client_all(OFFICE, "box"), served, queue=subjects.OWNER_QUEUE)


async def test_a_call_waits_for_a_member_that_begins_to_move(nats_url: str) -> None:
    async with (
        gateway_world(nats_url) as world,
        connected(world.url) as anna,
        world.computer(OFFICE, "box", echo, served=False) as box,
    ):
        await anna.join("agent", "anna", OFFICE)
        asked = asyncio.create_task(ask(anna, call(timeout=30), timeout=30))
        looking = world.gateways[0].calls
        await eventually(lambda: len(looking) == 1)
        await asyncio.wait({asked}, timeout=1)  # the registry has said by now that it does not move
        assert (await box.moves(OFFICE, "box", world)).outcome == "unchanged"
        await asyncio.wait({asked}, timeout=6)
        assert not asked.done()
        await serve_echo(box)
        assert (await asked)["verb"] == "tool_call"


async def test_a_call_waits_on_for_a_moving_member_while_the_registry_is_slow(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "FIND_S", 0.0)  # any answer comes too late
    async with (
        gateway_world(nats_url) as world,
        connected(world.url) as anna,
        world.computer(OFFICE, "box", echo, served=False) as box,
    ):
        await anna.join("agent", "anna", OFFICE)
        assert (await box.moves(OFFICE, "box", world)).outcome == "unchanged"
        asked = asyncio.create_task(ask(anna, call(timeout=30), timeout=30))
        await asyncio.wait({asked}, timeout=relay.WAIT_S + 2)  # by then it has been asked a second time
        assert not asked.done()
        await serve_echo(box)
        assert (await asked)["verb"] == "tool_call"


@pytest.mark.rule("answers.calls.death")
async def test_a_dead_owner_is_noticed_long_before_the_timeout(nats_url: str) -> None:
    hanging = Hanging()
    async with gateway_world(nats_url) as world, connected(world.url) as anna:
        await anna.join("agent", "anna", OFFICE)
        async with world.computer(OFFICE, "box", hanging) as box:
            waiting = asyncio.create_task(ask(anna, call(timeout=60)))
            await asyncio.wait_for(hanging.running.wait(), 30)
            await box.subscription.bus.release(box.subscription.sid)  # as if the process was gone
            watch = Stopwatch()
            answer = await waiting
            assert watch.undisturbed < 3, "it is not waited for as after the death of a node of NATS"
            assert answer["code"] == 503
            assert answer["details"] == {"may_have_run": True, "gone": True}
            assert len(world.gateways[0].calls) == 0
            hanging.released.set()


@pytest.mark.rule("answers.calls.paused")
async def test_a_hanging_owner_is_given_most_of_a_lease(nats_url: str) -> None:
    async def frozen(_: str, __: Incoming) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError

    async with (
        gateway_world(nats_url, settings={"lease_s": SHORT_LEASE_S}) as world,
        connected(world.url) as anna,
        world.computer(OFFICE, "box", frozen),
    ):
        await anna.join("agent", "anna", OFFICE)
        watch = Stopwatch()
        answer = await ask(anna, call(timeout=60))
        assert watch.took > 1.0
        assert watch.undisturbed < 15
        assert answer["code"] == 503
        assert answer["details"] == {"may_have_run": True, "gone": True}


@pytest.mark.rule("answers.calls.not-repeated", "answers.calls.lost")
@pytest.mark.parametrize("lost", ["unknown", "ended"])
async def test_a_lost_call_or_answer_is_503_at_once_and_not_sent_again(nats_url: str, lost: str) -> None:
    """The Computer does not know the call, or it has ended there and nothing comes."""
    calls = 0

    async def box(verb: str, incoming: Incoming) -> Reply:
        nonlocal calls
        if verb == "pending":
            return reply({"unknown": []} | {lost: orjson.loads(incoming.body)["calls"]})
        calls += 1
        await asyncio.Event().wait()
        raise AssertionError

    async with gateway_world(nats_url) as world, connected(world.url) as anna, world.computer(OFFICE, "box", box):
        await anna.join("agent", "anna", OFFICE)
        answer = await ask(anna, call(), timeout=60)
        assert (answer["code"], answer["details"]) == (503, {"may_have_run": True})
        assert calls == 1
        assert len(world.gateways[0].calls) == 0


async def test_a_query_that_its_living_owner_is_not_running_is_503_at_once(nats_url: str) -> None:
    async def box(verb: str, incoming: Incoming) -> Reply:
        if verb == "pending":
            return reply({"unknown": [], "lost_queries": orjson.loads(incoming.body)["queries"]})
        await asyncio.Event().wait()  # as one that never came
        raise AssertionError

    async with gateway_world(nats_url) as world, connected(world.url) as anna, world.computer(OFFICE, "box", box):
        await anna.join("agent", "anna", OFFICE)
        asked = {"agent": "anna", "req_id": "q", "computer": "box"}
        answer = await anna.call("client:get_tools", asked, timeout=20)  # a query has 30 s
        assert (answer["code"], answer["details"]) == (503, {"may_have_run": True})


@pytest.mark.rule("answers.calls.not-repeated")
async def test_a_call_whose_connection_broke_is_503_at_once_and_is_not_sent_again(nats_server: NatsServer) -> None:
    hanging = Hanging()
    async with (
        gateway_world(nats_server.url) as world,
        connected(world.url) as anna,
        world.computer(OFFICE, "box", hanging),
    ):
        await anna.join("agent", "anna", OFFICE)
        asking = asyncio.create_task(ask(anna, call(), timeout=60))
        await asyncio.wait_for(hanging.running.wait(), 30)
        hanging.running.clear()
        await nats_server.restart()
        answer = await asking
        assert (answer["code"], answer["details"]) == (503, {"may_have_run": True})
        assert not hanging.running.is_set()
        hanging.released.set()
        assert await repeated(anna, call(), timeout=60) == {"unknown": []}, "a repeat waits for the connection"


async def test_an_answer_that_is_being_pulled_is_not_lost_although_its_call_has_ended(nats_url: str) -> None:
    body = b'"' + b"x" * (4 * MIB - 2) + b'"'
    calls = 0
    pulled = False

    def slow(send: Send) -> Send:
        later = late(1.5, send)

        def answer(subject: str, back: str, head: bytes, part: bytes | memoryview) -> None:
            nonlocal pulled
            pulled = True
            later(subject, back, head, part)

        return answer

    async def large(verb: str, incoming: Incoming) -> Reply:
        nonlocal calls
        if verb == "pending":  # an owner does not say it of an answer that may still be on its way
            return reply({"unknown": [], "ended": orjson.loads(incoming.body)["calls"] if pulled else []})
        calls += 1
        return Reply(body)

    async with (
        gateway_world(nats_url) as world,
        connected(world.url, auth={"max_message": 8 * MIB}, take=9 * MIB) as anna,
        world.computer(OFFICE, "box", large) as box,
    ):
        await anna.join("agent", "anna", OFFICE)
        loop = asyncio.get_running_loop()
        assert isinstance(box.bus, Bus)
        interpose(box.bus, slow)
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


async def test_the_time_of_a_cancel_counts_from_its_arrival(nats_url: str) -> None:
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
        async with within(3):
            answer = await waiting
        assert answer["meta"] == {"a2c_cancelled": True}
        released.set()
