"""The promises of `smcp_bus.bus`: requests, and those who serve and listen."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple

import orjson
import pytest

from smcp_bus.bus import (
    BodyTooLarge,
    ConnectionLost,
    ConnectionState,
    Incoming,
    NoResponder,
    NotConnected,
    Reply,
    RequestTimedOut,
)
from smcp_bus.headers import ERROR
from smcp_bus.nats.bus import Bus, BusConfig, open_bus
from smcp_testing.nats_process import NatsServer
from smcp_testing.waiting import eventually, within

LIMIT = 2 * 1024 * 1024
"""Bytes that a body may have."""


class Pair(NamedTuple):
    """Who asks, and who serves."""

    asker: Bus
    server: Bus


OpenPair = Callable[[], AbstractAsyncContextManager[Pair]]
"""`async with pair() as two:` opens both buses in the test's own body."""


@pytest.fixture
def pair(nats_url: str) -> OpenPair:
    config = BusConfig(url=nats_url, max_payload=LIMIT, connect_timeout=5)

    @asynccontextmanager
    async def both() -> AsyncIterator[Pair]:
        async with open_bus(config) as asker, open_bus(config) as server:
            yield Pair(asker, server)

    return both


async def echo(incoming: Incoming) -> Reply:
    return Reply(incoming.body)


def holding() -> tuple[asyncio.Event, asyncio.Event, Callable[[Incoming], Awaitable[Reply]]]:
    """A handler that says that it runs and waits until it is let go."""
    runs, go = asyncio.Event(), asyncio.Event()

    async def handler(incoming: Incoming) -> Reply:
        runs.set()
        await go.wait()
        return Reply(incoming.body)

    return runs, go, handler


@pytest.mark.rule("answers.nats.plain-reply")
async def test_an_answer_without_headers_has_none_and_one_with_headers_has_them(pair: OpenPair) -> None:
    async with pair() as two:

        async def handler(incoming: Incoming) -> Reply:
            return Reply(b"{}", {ERROR: "404", "Other": "größe: 5"}) if incoming.body else Reply()

        await two.server.serve("a", handler)
        assert await two.asker.request("a", b"", timeout=30) == Reply(b"", {})
        assert await two.asker.request("a", b"x", timeout=30) == Reply(b"{}", {ERROR: "404", "Other": "größe: 5"})


async def test_headers_and_the_time_budget_travel_with_a_request(pair: OpenPair) -> None:
    async with pair() as two:
        seen: list[Incoming] = []

        async def handler(incoming: Incoming) -> Reply:
            seen.append(incoming)
            return Reply()

        await two.server.serve("a.*", handler)
        now = asyncio.get_running_loop().time()
        await two.asker.request("a.verb", b"x", timeout=30, headers={"traceparent": "00-1-2-01"})
        assert seen[0].subject == "a.verb"
        assert seen[0].headers["traceparent"] == "00-1-2-01"
        deadline = seen[0].deadline
        assert deadline is not None
        assert now + 29 < deadline < now + 31


async def test_a_request_without_a_responder_fails_at_once(pair: OpenPair) -> None:
    async with pair() as two:
        with pytest.raises(NoResponder):
            async with within(2):
                await two.asker.request("nobody.here", b"", timeout=60)
        assert two.asker.stats()["pending"] == 0


async def test_each_of_several_requests_ends_at_its_own_time(pair: OpenPair) -> None:
    async with pair() as two:
        runs, go, handler = holding()
        await two.server.serve("a", handler)
        patient = asyncio.create_task(two.asker.request("a", b"late", timeout=30))
        await runs.wait()
        for _ in range(2):
            with pytest.raises(RequestTimedOut):
                async with within(2):
                    await two.asker.request("a", b"", timeout=0.05)
        assert not patient.done()
        go.set()
        assert await patient == Reply(b"late")


@pytest.mark.rule("answers.calls.timeout.clean")
async def test_a_thousand_time_outs_leave_no_state(pair: OpenPair) -> None:
    async with pair() as two:
        _, go, handler = holding()
        await two.server.serve("a", handler)
        asked = [two.asker.request("a", b"", timeout=0.2) for _ in range(1000)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(result) for result in results} == {RequestTimedOut}
        assert two.asker.stats()["pending"] == 0
        go.set()
        await eventually(lambda: two.server.stats()["running"] == 0)


async def test_a_cancelled_request_leaves_nothing(pair: OpenPair) -> None:
    async with pair() as two:
        runs, go, handler = holding()
        await two.server.serve("a", handler)
        asking = asyncio.create_task(two.asker.request("a", bytes(LIMIT), timeout=60))
        await runs.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert two.asker.stats() == two.asker.stats() | {"pending": 0, "outgoing_bytes": 0}
        go.set()


@pytest.mark.parametrize("size", [0, 1, 1024, LIMIT - 1, LIMIT])
async def test_a_body_up_to_the_limit_arrives_whole_both_ways(pair: OpenPair, size: int) -> None:
    async with pair() as two:
        await two.server.serve("a", echo)
        body = bytes(index * 7 % 251 for index in range(997)) * (size // 997 + 1)
        assert (await two.asker.request("a", body[:size], timeout=20)).body == body[:size]
        await eventually(lambda: two.server.stats()["pending"] == 0)


async def test_a_body_above_the_limit_is_refused_before_anything_is_sent(pair: OpenPair) -> None:
    async with pair() as two:
        ran: list[Incoming] = []

        async def handler(incoming: Incoming) -> Reply:
            ran.append(incoming)
            return Reply()

        await two.server.serve("a", handler)
        with pytest.raises(BodyTooLarge) as refused:
            await two.asker.request("a", bytes(LIMIT + 1), timeout=30)
        assert (refused.value.size, refused.value.limit) == (LIMIT + 1, LIMIT)
        await two.asker.request("a", b"", timeout=30)
        assert len(ran) == 1


async def test_an_answer_above_the_limit_becomes_a_413_with_the_limit(pair: OpenPair) -> None:
    async with pair() as two:

        async def handler(incoming: Incoming) -> Reply:
            return Reply(bytes(LIMIT + 1))

        await two.server.serve("a", handler)
        reply = await two.asker.request("a", b"", timeout=30)
        assert reply.headers[ERROR] == "413"
        assert orjson.loads(reply.body)["details"] == {"limit": LIMIT, "size": LIMIT + 1}


async def test_a_notification_above_one_message_is_refused(pair: OpenPair) -> None:
    async with pair() as two:
        with pytest.raises(BodyTooLarge):
            await two.asker.publish("a", bytes(1024 * 1024 + 1))


@pytest.mark.rule("answers.nats.queue")
async def test_one_member_of_a_queue_group_gets_a_request_once(pair: OpenPair) -> None:
    async with pair() as two:
        ran: list[str] = []

        def member(name: str) -> Callable[[Incoming], Awaitable[Reply]]:
            async def handler(incoming: Incoming) -> Reply:
                ran.append(incoming.body.decode())
                return Reply(name.encode())

            return handler

        await two.server.serve("a", member("one"), queue="owner")
        await two.asker.serve("a", member("two"), queue="owner")
        for number in range(50):
            await two.asker.request("a", str(number).encode(), timeout=30)
        assert sorted(ran, key=int) == [str(number) for number in range(50)]


async def test_requests_run_beside_each_other_up_to_the_limit_and_the_rest_in_order(pair: OpenPair) -> None:
    async with pair() as two:
        started: list[bytes] = []
        go = asyncio.Semaphore(0)

        async def handler(incoming: Incoming) -> Reply:
            started.append(incoming.body)
            await go.acquire()
            return Reply(incoming.body)

        await two.server.serve("a", handler, limit=3)
        asked = [asyncio.create_task(two.asker.request("a", b"%d" % n, timeout=20)) for n in range(10)]
        await eventually(lambda: two.server.stats()["waiting"] == 7 and len(started) == 3)
        assert started == [b"0", b"1", b"2"]
        for _ in range(10):
            go.release()
        await asyncio.gather(*asked)
        assert started == [b"%d" % n for n in range(10)]


async def test_a_request_whose_time_is_over_before_its_turn_is_not_run(pair: OpenPair) -> None:
    async with pair() as two:
        ran: list[bytes] = []
        runs, go, hold = holding()

        async def handler(incoming: Incoming) -> Reply:
            ran.append(incoming.body)
            return await hold(incoming)

        await two.server.serve("a", handler, limit=1)
        first = asyncio.create_task(two.asker.request("a", b"first", timeout=20))
        await runs.wait()
        with pytest.raises(RequestTimedOut):
            await two.asker.request("a", b"second", timeout=0.1)
        third = asyncio.create_task(two.asker.request("a", b"third", timeout=20))
        await eventually(lambda: two.server.stats()["waiting"] == 2)
        loop = asyncio.get_running_loop()
        over = loop.time() + 0.2  # the server counts the time from when the request came
        await eventually(lambda: loop.time() > over)
        go.set()
        await asyncio.gather(first, third)
        assert ran == [b"first", b"third"]


@pytest.mark.rule("answers.errors.no-internals")
async def test_an_exception_in_a_handler_is_a_500_without_its_text_and_is_logged(
    pair: OpenPair, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair() as two:

        async def handler(incoming: Incoming) -> Reply:
            raise RuntimeError("the secret of the house")

        await two.server.serve("a", handler)
        with caplog.at_level(logging.ERROR):
            reply = await two.asker.request("a", b"", timeout=30)
        assert reply.headers[ERROR] == "500"
        assert orjson.loads(reply.body) == {"code": 500, "message": "internal error", "details": {}}
        assert "the secret of the house" in caplog.text


async def test_notifications_run_one_after_another_in_the_order_of_arrival(pair: OpenPair) -> None:
    async with pair() as two:
        running, most, seen = 0, 0, []

        async def handler(incoming: Incoming) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            for _ in range(3):
                await asyncio.sleep(0)
            seen.append(int(incoming.body))
            running -= 1
            if incoming.body == b"50":
                raise RuntimeError("does not stop the next")

        await two.server.listen("a.*", handler)
        for number in range(200):
            await two.asker.publish("a.b", b"%d" % number)
        await eventually(lambda: len(seen) == 200)
        assert seen == list(range(200))
        assert most == 1


async def test_every_listener_gets_a_notification_with_its_headers(pair: OpenPair) -> None:
    async with pair() as two:
        heard: list[Incoming] = []

        async def handler(incoming: Incoming) -> None:
            heard.append(incoming)

        await two.server.listen("a", handler)
        await two.asker.listen("a", handler)
        await two.asker.publish("a", b"x", headers={"Smcp-Epoch": "5"})
        await eventually(lambda: len(heard) == 2)
        assert {(each.body, each.headers["Smcp-Epoch"], each.deadline) for each in heard} == {(b"x", "5", None)}


async def test_draining_finishes_running_and_queued_requests_and_takes_no_new_ones(pair: OpenPair) -> None:
    async with pair() as two:
        runs, go, handler = holding()
        subscription = await two.server.serve("a", handler, limit=1)
        asked = [asyncio.create_task(two.asker.request("a", b"%d" % n, timeout=20)) for n in range(3)]
        await runs.wait()
        await eventually(lambda: two.server.stats()["waiting"] == 2)
        draining = [asyncio.create_task(subscription.drain()) for _ in range(2)]

        async def gone() -> bool:
            try:
                await two.asker.request("a", b"late", timeout=0.05)
            except NoResponder:
                return True
            except RequestTimedOut:
                return False
            raise AssertionError("it was taken")

        await eventually(gone)
        assert not any(each.done() for each in draining)
        go.set()
        assert [(await each).body for each in asked] == [b"0", b"1", b"2"]
        await asyncio.gather(*draining)
        await subscription.drain()


async def test_draining_a_listener_handles_what_has_arrived(pair: OpenPair) -> None:
    async with pair() as two:
        seen: list[bytes] = []
        go = asyncio.Event()

        async def handler(incoming: Incoming) -> None:
            await go.wait()
            seen.append(incoming.body)

        subscription = await two.server.listen("a", handler)
        for number in range(5):
            await two.asker.publish("a", b"%d" % number)
        await eventually(lambda: two.server.stats()["waiting"] == 4)
        draining = asyncio.create_task(subscription.drain())
        go.set()
        await draining
        assert seen == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_broken_connection_fails_pending_requests_at_once_and_leaves_nothing(
    pair: OpenPair, nats_server: NatsServer
) -> None:
    async with pair() as two:
        runs, go, handler = holding()
        await two.server.serve("a", handler)
        told: list[ConnectionState] = []
        two.asker.watch(told.append)
        asking = asyncio.create_task(two.asker.request("a", b"", timeout=60))
        await runs.wait()
        await nats_server.kill()
        with pytest.raises(ConnectionLost):
            async with within(1):
                await asking
        assert told == [ConnectionState.DOWN]
        assert two.asker.stats()["pending"] == 0
        assert not two.asker.connected
        with pytest.raises(NotConnected):
            await two.asker.request("a", b"", timeout=60)
        with pytest.raises(NotConnected):
            await two.asker.publish("a", b"")
        with pytest.raises(NotConnected):
            await two.asker.serve("b", handler)
        go.set()


async def test_a_stopped_watcher_is_not_called_and_a_failing_one_does_not_stop_the_others(
    pair: OpenPair, nats_server: NatsServer
) -> None:
    async with pair() as two:
        told: list[str] = []

        def fails(what: ConnectionState) -> None:
            raise RuntimeError("a watcher's own fault")

        stop = two.asker.watch(lambda what: told.append("stopped"))
        two.asker.watch(fails)
        two.asker.watch(lambda what: told.append(what.value))
        stop()
        stop()
        await nats_server.restart()
        await eventually(lambda: two.asker.connected)
        assert told == ["down", "up"]
