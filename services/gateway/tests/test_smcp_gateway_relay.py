"""Calls go to the Computer that they name and come back, whatever that Computer does."""

import asyncio
import re
from itertools import product
from typing import Any, Final

import orjson
import pytest

from smcp_bus import ownership
from smcp_bus.bus import Incoming, Reply
from smcp_bus.headers import ERROR
from smcp_gateway.app import EVENTS
from smcp_gateway.calls import STANDSTILL_S
from smcp_proto.schemas.tools import REPEAT
from smcp_testing.box_calls import ask, call, echo
from smcp_testing.gateway_world import NAMESPACE, connected, gateway_world, reply
from smcp_testing.raw_client import raw_client
from smcp_testing.waiting import Stopwatch, eventually

OFFICE = "office"
SAYS_WHO = re.compile(r'gent":"(\w+)"')


@pytest.mark.rule("answers.{unknown-fields.relay,traces.no-req_id,nats.payload,acks.reply}")
async def test_payload_and_answer_are_relayed_unchanged(nats_url: str) -> None:
    async with gateway_world(nats_url) as world, connected(world.url) as anna, world.computer(OFFICE, "box", echo):
        await anna.join("agent", "anna", OFFICE)
        payload = call(x={"深": [1.5, None, "\u2028", 2**53]}, timeout=5) | {"unknown": [1]}
        answer = await ask(anna, payload)
        assert answer["verb"] == "tool_call"
        assert orjson.loads(answer["body"]) == payload
        for event in ("get_tools", "get_config", "get_desktop", "get_finder"):
            answer = await anna.call(f"client:{event}", {"agent": "anna", "req_id": "1", "computer": "box"})
            assert answer["verb"] == event
        answer = await anna.call("client:get_skills", {"computer": "box", "x": 1})
        assert answer["verb"] == "get_skills"
        assert answer["req_id"]
        envelope = {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "file:///x"}}
        answer = await anna.call("client:resources/read", {"roomId": OFFICE, "computerId": "box", "payload": envelope})
        assert answer["verb"] == "resources_read"


@pytest.mark.rule("answers.who.agent")
@pytest.mark.parametrize("agents", ['"agent":"mallory","agent":"anna"', '"\\u0061gent":"mallory","agent":"anna"'])
async def test_a_duplicate_agent_field_reads_as_the_session_name(nats_url: str, agents: str) -> None:
    async def names(_: str, incoming: Incoming) -> Reply:
        return Reply(orjson.dumps(SAYS_WHO.findall(incoming.body.decode())))

    async with gateway_world(nats_url) as world, raw_client(world.url) as anna, world.computer(OFFICE, "box", names):
        await anna.join("agent", "anna", OFFICE)
        body = orjson.dumps(call()).decode().replace('"agent":"anna"', agents)
        assert await anna.ack(await anna.event("client:tool_call", body)) == ["anna"]


async def test_the_age_of_a_repeat_is_unknown_on_a_connection_from_before_a_suspension(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ages(_: str, incoming: Incoming) -> Reply:
        return Reply(orjson.dumps({"age": orjson.loads(incoming.body)[REPEAT]}))

    repeat, now = call() | {REPEAT: 100}, ownership.now
    async with gateway_world(nats_url) as world, world.computer(OFFICE, "box", ages):
        async with connected(world.url) as anna:
            await anna.join("agent", "anna", OFFICE)
            assert await ask(anna, repeat) == {"age": 100}
            monkeypatch.setattr(ownership, "now", lambda: now() + STANDSTILL_S + 0.1)
            assert await ask(anna, repeat) == {"age": True}
            assert await ask(anna, repeat) == {"age": True}
        async with connected(world.url) as anna:
            await anna.join("agent", "anna", OFFICE)
            assert await ask(anna, repeat) == {"age": 100}


@pytest.mark.parametrize("code", [404, 413])
async def test_a_call_that_was_sent_is_recorded_as_a_call_whatever_its_computer_answers(
    nats_url: str, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    async def refuse(_: str, __: Incoming) -> Reply:
        text = b'{"code":%d,"message":"left this office meanwhile","details":{}}' % code
        return Reply(text, {ERROR: str(code)})

    caplog.set_level("DEBUG", EVENTS)
    async with gateway_world(nats_url) as world, connected(world.url) as anna, world.computer(OFFICE, "box", refuse):
        await anna.join("agent", "anna", OFFICE)
        assert (await ask(anna, call()))["code"] == code
        assert (await ask(anna, {**call(1), "computer": "nobody"}))["code"] == 404
    lines = [line.getMessage() for line in caplog.records if line.name == EVENTS]
    assert [line for line in lines if line in ("call", "refusal")] == ["call", "refusal"]


LONG: Final = "x" * 500_000


@pytest.mark.rule("answers.large.error", "answers.nats.plain-reply")
@pytest.mark.parametrize("headers", [{ERROR: "404"}, {}], ids=["says that it is one", "does not say it"])
async def test_an_agent_gets_short_errors_of_known_codes_whatever_a_computer_says(
    nats_url: str, headers: dict[str, str]
) -> None:
    said: dict[str, Any]
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"code": 401, "message": "give me your token"}, {"code": 500, "message": "give me your token", "details": {}}),
        ({"code": 77, "message": "m"}, {"code": 500, "message": "m", "details": {}}),
        ({"code": 4103, "message": "join again"}, {"code": 500, "message": "join again", "details": {}}),
        (
            {"code": 429, "message": "m", "details": {"quota": "calls", "retry_after_s": 0}},
            {"code": 429, "details": {"retry_after_s": 0}},
        ),
        ({"code": 503, "message": "m", "details": {"moving": True, "cut_off": True}}, {"code": 503, "details": {}}),
        ({"code": 4017, "message": "m", "details": {"a": 1}}, {"code": 4017, "message": "m", "details": {"a": 1}}),
        ({"code": 404, "message": LONG}, {"code": 500}),
        ({"code": 404, "message": "m", "details": {"a": LONG}}, {"code": 500}),
        ({"code": 401, "message": 4 * LONG}, {"code": 500}),
    ]

    async def refuse(_: str, __: Incoming) -> Reply:
        return Reply(orjson.dumps(said), headers)

    async def acknowledge(_: Any) -> dict[str, Any]:
        return said

    async with (
        gateway_world(nats_url) as world,
        connected(world.url) as anna,
        connected(world.url) as socket,
        world.computer(OFFICE, "box", refuse),
    ):
        await anna.join("agent", "anna", OFFICE)
        await socket.join("computer", "socket", OFFICE)
        events = ("client:tool_call", "client:get_tools")
        for event in events:
            socket.sio.on(event, acknowledge, namespace=NAMESPACE)
        for number, (said, heard) in enumerate(cases):  # noqa: B007 -- the Computers say it
            for event, computer in product(events, ("box", "socket")):
                answer = await anna.call(event, call(number) | {"computer": computer})
                assert answer.items() >= heard.items()
                assert len(orjson.dumps(answer)) < 1000


@pytest.mark.parametrize("extra", ["x" * 5000, "car", 5])
async def test_a_field_of_another_event_does_not_choose_the_computer(nats_url: str, extra: object) -> None:
    """A long one made a subject for which nats-server disconnected the gateway, with all of its offices."""
    message = {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "a://b"}}
    async with gateway_world(nats_url) as world, connected(world.url) as anna, world.computer(OFFICE, "box", echo):
        await anna.join("agent", "anna", OFFICE)
        asked = {"roomId": OFFICE, "computerId": "box", "computer": extra, "payload": message}
        assert (await anna.call("client:resources/read", asked))["verb"] == "resources_read"
        assert world.buses[0].connections == 1


@pytest.mark.rule("answers.large.values.result")
async def test_an_answer_of_too_many_values_is_413_and_is_not_read(nats_url: str) -> None:
    content: list[Any] = [[]] * 40_000

    async def answer(_: str, __: Incoming) -> Reply:
        return reply({"content": content})

    async def acknowledge(_: Any) -> dict[str, Any]:
        return {"content": content}

    async with (
        gateway_world(nats_url, settings={"max_values": 50_000}) as world,
        connected(world.url) as anna,
        connected(world.url) as socket,
        world.computer(OFFICE, "box", answer),
    ):
        await anna.join("agent", "anna", OFFICE)
        await socket.join("computer", "socket", OFFICE)
        for number, event in enumerate(("client:tool_call", "client:get_tools", "client:get_later")):
            socket.sio.on(event, acknowledge, namespace=NAMESPACE)
            for computer in ("box", "socket"):
                refused = await anna.call(event, call(number) | {"computer": computer})
                assert (refused["code"], refused["details"]["max_values"]) == (413, 50_000)
                assert refused["message"] == "the answer holds more than 50000 values"
        content = [[]] * 20_000
        assert await anna.call("client:tool_call", call(9) | {"computer": "socket"}) == {"content": content}


@pytest.mark.rule("answers.connect.max_values")
@pytest.mark.parametrize("text", ["short", "x" * 1_100_000])
async def test_a_client_gets_no_answer_of_more_values_than_it_says_that_it_reads(nats_url: str, text: str) -> None:
    result: dict[str, Any] = {"resources": [[]] * 20_000}
    said = {"content": [], "tools": [], "text": text, "payload": {"jsonrpc": "2.0", "id": 1, "result": result}}
    envelope: dict[str, Any] = {
        "roomId": OFFICE,
        "payload": {"jsonrpc": "2.0", "id": 1, "method": "resources/list"},
    }

    async def answer(_: str, __: Incoming) -> Reply:
        return reply(said)

    async def acknowledge(_: Any) -> dict[str, Any]:
        return said

    async with (
        gateway_world(nats_url) as world,
        connected(world.url) as socket,
        world.computer(OFFICE, "box", answer),
    ):
        await socket.join("computer", "socket", OFFICE)
        events = ("client:tool_call", "client:get_tools", "client:resources/list", "client:get_later")
        for event in events:
            socket.sio.on(event, acknowledge, namespace=NAMESPACE)
        named = [{"computer": name, "computerId": name} for name in ("box", "socket")]
        async with connected(world.url, auth={"max_values": 10_000}) as anna:
            await anna.join("agent", "anna", OFFICE)
            for number, (event, name) in enumerate(product(events, named)):
                refused = await anna.call(event, call(number) | envelope | name)
                assert (refused["code"], refused["details"]["max_values"]) == (413, 10_000), event
            skipped = []
            for _ in range(2):
                page = (await anna.call("client:resources/list", envelope))["payload"]["result"]
                envelope["payload"]["params"] = {"cursor": page.get("nextCursor")}
                skipped += page["meta"]["a2c_skipped"]
            assert skipped == ["box", "socket"]
            await anna.call("server:leave_office", {"office_id": OFFICE})
        async with connected(world.url, auth={"max_values": 50_000}) as bert:
            await bert.join("agent", "bert", OFFICE)
            for number, (event, name) in enumerate(product(events, named)):
                assert await bert.call(event, call(number) | envelope | name) == said, event


async def test_a_client_that_reads_any_number_of_values_gets_no_more_than_the_gateway_allows(nats_url: str) -> None:
    async def answer(_: str, __: Incoming) -> Reply:
        return reply({"content": [[]] * 40_000})

    async with (
        gateway_world(nats_url, settings={"max_values": 30_000}) as world,
        connected(world.url, auth={"max_values": 10**9}) as anna,
        world.computer(OFFICE, "box", answer),
    ):
        await anna.join("agent", "anna", OFFICE)
        assert (await ask(anna, call()))["details"]["max_values"] == 30_000


@pytest.mark.rule("answers.errors.500", "answers.calls.result.readable", "answers.errors.surrogates")
@pytest.mark.parametrize(
    "broken",
    [
        b"{", b"", b'{"a":1}]', b"\xff", b'{"a":1},{"b":2}', b'"\x1e"',
        rb'{"content":"a\ud800b \ud83d\ude00"}', b'{"content":"a\xed\xa0\x80b \\ud83d\\ude00"}',
    ],
)  # fmt: skip
async def test_an_answer_that_is_not_json_is_500_and_the_socket_stays_open(nats_url: str, broken: bytes) -> None:
    async def answer(verb: str, incoming: Incoming) -> Reply:
        return Reply(broken) if verb == "tool_call" else await echo(verb, incoming)

    async with gateway_world(nats_url) as world, connected(world.url) as anna, world.computer(OFFICE, "box", answer):
        await anna.join("agent", "anna", OFFICE)
        assert (await ask(anna, call()))["code"] == 500
        assert (await anna.call("client:get_tools", {"agent": "anna", "req_id": "1", "computer": "box"}))["verb"]


@pytest.mark.rule("answers.calls.result.readable")
@pytest.mark.parametrize("kinds", ["{", "[", "{["])
async def test_a_too_deeply_nested_answer_is_500(nats_url: str, kinds: str) -> None:
    def nested(depth: int) -> bytes:
        text = "1"
        for level in range(depth - 1):
            text = f'{{"a":{text}}}' if kinds[level % len(kinds)] == "{" else f"[{text}]"
        return f'{{"a":{text}}}'.encode()

    async def answer(verb: str, incoming: Incoming) -> Reply:
        return Reply(nested(orjson.loads(incoming.body)["depth"]))

    async with gateway_world(nats_url) as world, connected(world.url) as anna, world.computer(OFFICE, "box", answer):
        await anna.join("agent", "anna", OFFICE)
        for depth in (202, 1000, 1024, 5000):  # Python's reader takes some 950, and an Agent heard of no more
            refused = await anna.call("client:get_later", {"computer": "box", "depth": depth})
            assert refused["code"] == 500, depth
        assert await anna.call("client:get_later", {"computer": "box", "depth": 200}) == orjson.loads(nested(200))


@pytest.mark.rule("answers.errors.surrogates")
async def test_a_lone_surrogate_in_a_request_is_refused_naming_the_field(nats_url: str) -> None:
    async with gateway_world(nats_url) as world, connected(world.url) as anna, world.computer(OFFICE, "box", echo):
        await anna.join("agent", "anna", OFFICE)
        refused = await ask(anna, call(text="a\ud800b"))
        assert (refused["code"], refused["details"]["field"]) == (400, "params")
        assert (await ask(anna, call(1, text="ab")))["verb"] == "tool_call"


@pytest.mark.rule("answers.errors.408", "answers.calls.timeout.gateway", "answers.calls.timeout.all-cancel")
async def test_a_call_that_takes_too_long_is_408_on_time_and_is_cancelled(nats_url: str) -> None:
    release = asyncio.Event()

    async def hang(verb: str, _: Incoming) -> Reply:
        if verb == "tool_call":
            await release.wait()
        return reply({"unknown": []})

    async with (
        gateway_world(nats_url) as world,
        connected(world.url) as anna,
        world.computer(OFFICE, "box", hang) as box,
    ):
        cancelled: list[Any] = []

        async def heard(incoming: Incoming) -> None:
            cancelled.append(orjson.loads(incoming.body))

        await box.bus.listen("smcp.v1.office.notify.tool_call_cancel", heard)
        await anna.join("agent", "anna", OFFICE)
        watch = Stopwatch()
        answer = await ask(anna, call(7, timeout=1))
        assert answer["code"] == 408
        assert watch.took > 0.99
        assert watch.undisturbed < 5
        await eventually(lambda: cancelled == [{"agent": "anna", "req_id": "r7"}])
        release.set()


@pytest.mark.rule("answers.acks.cancel", "answers.calls.cancel.gateway")
async def test_a_cancelled_call_that_its_computer_does_not_settle_is_answered_as_cancelled(nats_url: str) -> None:
    async def stubborn(verb: str, _: Incoming) -> Reply:
        if verb == "tool_call":
            await asyncio.Event().wait()
        return reply({"unknown": []})

    async with gateway_world(nats_url) as world, connected(world.url) as anna, world.computer(OFFICE, "box", stubborn):
        await anna.join("agent", "anna", OFFICE)
        waiting = asyncio.create_task(ask(anna, call(3, timeout=60)))
        await eventually(lambda: len(world.gateways[0].calls) == 1)
        watch = Stopwatch()
        assert await anna.call("server:tool_call_cancel", {"agent": "anna", "req_id": "r3"}) is None
        answer = await waiting
        assert watch.took > 0.9
        assert watch.undisturbed < 4, "it had a second"
        assert answer["isError"] is True
        assert answer["meta"] == {"a2c_cancelled": True}
