"""A gateway that stops: its clients move to another one, and nobody loses a call or notices it."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Final

import aiohttp
import pytest

from smcp_bus.bus import Incoming, Reply
from smcp_gateway.rooms import moves
from smcp_testing.gateway_world import Client, connected, reply
from smcp_testing.leaving_gateway import OFFICE, RESULT, Box, agent_and_box, call, gone, in_time, two_gateways
from smcp_testing.waiting import eventually

EARLY_S: Final = 0.01
"""A timer may end some milliseconds early."""


def comings_and_goings(client: Client) -> list[tuple[str, Any]]:
    return [told for told in client.events if told[0] in ("notify:enter_office", "notify:leave_office")]


@pytest.mark.rule("answers.rooms.moving.drain")
async def test_members_move_to_another_gateway_and_their_office_hears_nothing(nats_url: str) -> None:
    async with (
        two_gateways(nats_url) as (staying, leaving, leave),
        connected(staying.url) as car,
        connected(leaving.url) as anna,
        connected(leaving.url) as box,
    ):
        await car.join("computer", "car", OFFICE)
        await anna.join("agent", "anna", OFFICE)
        await box.join("computer", "box", OFFICE)
        await eventually(lambda: len(comings_and_goings(car)) == 2)
        left = leave()
        await gone(anna)
        await gone(box)
        await in_time(left)
        async with connected(staying.url) as anna_again, connected(staying.url) as box_again:
            Box(box_again).released.set()
            assert await box_again.join("computer", "box", OFFICE) == [True, None]
            assert await anna_again.join("agent", "anna", OFFICE) == [True, None]
            assert await anna_again.call("client:tool_call", call()) == RESULT
            room = await anna_again.call("server:list_room", {"agent": "anna", "req_id": "1", "office_id": OFFICE})
            assert {session["name"] for session in room["sessions"]} == {"anna", "box", "car"}
            async with connected(staying.url) as last:
                await last.join("computer", "last", OFFICE)
                await eventually(lambda: car.told("notify:enter_office")[-1]["computer"] == "last")
                assert car.told("notify:leave_office") == []
                assert len(car.told("notify:enter_office")) == 3
                # who moved learns of those who come later, and of nobody twice
                await eventually(lambda: anna_again.told("notify:enter_office"))
                assert [payload["computer"] for payload in anna_again.told("notify:enter_office")] == ["last"]


@pytest.mark.rule("answers.rooms.moving.turns")
async def test_running_calls_end_before_their_members_are_disconnected_and_later_calls_are_refused(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "smcp_gateway.rooms.moves")
    async with (
        two_gateways(nats_url, drain_s=9) as (_, leaving, leave),
        connected(leaving.url) as anna,
        connected(leaving.url) as client,
        connected(leaving.url) as quiet,
    ):
        box = await agent_and_box(anna, client)
        waiting = [asyncio.create_task(anna.call("client:tool_call", call(0)))]
        await eventually(lambda: box.asked == ["r0"])
        left = leave()
        await gone(quiet)
        assert "waiting for 1 call (up to 9 s); ctrl-C again stops at once" in caplog.messages
        # a session that is not idle is still served, for a third of the drain time
        waiting.append(asyncio.create_task(anna.call("client:tool_call", call(1))))
        await eventually(lambda: box.asked == ["r0", "r1"])
        session = next(session for session in leaving.gateways[0].sessions if session.name == "anna")
        await eventually(lambda: session.leaving)
        refused = await anna.call("client:tool_call", call(2))
        assert refused["code"] == 503
        assert refused["details"] == {"may_have_run": False, "moving": True}
        assert await anna.call("server:tool_call_cancel", {"agent": "anna", "req_id": "unknown"}) is None
        assert not left.done()
        assert not anna.gone.is_set()
        box.released.set()
        assert await asyncio.gather(*waiting) == [RESULT, RESULT]
        await gone(anna)
        await gone(client)
        await in_time(left)
        assert box.asked == ["r0", "r1"]


@pytest.mark.rule("answers.rooms.moving.wait")
async def test_a_call_to_a_computer_that_moves_waits_until_it_is_taken_up(nats_url: str) -> None:
    async with (
        two_gateways(nats_url) as (staying, leaving, leave),
        connected(staying.url) as anna,
        connected(leaving.url) as box,
    ):
        await anna.join("agent", "anna", OFFICE)
        await box.join("computer", "box", OFFICE)
        await eventually(lambda: anna.told("notify:enter_office"))
        left = leave()
        await gone(box)
        waiting = asyncio.create_task(anna.call("client:tool_call", call(), timeout=30))
        await in_time(left)
        # longer than the patience with a member that nobody answers for
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 6)
        async with connected(staying.url) as again:
            moved = Box(again)
            moved.released.set()
            assert await again.join("computer", "box", OFFICE) == [True, None]
            assert await in_time(waiting) == RESULT
            assert moved.asked == ["r0"]
        assert [payload["computer"] for payload in anna.told("notify:enter_office")] == ["box"]


@pytest.mark.rule("answers.rooms.moving.deadline")
async def test_a_call_longer_than_the_drain_is_503_and_may_have_run(nats_url: str) -> None:
    async def hang(verb: str, _: Incoming) -> Reply:
        if verb == "tool_call":
            await asyncio.Event().wait()
        return reply({"unknown": []})

    drain_s = 3.0
    async with (
        two_gateways(nats_url, drain_s=drain_s) as (staying, leaving, leave),
        staying.computer(OFFICE, "native", hang),
        connected(leaving.url) as anna,
        connected(leaving.url) as client,
        connected(staying.url) as bert,
    ):
        await anna.join("agent", "anna", OFFICE)
        await client.join("computer", "box", "other")
        await bert.join("agent", "anna", "other")
        box = Box(client)
        waiting = [
            asyncio.create_task(anna.call("client:tool_call", call(0, computer="native"), timeout=30)),
            asyncio.create_task(bert.call("client:tool_call", call(1), timeout=30)),
        ]
        await eventually(lambda: box.asked and len(leaving.gateways[0].calls) == 1)
        began = asyncio.get_running_loop().time()
        left = leave()
        cut_off, lost = await asyncio.gather(*waiting)
        assert (cut_off["code"], cut_off["details"]) == (503, {"may_have_run": True})
        assert (lost["code"], lost["details"]) == (
            503,
            {"may_have_run": True, "gone": True},
        )  # with the Computer's gateway
        assert asyncio.get_running_loop().time() - began > drain_s / 2
        await gone(anna)
        await gone(client)
        await in_time(left, drain_s + 5)
        # they are cut off, not thrown out
        async with connected(staying.url) as again:
            assert await again.join("agent", "anna", OFFICE) == [True, None]
        assert bert.told("notify:leave_office") == []


@pytest.mark.rule("answers.rooms.moving.until")
async def test_a_moved_member_that_does_not_return_leaves_when_its_move_ends(nats_url: str) -> None:
    move_s = 4.0
    async with (
        two_gateways(nats_url, move_s=move_s) as (staying, leaving, leave),
        connected(staying.url) as car,
        connected(leaving.url) as anna,
    ):
        await car.join("computer", "car", OFFICE)
        await anna.join("agent", "anna", OFFICE)
        began = asyncio.get_running_loop().time()
        left = leave()
        await gone(anna)
        await in_time(left)
        await eventually(lambda: car.told("notify:leave_office"), timeout=move_s + 8)
        assert asyncio.get_running_loop().time() - began >= move_s
        async with connected(staying.url) as bert:
            assert await bert.join("agent", "bert", OFFICE) == [True, None]


async def test_a_client_that_disconnects_itself_during_a_drain_leaves_at_once(nats_url: str) -> None:
    async with (
        two_gateways(nats_url) as (staying, leaving, leave),
        connected(staying.url) as car,
        connected(leaving.url) as anna,
        connected(leaving.url) as client,
    ):
        await car.join("computer", "car", OFFICE)
        box = await agent_and_box(anna, client)
        waiting = asyncio.create_task(anna.call("client:tool_call", call()))
        await eventually(lambda: box.asked)
        left = leave()
        session = next(session for session in leaving.gateways[0].sessions if session.name == "anna")
        await eventually(lambda: session.moving)
        waiting.cancel()
        await asyncio.wait({waiting})
        await anna.sio.disconnect()
        await eventually(lambda: car.told("notify:leave_office") == [{"office_id": OFFICE, "agent": "anna"}])
        box.released.set()
        await in_time(left)


@pytest.mark.rule("answers.rooms.moving.turns")
async def test_a_stopping_gateway_refuses_new_connections_with_503(nats_url: str) -> None:
    async with (
        two_gateways(nats_url) as (_, leaving, leave),
        connected(leaving.url) as anna,
        connected(leaving.url) as client,
        aiohttp.ClientSession() as http,
    ):
        box = await agent_and_box(anna, client)
        waiting = asyncio.create_task(anna.call("client:tool_call", call()))
        await eventually(lambda: box.asked)
        left = leave()
        for path, status in (
            ("/readyz", 503),
            ("/livez", 200),
            ("/socket.io/?EIO=4&transport=polling", 503),
            ("/socket.io/?EIO=4&transport=websocket", 503),
        ):
            async with http.get(f"{leaving.url}{path}") as answer:
                assert answer.status == status, path
        box.released.set()
        assert await waiting == RESULT
        await in_time(left)


@pytest.mark.rule("answers.rooms.moving.turns")
async def test_clients_are_sent_away_one_after_the_other(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """None before its turn. How long after it, depends on the machine."""
    many, spread_s = 10, 1.0
    monkeypatch.setattr(moves, "PER_S", many / spread_s)
    async with two_gateways(nats_url) as (_, leaving, leave), AsyncExitStack() as stack:
        here = [await stack.enter_async_context(connected(leaving.url)) for _ in range(many)]
        loop = asyncio.get_running_loop()
        ends: list[float] = []

        async def note(client: Client) -> None:
            await gone(client, 30)
            ends.append(loop.time())

        noting = [asyncio.create_task(note(client)) for client in here]
        began = loop.time()
        await in_time(leave(), 30)
        await asyncio.gather(*noting)
        for number, end in enumerate(sorted(ends)):
            assert end - began > spread_s * number / many - EARLY_S
