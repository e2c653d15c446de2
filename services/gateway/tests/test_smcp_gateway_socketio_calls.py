"""Calls of Computers on Socket.IO, from their beginning to whatever ends them.

Each on the Agent's own replica, where nothing passes NATS, and on another one.
"""

import asyncio
from collections.abc import Sequence
from itertools import product
from typing import Any

import orjson
import pytest

from smcp_bus import subjects
from smcp_bus.bus import Incoming, Reply
from smcp_testing.gateway_world import MIB, World, connected, gateway_world
from smcp_testing.nats_process import NatsServer
from smcp_testing.socketio_pair import BOX, OFFICE, RESULT, call, couple, echo, hang, query, serve
from smcp_testing.waiting import OWNER_FIRST_S, Stopwatch, eventually

pytestmark = pytest.mark.parametrize("replicas", [1, 2], ids=["one replica", "two replicas"])


@pytest.mark.rule("answers.calls.socketio-computer")
async def test_a_call_goes_to_the_computer_unchanged_and_its_result_comes_back_unchanged(
    nats_url: str, replicas: int
) -> None:
    async with couple(nats_url, replicas) as pair:
        result = RESULT | {"meta": {"x": 1.5}, "unknown": ["\u2028", 2**53, -(2**70)], "structuredContent": None}

        async def tool(_: dict[str, Any]) -> Any:
            return result

        asked = serve(pair.box, "client:tool_call", tool)
        payload = call(x={"深": [1.5, None, 2**70 + 1]}) | {"unknown": [1]}
        assert await pair.anna.call("client:tool_call", payload) == result
        assert asked == [payload]
        assert pair.owner.computers.owner.running == 0


@pytest.mark.rule("answers.calls.result.meta")
async def test_result_metadata_is_called_meta_even_if_the_computer_sends_mcps_name(
    nats_url: str, replicas: int
) -> None:
    async with couple(nats_url, replicas) as pair:
        given: dict[str, Any] = {}

        async def tool(_: dict[str, Any]) -> Any:
            return given

        serve(pair.box, "client:tool_call", tool)
        results: list[tuple[dict[str, Any], dict[str, Any]]] = [
            ({"_meta": {"x": 2**70, "a2c_timeout": True}}, {"meta": {"x": 2**70}}),
            ({"meta": {"a2c_timeout": True, "y": 1}, "_meta": {"y": 2}}, {"meta": {"a2c_timeout": True, "y": 2}}),
            ({"_meta": None}, {}),
            ({"meta": {"a2c_timeout": True}}, {"meta": {"a2c_timeout": True}}),
            ({}, {}),
        ]
        texts = ("done", "names_with_underscores_" * 20, "large" * 20_000)
        contents = [{"type": "text", "text": text, **more} for text in texts for more in ({}, {"_meta": {"page": 1}})]
        for number, (content, (said, heard)) in enumerate(product(contents, results)):
            given = {"content": [content], "isError": False, **said}
            expected = {"content": [content], "isError": False, **heard}
            assert await pair.anna.call("client:tool_call", call(number)) == expected, said


async def test_a_hundred_calls_run_side_by_side_and_each_gets_its_own_result(nats_url: str, replicas: int) -> None:
    async with couple(nats_url, replicas) as pair:
        gathered = asyncio.Event()

        async def tool(payload: dict[str, Any]) -> Any:
            if len(asked) == 100:
                gathered.set()
            await gathered.wait()
            return RESULT | {"n": payload["params"]["n"]}

        asked = serve(pair.box, "client:tool_call", tool)
        answers = await asyncio.gather(*(pair.anna.call("client:tool_call", call(n, n=n)) for n in range(100)))
        assert [answer["n"] for answer in answers] == list(range(100))


async def test_a_tool_that_takes_too_long_is_answered_by_its_owner_and_cancelled_at_the_computer(
    nats_url: str, replicas: int
) -> None:
    async with couple(nats_url, replicas) as pair:
        serve(pair.box, "client:tool_call", hang(pair.box))
        loop = asyncio.get_running_loop()
        began = loop.time()
        answer = await pair.anna.call("client:tool_call", call(timeout=OWNER_FIRST_S))
        assert loop.time() - began > OWNER_FIRST_S - 0.65
        assert answer["isError"] is True
        assert answer["meta"] == {"a2c_timeout": True}
        await eventually(lambda: pair.box.told("notify:tool_call_cancel") == [{"agent": "anna", "req_id": "r0"}])


async def test_three_hundred_timed_out_calls_leave_nothing_behind(nats_url: str, replicas: int) -> None:
    async with couple(nats_url, replicas) as pair:
        released = asyncio.Event()

        async def slow(_: dict[str, Any]) -> Any:
            await released.wait()
            return RESULT

        serve(pair.box, "client:tool_call", slow)
        answers = await asyncio.gather(*(pair.anna.call("client:tool_call", call(n, timeout=1)) for n in range(300)))
        # 100 ms before the Agent's own gateway gives up: on a busy machine some are 408
        others = [each for each in answers if each.get("code") != 408 and each.get("meta") != {"a2c_timeout": True}]
        assert others == []
        released.set()  # the answers come late, and to nobody
        session = pair.session
        await eventually(lambda: pair.running == 0 and len(session.asks) == 0)
        await eventually(lambda: all(bus.stats()["pending"] == bus.stats()["running"] == 0 for bus in pair.world.buses))
        assert len(pair.world.gateways[0].calls) == 0
        serve(pair.box, "client:get_tools", echo)
        assert (await pair.anna.call("client:get_tools", query()))["echo"]


@pytest.mark.rule("answers.calls.death.socketio")
async def test_a_computer_that_disconnects_in_the_middle_is_503_at_once(nats_url: str, replicas: int) -> None:
    async with couple(nats_url, replicas) as pair:
        serve(pair.box, "client:tool_call", hang(pair.box))
        serve(pair.box, "client:get_tools", hang(pair.box))
        waiting = [
            asyncio.create_task(pair.anna.call("client:tool_call", call(timeout=60))),
            asyncio.create_task(pair.anna.call("client:get_tools", query())),
        ]
        session = pair.session
        await eventually(lambda: len(session.asks) == 2)
        watch = Stopwatch()
        await pair.box.sio.disconnect()
        for answer in await asyncio.gather(*waiting):
            assert answer["code"] == 503
            assert answer["details"] == {"may_have_run": True, "gone": True}
        assert watch.undisturbed < 5
        await eventually(lambda: pair.anna.told("notify:leave_office") == [{"office_id": OFFICE, "computer": BOX}])
        assert (await pair.anna.call("client:get_tools", query()))["code"] == 404
        assert pair.running == 0
        assert len(session.asks) == 0


async def test_a_computer_that_leaves_or_switches_in_the_middle_ends_its_calls(nats_url: str, replicas: int) -> None:
    async with couple(nats_url, replicas) as pair:
        asked = serve(pair.box, "client:tool_call", hang(pair.box))
        waiting = asyncio.create_task(pair.anna.call("client:tool_call", call(timeout=60)))
        await eventually(lambda: asked)
        assert await pair.box.join("computer", BOX, "another") == [True, None]
        answer = await waiting
        assert answer["code"] == 503
        assert answer["details"] == {"may_have_run": True, "gone": True}
        assert (await pair.anna.call("client:get_tools", query()))["code"] == 404
        assert await pair.box.join("computer", BOX, OFFICE) == [True, None]
        serve(pair.box, "client:tool_call", echo)
        assert (await pair.anna.call("client:tool_call", call(1)))["echo"]


@pytest.mark.rule("answers.rooms.switch.refused")
async def test_a_refused_switch_does_not_affect_running_calls(nats_url: str, replicas: int) -> None:
    async with couple(nats_url, replicas) as pair, connected(pair.world.url) as other:
        assert await other.join("computer", BOX, "another") == [True, None]
        go_on = asyncio.Event()

        async def answer(_: dict[str, Any]) -> Any:
            await go_on.wait()
            return RESULT

        asked = serve(pair.box, "client:tool_call", answer)
        waiting = asyncio.create_task(pair.anna.call("client:tool_call", call(timeout=60)))
        await eventually(lambda: asked)
        assert (await pair.box.join("computer", BOX, "another"))[0] is False
        assert pair.running == 1
        go_on.set()
        assert await waiting == RESULT
        assert (await pair.anna.call("client:tool_call", call(1)))["isError"] is False


@pytest.mark.rule("answers.calls.cancel.socketio")
async def test_a_cancel_reaches_the_computer_and_settles_the_call(nats_url: str, replicas: int) -> None:
    async with couple(nats_url, replicas) as pair:
        asked = serve(pair.box, "client:tool_call", hang(pair.box))
        waiting = asyncio.create_task(pair.anna.call("client:tool_call", call(3, timeout=60)))
        await eventually(lambda: asked)
        assert await pair.anna.call("server:tool_call_cancel", {"agent": "anna", "req_id": "r3"}) is None
        answer = await waiting
        assert answer["isError"] is True
        assert answer["meta"] == {"a2c_cancelled": True}
        await eventually(lambda: pair.box.told("notify:tool_call_cancel") == [{"agent": "anna", "req_id": "r3"}])
        assert pair.running == 0
        assert (await pair.anna.call("client:tool_call", call(3, timeout=60)))["meta"] == {"a2c_cancelled": True}
        assert await pair.anna.call("server:tool_call_cancel", {"agent": "anna", "req_id": "never seen"}) is None
        answer = await pair.anna.call("client:tool_call", call() | {"req_id": "never seen"})
        assert answer["meta"] == {"a2c_cancelled": True}
        assert len(asked) == 1


@pytest.mark.rule("answers.calls.cancel.own-answer")
async def test_a_cancelled_call_keeps_its_computers_answer_within_a_second(nats_url: str, replicas: int) -> None:
    async with couple(nats_url, replicas) as pair:
        own = {"content": [{"type": "text", "text": "stopped halfway"}], "isError": True, "meta": {"done": 0.5}}

        async def tool(_: dict[str, Any]) -> Any:
            await eventually(lambda: pair.box.told("notify:tool_call_cancel"))
            return own

        asked = serve(pair.box, "client:tool_call", tool)
        waiting = asyncio.create_task(pair.anna.call("client:tool_call", call(timeout=60)))
        await eventually(lambda: asked)
        assert await pair.anna.call("server:tool_call_cancel", {"agent": "anna", "req_id": "r0"}) is None
        assert await waiting == own
        assert await pair.anna.call("client:tool_call", call(timeout=60)) == own
        assert len(asked) == 1


@pytest.mark.rule("answers.calls.socketio-computer")
async def test_a_call_runs_once_however_often_it_is_sent(nats_url: str, replicas: int) -> None:
    async with couple(nats_url, replicas) as pair:
        released = asyncio.Event()

        async def tool(_: dict[str, Any]) -> Any:
            await released.wait()
            return RESULT

        asked = serve(pair.box, "client:tool_call", tool)
        twins = [asyncio.create_task(pair.anna.call("client:tool_call", call(timeout=4 + n, x=1))) for n in range(3)]
        await eventually(lambda: asked)
        assert (await pair.anna.call("client:tool_call", call(x=2)))["code"] == 400
        released.set()
        assert [await twin for twin in twins] == [RESULT] * 3
        assert await pair.anna.call("client:tool_call", call(x=1)) == RESULT
        refused = await pair.anna.call("client:tool_call", call(x=2))
        assert refused["code"] == 400
        assert refused["details"] == {"field": "req_id"}
        assert await pair.anna.call("client:tool_call", call(1, x=2)) == RESULT
        assert len(asked) == 2


async def test_a_repeat_with_large_integers_or_another_agent_field_is_the_same_call(
    nats_url: str, replicas: int
) -> None:
    async with couple(nats_url, replicas) as pair:
        asked = serve(pair.box, "client:tool_call", echo)
        answer = await pair.anna.call("client:tool_call", call(x=2**64 + 1) | {"agent": "an id of its own"})
        assert await pair.anna.call("client:tool_call", call(x=2**64 + 1)) == answer
        assert [each["params"] for each in asked] == [{"x": 2**64 + 1}]


async def test_large_requests_and_results_arrive_or_are_413_and_the_sockets_stay_open(
    nats_url: str, replicas: int
) -> None:
    async with (
        gateway_world(nats_url, gateways=replicas) as world,
        connected(world.gateways[0].url, auth={"max_message": 33 * MIB}, take=34 * MIB) as anna,
        connected(world.gateways[-1].url) as box,
        connected(world.gateways[-1].url, auth={"max_message": 20 * MIB}, take=20 * MIB) as big,
    ):
        await anna.join("agent", "anna", OFFICE)
        await box.join("computer", BOX, OFFICE)
        await big.join("computer", "big", OFFICE)

        async def tool(payload: dict[str, Any]) -> Any:
            size = payload["params"].get("size", len(payload["params"].get("text", "")))
            return RESULT | {"text": "x" * size}

        asked = serve(box, "client:tool_call", tool), serve(big, "client:tool_call", tool)
        answer = await anna.call("client:tool_call", call(1, timeout=30, size=5 * MIB), timeout=30)
        assert len(answer["text"]) == 5 * MIB
        refused = await anna.call("client:tool_call", call(2, timeout=30, text="x" * (4 * MIB)), timeout=30)
        assert refused["code"] == 413
        assert refused["details"]["limit"] == 4 * MIB
        assert len(asked[0]) == 1
        answer = await anna.call("client:tool_call", call(3, timeout=30, text="x" * (3 * MIB)), timeout=30)
        assert len(answer["text"]) == 3 * MIB
        payload = call(4, timeout=30, text="x" * (7 * MIB)) | {"computer": "big"}
        assert len((await anna.call("client:tool_call", payload, timeout=30))["text"]) == 7 * MIB
        # what was refused was not run, and may be sent again where there is room
        assert await anna.call("client:tool_call", call(2, timeout=30)) == RESULT | {"text": ""}


async def test_after_a_restart_of_nats_no_call_runs_until_the_registry_has_confirmed(
    nats_server: NatsServer, replicas: int
) -> None:
    async with couple(nats_server.url, replicas) as pair:
        asked = serve(pair.box, "client:tool_call", echo)
        serve(pair.box, "client:get_tools", echo)
        assert (await pair.anna.call("client:tool_call", call()))["echo"]
        [owned] = pair.owner.computers._owned.values()

        def is_open() -> bool:
            return owned.is_open

        assert is_open()
        await nats_server.stop()
        await eventually(lambda: not pair.world.buses[-1].connected)
        assert not is_open()
        await nats_server.start()

        async def answered() -> bool:
            return "echo" in await pair.anna.call("client:get_tools", query())

        await eventually(answered)
        assert is_open()
        assert (await pair.anna.call("client:tool_call", call(1)))["echo"]
        assert len(asked) == 2
        assert pair.anna.told("notify:leave_office") == []


async def test_an_unconfirmed_computer_runs_nothing_but_knows_its_running_calls(nats_url: str, replicas: int) -> None:
    async with couple(nats_url, replicas) as pair:
        released = asyncio.Event()

        async def tool(_: dict[str, Any]) -> Any:
            await released.wait()
            return RESULT

        asked = serve(pair.box, "client:tool_call", tool)
        waiting = asyncio.create_task(pair.anna.call("client:tool_call", call(timeout=20), timeout=20))
        await eventually(lambda: asked)
        pair.owner.computers.stopping = True  # closed, and not opened again
        known = await ask_pending(pair.world, [["anna", "r0"]], ["may be another owner's"])
        assert orjson.loads(known.body) == {"unknown": [], "ended": [], "lost_queries": []}
        strange = await ask_pending(pair.world, [["anna", "r0"], ["anna", "r1"]])
        assert "Smcp-Not-Run" in strange.headers
        refused = await pair.anna.call("client:tool_call", call(1, timeout=1))
        assert refused["code"] in (408, 503)
        assert len(asked) == 1
        released.set()
        assert await waiting == RESULT


async def test_an_owner_says_which_queries_are_not_running(nats_url: str, replicas: int) -> None:
    async with couple(nats_url, replicas) as pair:
        released = asyncio.Event()

        async def tools(_: dict[str, Any]) -> Any:
            await released.wait()
            return {"tools": []}

        asked = serve(pair.box, "client:get_tools", tools)
        named = {"agent": "anna", "req_id": "q", "computer": BOX}
        waiting = asyncio.create_task(pair.anna.call("client:get_tools", named))
        await eventually(lambda: asked)
        answer = await ask_pending(pair.world, [], ["q", "lost"])
        assert orjson.loads(answer.body)["lost_queries"] == ["lost"]
        released.set()
        assert (await waiting)["tools"] == []
        answer = await ask_pending(pair.world, [], ["q"])
        assert orjson.loads(answer.body)["lost_queries"] == ["q"]


async def test_a_query_without_an_id_runs_for_as_long_as_its_computer_takes(nats_url: str, replicas: int) -> None:
    async with couple(nats_url, replicas) as pair, pair.world.bus("ear") as ear:
        released, questions = asyncio.Event(), 0

        async def tools(_: dict[str, Any]) -> Any:
            await released.wait()
            return {"tools": []}

        async def hear(incoming: Incoming) -> None:
            nonlocal questions
            questions += 1

        await ear.listen(subjects.client(OFFICE, BOX, "pending"), hear)
        asked = serve(pair.box, "client:get_weather", tools)
        nameless = {"agent": "anna", "req_id": None, "computer": BOX}
        waiting = asyncio.create_task(pair.anna.call("client:get_weather", nameless))
        await eventually(lambda: asked and (questions >= 4 or replicas == 1))
        released.set()
        assert "code" not in await waiting


async def ask_pending(world: World, calls: list[list[str]], queries: Sequence[str] = ()) -> Reply:
    subject = subjects.client(OFFICE, BOX, "pending")
    return await world.buses[0].request(subject, orjson.dumps({"calls": calls, "queries": queries}), timeout=30)
