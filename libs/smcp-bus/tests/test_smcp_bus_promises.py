"""The promises of `smcp_bus.bus` about requests, kept by the real bus and by the bad one while it behaves."""

import asyncio
from dataclasses import replace

import orjson
import pytest

from smcp_bus.bus import BodyTooLarge, Bus, Incoming, NoResponder, Reply, RequestTimedOut
from smcp_bus.headers import ERROR
from smcp_testing.bus_pair import BUSES, LIMIT, OpenPair, echo, holding, pair_of
from smcp_testing.waiting import eventually, within


@pytest.fixture(params=BUSES.values(), ids=list(BUSES))
def pair(request: pytest.FixtureRequest, nats_url: str) -> OpenPair:
    return pair_of(request.param, nats_url)


async def test_both_implementations_satisfy_the_bus_protocol(pair: OpenPair) -> None:
    async with pair() as two:
        bus: Bus = two.asker
        assert bus.connected
        assert bus.max_body == LIMIT


async def test_a_request_gets_its_answer_and_leaves_nothing(pair: OpenPair) -> None:
    async with pair() as two:
        await two.server.serve("a.b", echo)
        assert await two.asker.request("a.b", b"hello", timeout=30) == Reply(b"hello")
        assert two.asker.stats().pending == 0


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
        assert two.asker.stats().pending == 0


async def test_a_time_out_is_raised_and_leaves_nothing(pair: OpenPair) -> None:
    async with pair() as two:
        _, go, handler = holding()
        await two.server.serve("a", handler)
        with pytest.raises(RequestTimedOut):
            await two.asker.request("a", b"", timeout=0.05)
        assert two.asker.stats().pending == 0
        go.set()


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
        assert two.asker.stats().pending == 0
        go.set()
        await eventually(lambda: two.server.stats().running == 0)


async def test_a_cancelled_request_leaves_nothing(pair: OpenPair) -> None:
    async with pair() as two:
        runs, go, handler = holding()
        await two.server.serve("a", handler)
        asking = asyncio.create_task(two.asker.request("a", bytes(LIMIT), timeout=60))
        await runs.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert two.asker.stats() == replace(two.asker.stats(), pending=0, outgoing_bytes=0)
        go.set()


@pytest.mark.parametrize("size", [0, 1, 1024, LIMIT - 1, LIMIT])
async def test_a_body_up_to_the_limit_arrives_whole_both_ways(pair: OpenPair, size: int) -> None:
    async with pair() as two:
        await two.server.serve("a", echo)
        body = bytes(index * 7 % 251 for index in range(997)) * (size // 997 + 1)
        assert (await two.asker.request("a", body[:size], timeout=20)).body == body[:size]
        await eventually(lambda: two.server.stats().pending == 0)


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
