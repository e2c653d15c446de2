"""Answers larger than a message: who gets them, in which order, and where they are until their reader has room."""

import asyncio
from typing import Any

import orjson
import pytest

from smcp_bus.bus import Incoming, Reply
from smcp_gateway.sockets import socketio_server
from smcp_testing.box_calls import ask, call
from smcp_testing.gateway_world import MIB, connected, gateway_world, reply
from smcp_testing.held_counts import alive
from smcp_testing.slow_reader import slow_reader
from smcp_testing.waiting import eventually

OFFICE = "office"


@pytest.mark.rule("answers.{connect.max_message,large.plain-client,desktop.large,finder.large}")
async def test_a_large_answer_is_413_for_a_client_without_max_message_and_its_socket_stays_open(nats_url: str) -> None:
    async def large(verb: str, _: Incoming) -> Reply:
        return reply({"content": "x" * (3 * MIB if verb == "get_tools" else 5 * MIB)})

    async with gateway_world(nats_url) as world, connected(world.url) as anna, world.computer(OFFICE, "box", large):
        await anna.join("agent", "anna", OFFICE)
        query = {"agent": "anna", "req_id": "1", "computer": "box"}
        for event in ("client:tool_call", "client:get_desktop", "client:get_finder"):
            answer = await anna.call(event, call() if event == "client:tool_call" else query)
            assert answer["code"] == 413
            assert answer["details"]["limit"] == 4 * MIB < answer["details"]["size"]
        assert len((await anna.call("client:get_tools", query))["content"]) == 3 * MIB
        await anna.call("server:leave_office", {"office_id": OFFICE})
        async with connected(world.url, auth={"max_message": 32 * MIB}, take=33 * MIB) as bert:
            await bert.join("agent", "anna", OFFICE)
            assert len((await ask(bert, call()))["content"]) == 5 * MIB


@pytest.mark.rule("answers.connect.max_message.default")
async def test_the_largest_answer_that_a_default_client_can_receive_arrives(nats_url: str) -> None:
    sizes = iter((4 * MIB - 66, 4 * MIB - 64))

    async def exact(_: str, __: Incoming) -> Reply:
        return Reply(b'"' + b"x" * (next(sizes) - 2) + b'"')

    async with gateway_world(nats_url) as world, connected(world.url) as anna, world.computer(OFFICE, "box", exact):
        await anna.join("agent", "anna", OFFICE)
        assert len(await ask(anna, call())) == 4 * MIB - 68
        assert (await ask(anna, call()))["code"] == 413


@pytest.mark.rule("answers.calls.result.unchanged")
async def test_a_large_result_with_the_word_message_is_no_error_where_it_begins_as_published_computers_write_it(
    nats_url: str,
) -> None:
    result = {"meta": None, "content": ["x" * 9 * MIB], "structuredContent": {"message": "m"}, "isError": False}

    async def serve(verb: str, _: Incoming) -> Reply:
        return reply(result if verb == "tool_call" else {"unknown": []})

    async with (
        gateway_world(nats_url) as world,
        connected(world.url, auth={"max_message": 32 * MIB}, take=33 * MIB) as anna,
        world.computer(OFFICE, "box", serve),
    ):
        await anna.join("agent", "anna", OFFICE)
        assert await ask(anna, call()) == result


@pytest.mark.rule("answers.large.others")
async def test_four_answers_of_32_mib_arrive_while_small_calls_go_on(nats_url: str) -> None:
    body = b'"' + b"x" * (32 * MIB - 2) + b'"'

    async def serve(verb: str, incoming: Incoming) -> Reply:
        return Reply(body) if verb == "tool_call" else reply({"verb": verb})

    async with (
        gateway_world(nats_url, lease_s=10) as world,
        connected(world.url, auth={"max_message": 33 * MIB}, take=34 * MIB) as anna,
        connected(world.url) as bert,
        world.computer(OFFICE, "box", serve),
        world.computer("other", "box", serve),
    ):
        await anna.join("agent", "anna", OFFICE)
        await bert.join("agent", "bert", "other")
        large = [asyncio.create_task(ask(anna, call(n, timeout=60), timeout=60)) for n in range(4)]
        small = 0
        while not all(task.done() for task in large):
            answer = await bert.call("client:get_tools", {"agent": "bert", "req_id": "1", "computer": "box"})
            assert answer["verb"] == "get_tools"
            small += 1
        assert [len(task.result()) for task in large] == [32 * MIB - 2] * 4
        assert small > 4


@pytest.mark.rule("answers.large.unread")
@pytest.mark.parametrize("kib", [400, 900], ids=["in one message", "in parts"])
async def test_unread_answers_are_503_above_a_limit(nats_url: str, kib: int) -> None:
    body = b'"' + b"x" * (kib * 1024) + b'"'

    async def serve(verb: str, _: Incoming) -> Reply:
        return Reply(body) if verb == "tool_call" else reply({"unknown": []})

    async with (
        gateway_world(nats_url, max_payload=MIB, lease_s=30) as world,
        world.computer(OFFICE, "box", serve),
        slow_reader(world.url, OFFICE) as anna,
    ):
        gateway = world.gateways[0]
        for number in range(1, 41):
            await anna.send(number, "client:tool_call", call(number, timeout=60))
        session = next(iter(gateway.sessions))
        await eventually(lambda: len(gateway.calls) == 0 and session.in_flight in range(1, 12))
        assert session.reply_bytes <= 4 * MIB
        whole, refused = 0, list[dict[str, Any]]()
        while whole + len(refused) < 40:
            text = await anna.read()
            if text.startswith("43/smcp,"):
                answer = orjson.loads(text[text.index("[") :])[0]
                if isinstance(answer, dict):
                    refused.append(answer)
                else:
                    whole += 1
        assert whole >= 4
        assert refused
        assert all(error["code"] == 503 and error["details"] == {"may_have_run": True} for error in refused)
        assert session.reply_bytes == 0


@pytest.mark.rule("answers.large.patience")
async def test_a_client_gets_a_noop_packet_right_before_a_large_answer(nats_url: str) -> None:
    async def serve(verb: str, _: Incoming) -> Reply:
        return Reply(b'"' + b"x" * (2 * MIB) + b'"') if verb == "tool_call" else reply({"unknown": []})

    async with (
        gateway_world(nats_url, lease_s=30) as world,
        world.computer(OFFICE, "box", serve),
        slow_reader(world.url, OFFICE) as anna,
    ):
        await anna.send(1, "client:tool_call", call(1, timeout=60))
        heard = [await anna.read()]
        while not heard[-1].startswith("43/smcp,1"):
            heard.append(await anna.read())
        assert heard[-2] == "6"  # engine.io's NOOP: a client's patience is counted from here


@pytest.mark.rule("answers.large.deaf")
async def test_a_client_that_does_not_read_is_disconnected_at_a_byte_limit_and_others_go_on(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socketio_server, "LONGEST_PING_S", 60.0)  # it is not cut off because it answers no ping
    async with gateway_world(nats_url, max_payload=MIB, lease_s=200) as world, connected(world.url) as box:
        await box.join("computer", "box", OFFICE)
        before = alive()["SendQueue"]
        async with slow_reader(world.url, OFFICE):
            gateway = world.gateways[0]
            [deaf] = [session for session in gateway.sessions if session.name == "anna"]
            big, most = {"computer": "box", "more": "x" * 60_000}, 0
            for _ in range(400):
                assert await box.call("server:update_config", big) is None
                if deaf.closed:
                    break
                most = max(most, deaf.reply_bytes + deaf.send_queue.held)
            assert deaf.closed
            # what waits is bounded; beside it there is a portion (16 messages) that is being written
            assert MIB + 7 * MIB < most <= MIB + 9 * MIB
            await eventually(lambda: box.told("notify:leave_office"))
            await eventually(lambda: alive()["SendQueue"] == before, message="what waited for it is gone")
