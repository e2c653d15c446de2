"""A call to a Computer whose socket the Agent's own replica holds does not pass NATS, and nobody can tell."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from smcp_bus import owner, subjects
from smcp_bus.bus import Incoming
from smcp_testing.gateway_world import MIB, NAMESPACE, World, connected, gateway_world
from smcp_testing.nats_process import NatsServer
from smcp_testing.slow_reader import SlowReader, slow_reader
from smcp_testing.socketio_pair import BOX, OFFICE, RESULT, call, couple, echo, hang, query, serve
from smcp_testing.waiting import eventually

CALL = "client:tool_call"
BOTH = pytest.mark.parametrize("replicas", [1, 2], ids=["one replica", "two replicas"])


@asynccontextmanager
async def overheard(world: World) -> AsyncIterator[list[str]]:
    """The verbs of what passes NATS on its way to a Computer, without what asks after a call that takes longer."""
    heard: list[str] = []

    async def hear(incoming: Incoming) -> None:
        if (verb := subjects.verb_of(incoming.subject)) != "pending":
            heard.append(verb)

    async with world.bus("ear") as bus:
        await bus.listen(f"{subjects.ROOT}.*.client.*.*", hear)
        yield heard


async def test_a_call_to_an_unconfirmed_computer_goes_over_the_bus_and_runs_once_after_confirmation(
    nats_url: str,
) -> None:
    async with couple(nats_url, 1) as pair, overheard(pair.world) as heard:
        asked = serve(pair.box, CALL, echo)
        calls = 0

        async def gone_over_the_bus() -> bool:
            nonlocal calls
            pair.owner.computers.ownership.close("a test")  # confirmed again a moment later
            calls += 1
            assert (await pair.anna.call(CALL, call(calls)))["echo"]
            return "tool_call" in heard

        await eventually(gone_over_the_bus)
        assert [each["req_id"] for each in asked] == [f"r{number}" for number in range(1, calls + 1)]


async def test_a_call_reaches_the_holder_of_a_name_while_another_session_claims_it(nats_url: str) -> None:
    async with couple(nats_url, 1) as pair, connected(pair.world.url) as other, overheard(pair.world) as heard:
        first, second = serve(pair.box, CALL, echo), serve(other, CALL, echo)
        for number in range(4):
            waiting = asyncio.create_task(other.join("computer", BOX, OFFICE))
            assert (await pair.anna.call(CALL, call(number)))["echo"]
            assert (await waiting)[0] is False
        assert (len(first), len(second)) == (4, 0)
        assert (await pair.box.call("server:leave_office", {"office_id": OFFICE}))[0] is True
        assert await other.join("computer", BOX, OFFICE) == [True, None]
        assert (await pair.anna.call(CALL, call(4)))["echo"]
        assert (len(first), len(second)) == (4, 1)
        assert heard == []


async def test_a_call_that_runs_here_goes_on_while_nats_is_away(nats_server: NatsServer) -> None:
    async with couple(nats_server.url, 1) as pair:
        released = asyncio.Event()

        async def tool(_: dict[str, Any]) -> Any:
            await released.wait()
            return RESULT

        asked = serve(pair.box, CALL, tool)
        waiting = asyncio.create_task(pair.anna.call(CALL, call(timeout=60), timeout=60))
        await eventually(lambda: asked)
        await nats_server.stop()
        await eventually(lambda: not pair.world.buses[0].connected)
        refused = await pair.anna.call(CALL, call(1))
        assert refused["code"] == 503
        assert refused["details"] == {"may_have_run": False, "cut_off": True}
        released.set()
        assert await waiting == RESULT
        assert len(asked) == 1
        await nats_server.start()


@BOTH
async def test_a_call_goes_on_after_its_agent_disconnected_and_the_repeat_gets_the_result(
    nats_url: str, replicas: int
) -> None:
    async with couple(nats_url, replicas) as pair:
        released = asyncio.Event()

        async def tool(_: dict[str, Any]) -> Any:
            await released.wait()
            return RESULT

        asked = serve(pair.box, CALL, tool)
        first = asyncio.create_task(pair.anna.call(CALL, call(timeout=60), timeout=60))
        await eventually(lambda: asked)
        pair.anna.sio.eio.ws._response.connection.transport.abort()
        await eventually(lambda: len(pair.world.gateways[0].calls) == 0)
        first.cancel()
        async with connected(pair.world.gateways[0].url) as anna:

            async def joined() -> bool:
                return bool((await anna.join("agent", "anna", OFFICE))[0])

            await eventually(joined)
            again = asyncio.create_task(anna.call(CALL, call(timeout=60), timeout=60))
            assert pair.running == 1
            released.set()
            assert await again == RESULT
            assert len(asked) == 1
        assert pair.running == 0


@BOTH
async def test_a_repeat_with_a_shorter_timeout_ends_at_it_and_cancels_the_call(nats_url: str, replicas: int) -> None:
    async with couple(nats_url, replicas) as pair:
        asked = serve(pair.box, CALL, hang(pair.box))
        first = asyncio.create_task(pair.anna.call(CALL, call(timeout=60), timeout=60))
        await eventually(lambda: asked)
        late = await pair.anna.call(CALL, call(timeout=1))
        assert late["code"] == 408
        assert late["details"] == {"may_have_run": True}
        # a call that timed out is cancelled at its Computer, also while another caller waits for it
        assert (await first)["meta"] == {"a2c_cancelled": True}
        assert len(asked) == 1


async def refusals(anna: SlowReader, calls: int) -> list[dict[str, Any]]:
    """Read the answers of so many calls; returns those that are errors."""
    refused, answered = [], 0
    while answered < calls:
        text = await anna.read()
        if text.startswith("43/smcp,"):
            answered += 1
            answer = orjson.loads(text[text.index("[") :])[0]
            if "code" in answer:
                refused.append(answer)
    return refused


@pytest.mark.parametrize(("calls", "bound"), [(4, False), (40, True)], ids=["some", "too many"])
async def test_large_unread_results_wait_within_a_bound(nats_url: str, calls: int, bound: bool) -> None:
    text = "x" * (900 * 1024)
    async with (
        gateway_world(nats_url, max_payload=MIB, lease_s=30) as world,
        connected(world.url) as box,
        slow_reader(world.url, OFFICE) as anna,
    ):

        async def tool(_: dict[str, Any]) -> Any:
            return RESULT | {"text": text}

        asked = serve(box, CALL, tool)
        assert await box.join("computer", BOX, OFFICE) == [True, None]
        gateway = world.gateways[0]
        for number in range(1, calls + 1):
            await anna.send(number, CALL, call(number, timeout=60))
        session = next(session for session in gateway.sessions if session.role == "agent")
        await eventually(lambda: len(asked) == calls and gateway.computers.owner.running == 0, timeout=30)
        assert session.reply_bytes <= 4 * MIB
        refused = await refusals(anna, calls)
        assert bool(refused) is bound
        assert {error["code"] for error in refused} <= {503}
        assert all(error["details"] == {"may_have_run": True} for error in refused)
        await eventually(lambda: session.reply_bytes == 0)


async def test_calls_above_the_share_of_an_office_are_503_and_not_run_and_another_office_is_served(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "MOST_RUNNING", 4)
    async with couple(nats_url, 1) as pair, connected(pair.world.url) as bob, connected(pair.world.url) as car:
        asked = serve(pair.box, CALL, hang(pair.box))
        waiting = [asyncio.create_task(pair.anna.call(CALL, call(number, timeout=60))) for number in range(2)]
        await eventually(lambda: len(asked) == 2)
        refused = await pair.anna.call(CALL, call(2))
        assert (refused["code"], refused["details"]) == (503, {"may_have_run": False})
        serve(car, CALL, echo)
        assert await car.join("computer", "car", "elsewhere") == [True, None]
        assert await bob.join("agent", "bob", "elsewhere") == [True, None]
        assert (await bob.call(CALL, {**call(), "agent": "bob", "computer": "car"}))["echo"]
        for number in range(2):
            await pair.anna.call("server:tool_call_cancel", {"agent": "anna", "req_id": f"r{number}"})
        assert [answer["meta"] for answer in await asyncio.gather(*waiting)] == [{"a2c_cancelled": True}] * 2
        assert len(asked) == 2


async def test_queries_end_with_the_connection_of_their_agent(nats_url: str) -> None:
    async with couple(nats_url, 1) as pair:
        asked = serve(pair.box, "client:get_config", hang(pair.box))
        for _ in range(3):
            await pair.anna.sio.emit("client:get_config", query(), namespace=NAMESPACE)
        await eventually(lambda: len(asked) == len(pair.session.asks) == 3)
        await pair.anna.sio.disconnect()
        await eventually(lambda: len(pair.session.asks) == 0, timeout=15)  # a query has 30 s
