"""What the gateway records of requests, and that their traces and metrics say the same."""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import orjson
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from smcp_bus.audit import NOT_WRITTEN, Batch, Sink, Trail, sha256
from smcp_bus.dispatch import Answer, Call, Dispatcher, failed
from smcp_bus.limits import Rate
from smcp_gateway.app import Gateway
from smcp_gateway.audit import CALL, Audit, LeftMeanwhile
from smcp_gateway.sockets.engine import SendQueue
from smcp_gateway.sockets.packet import Frame
from smcp_gateway.sockets.session import Session, Sessions
from smcp_proto.catalog import CATALOG
from smcp_proto.errors import NOT_A_MEMBER, REQUEST_TOO_LARGE, NotAuthenticated, NotInOffice, SmcpError, error_of
from smcp_testing.exported_spans import exported_spans
from smcp_testing.gateway_world import MIB, NAMESPACE, connected, gateway_world
from smcp_testing.scraping import scraped
from smcp_testing.socketio_pair import BOX, OFFICE, couple, echo, hang, query, serve
from smcp_testing.socketio_pair import call as call_of
from smcp_testing.waiting import eventually


class SentWithTheRound(Sink):
    """A sink whose records leave when this round of the loop ends, as those of NATS do."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def later(self, leave: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(leave)

    def send(self, batch: Batch) -> None:
        self.order.append("record")


def recorded(gateway: Gateway) -> "Kept":
    """From now on, with the audit on."""
    sink = Kept()
    gateway._audit.trail = Trail(logging.getLogger("test"), open_sink=lambda _: sink)
    return sink


class Kept(Sink):
    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def send(self, batch: Batch) -> None:
        self.records.append(json.loads(batch.body))


class Full(Sink):
    """A sink that takes nothing."""

    def __init__(self, trail: Trail) -> None:
        self.trail = trail

    def send(self, batch: Batch) -> None:
        asyncio.get_running_loop().call_soon(self.trail.refused, batch.number, "full")


def opened(*, required: bool = False, flat_errors: bool = True) -> tuple[Audit, Kept, Session, Sessions]:
    sink, sessions = Kept(), Sessions()
    session = Session("s1", "e1", flat_errors=flat_errors, address="192.0.2.1", role="agent", name="eve")
    sessions.add(session)
    trail = Trail(logging.getLogger("test"), open_sink=lambda _: sink, required=required)
    return Audit(trail, sessions), sink, session, sessions


def call(session: Session, tool: str = "echo", event: str = CALL) -> Call:
    payload = {"agent": "eve", "req_id": "r1", "computer": "pc", "tool_name": tool, "params": {"a": 1}}
    return Call(CATALOG[event], session.caller(), "r1", asyncio.get_running_loop().time() + 5, payload)


async def test_a_call_that_is_broken_off_is_recorded_although_its_client_is_gone() -> None:
    audit, sink, session, sessions = opened()
    broken_off = call(session)
    sessions.remove(session.id)
    audit.concluded(broken_off, None, 1.0, 10)
    [record] = sink.records
    assert (record["outcome"], record["address"]) == ("broken_off", "192.0.2.1")


@pytest.mark.parametrize("gateway", [0, 1])
async def test_an_agent_that_comes_back_and_does_not_repeat_its_call_hides_nothing(nats_url: str, gateway: int) -> None:
    async with couple(nats_url, 2) as pair:
        sink = recorded(pair.world.gateways[0])
        asked = serve(pair.box, CALL, hang(pair.box))
        await pair.anna.sio.emit(CALL, call_of(timeout=2), namespace=NAMESPACE)
        await eventually(lambda: len(asked) == 1)
        pair.anna.sio.eio.ws._response.connection.transport.abort()
        async with connected(pair.world.gateways[gateway].url) as again:

            async def is_back() -> bool:
                joined: bool = (await again.join("agent", "anna", OFFICE))[0]
                return joined

            await eventually(is_back)
        calls = await eventually(lambda: [record for record in sink.records if record["kind"] == "call"])
        assert [(record["req_id"], record["outcome"]) for record in calls] == [("r0", "broken_off")]


async def test_the_record_of_a_repeat_says_that_it_is_one() -> None:
    audit, sink, session, _ = opened()
    first = call(session)
    for each in (first, replace(first, payload={**first.payload, "a2c_repeat": 300})):
        audit.concluded(each, Answer(b"{}"), 1.0, 10)
    assert [record.get("event") for record in sink.records] == [None, "repeat"]


async def test_a_call_that_could_not_be_recorded_is_answered_with_an_error_and_another_one_as_it_ended() -> None:
    audit, sink, session, _ = opened(required=True)
    waiting = audit.concluded(call(session), Answer(b"{}"), 1.0, 10)
    assert waiting is not None
    audit.trail.refused(1, "no answer in time")
    assert NOT_WRITTEN in orjson.loads((await waiting).body)["message"]
    other = audit.concluded(call(session, tool="delete_file"), Answer(b"{}"), 1.0, 10)
    assert other is not None
    audit.trail.taken(2)
    assert await other == Answer(b"{}")
    assert [record["tool"] for record in sink.records] == ["echo", "delete_file"]


async def test_what_a_member_had_asked_when_it_left_is_no_refusal() -> None:
    audit, sink, session, _ = opened()
    left = LeftMeanwhile()
    for error in (left, NotInOffice(left.message), NotInOffice(NOT_A_MEMBER)):

        async def raising(request: object, call: Call, error: SmcpError = error) -> Answer:
            raise error

        asked = call(session, event="client:get_tools")
        await Dispatcher({"client:get_tools": raising}, conclude=audit.concluded).dispatch(
            asked.row, replace(asked.caller, office="lab"), asked.payload
        )
    assert [record["why"] for record in sink.records] == [left.message, NOT_A_MEMBER]


@pytest.mark.parametrize("code", [403, 404, 413, 429, 503, 4103])
async def test_an_error_after_a_call_was_sent_is_an_outcome_and_one_before_is_a_refusal(code: int) -> None:
    audit, sink, session, _ = opened()
    error = error_of(code, REQUEST_TOO_LARGE, {})
    for sent in (True, False):
        audit.concluded(replace(call(session), sent=sent), failed(error.body()), 0.1, 10)
    assert [(record["kind"], record["outcome"]) for record in sink.records] == [
        ("call", str(code)),
        ("refusal", str(code)),
    ]


async def test_clients_that_are_not_let_in_cannot_fill_the_trail(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)
    audit, sink, _, _ = opened()
    for _ in range(257):
        audit.not_connected("192.0.2.9", NotAuthenticated("wrong"))
    assert len(sink.records) == 250
    now += 6
    for _ in range(3):
        audit.not_connected("192.0.2.9", NotAuthenticated("wrong"))
    await audit.trail.close(0)
    assert [record["why"] for record in sink.records[250:]] == [
        "7 refusals before it are not recorded; wrong",
        "1 refusals before it are not recorded; wrong",
    ]


async def test_a_member_cannot_fill_the_trail_with_refusals(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smcp_bus.audit.REFUSAL_RATE", Rate(1 / 3600, 10 * 3600))
    async with couple(nats_url, 1) as pair, connected(pair.owner.url) as bob:
        sink = recorded(pair.owner)
        assert await bob.join("agent", "bob", "elsewhere") == [True, None]
        for number in range(20):
            assert (await pair.anna.call("client:no_such!", {"computer": "x" * 300}))["code"] == 400
            assert (await pair.anna.call(CALL, {"req_id": f"r{number}", "timeout": 0}))["code"] == 400
            assert (await pair.anna.call("server:join_office", {"office_id": f"office {number}"}))[0] is False
        assert (await bob.call("client:no_such!", {}))["code"] == 400
        refusals = [record for record in sink.records if record["kind"] == "refusal"]
        assert [record["name"] for record in refusals] == ["anna"] * 10 + ["bob"]


async def test_an_answer_goes_out_when_its_record_has_left(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = SentWithTheRound()
    async with gateway_world(nats_url) as world, connected(world.url) as client:
        world.gateways[0]._audit.trail = Trail(logging.getLogger("test"), open_sink=lambda _: sink)
        put = SendQueue.put_nowait

        def put_and_noted(send_queue: SendQueue, item: Any) -> None:
            if isinstance(item, Frame):
                sink.order.append("answer")
            put(send_queue, item)

        monkeypatch.setattr(SendQueue, "put_nowait", put_and_noted)
        assert (await client.call("server:none", {}))["code"] == 400
        assert (await client.call("client:get_tools", {}))["code"] == 400
        monkeypatch.undo()
    assert sink.order[:4] == ["record", "answer"] * 2


FAILED_ONLY = {
    "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
    "OTEL_TRACES_SAMPLER_ARG": "0",
}
REQ_ID = "c0ffee" + "0" * 26


@pytest.fixture
def failed_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """A process of whose requests those that fail are traced."""
    with exported_spans(monkeypatch, FAILED_ONLY) as exporter:
        yield exporter


def error_types(exporter: InMemorySpanExporter, event: str) -> list[Any]:
    """Of a gateway's spans for an event of a client."""
    return [dict(span.attributes or {}).get("error.type") for span in spans_of(exporter, event)]


def spans_of(exporter: InMemorySpanExporter, event: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == event]


async def outcomes(health_url: str, event: str) -> dict[str, float]:
    """Of `smcp_gateway_call_duration_seconds`."""
    return {
        dict(labels)["outcome"]: value
        for (name, labels), value in (await scraped(health_url)).items()
        if name == "smcp_gateway_call_duration_seconds_count" and dict(labels)["event"] == event
    }


@pytest.mark.parametrize("size", [100, 70_000, 1_500_000, 9_000_000])
async def test_a_failed_tool_is_one_whatever_the_size_of_its_result(
    nats_url: str, failed_only: InMemorySpanExporter, size: int
) -> None:
    async with couple(nats_url, auth={"max_message": 16 * MIB}, take=17 * MIB) as pair:
        sink = recorded(pair.world.gateways[0])

        async def answer(request: dict[str, Any]) -> Any:
            failed = request["params"]["fails"]
            inner = {"results": [{"isError": not failed}]}
            return {"content": [{"type": "text", "text": "x" * size}], "isError": failed, "structuredContent": inner}

        serve(pair.box, CALL, answer)
        for number, fails in enumerate((True, False)):
            assert (await pair.anna.call(CALL, call_of(number, fails=fails)))["isError"] is fails
        assert [record["outcome"] for record in sink.records] == ["tool_error", "ok"]
        assert error_types(failed_only, CALL) == ["tool_error"]
        consumers = [span for span in failed_only.get_finished_spans() if span.name.startswith("process ")]
        assert len(consumers) == (size < 8 * MIB)


async def test_a_result_that_its_agent_does_not_take_is_413_in_its_record_its_trace_and_the_metrics(
    nats_url: str, failed_only: InMemorySpanExporter
) -> None:
    async with couple(nats_url, 1) as pair:
        sink = recorded(pair.owner)

        async def large(_: dict[str, Any]) -> Any:
            return {"content": [{"type": "text", "text": "x" * 5_000_000}], "isError": False, "tools": []}

        for event, request, kind in (
            (CALL, call_of(), "call"),
            ("client:get_tools", query(BOX), "refusal"),
        ):
            serve(pair.box, event, large)
            assert (await pair.anna.call(event, request))["code"] == 413
            assert (sink.records[-1]["kind"], sink.records[-1]["outcome"]) == (kind, "413")
            assert error_types(failed_only, event) == ["413"]
            assert await outcomes(pair.world.health_url, event) == {"413": 1}


async def test_a_result_for_an_agent_that_reads_none_is_503_in_its_record_and_its_trace(
    nats_url: str, failed_only: InMemorySpanExporter
) -> None:
    async with couple(nats_url, 1) as pair:
        sink = recorded(pair.owner)

        async def large(_: dict[str, Any]) -> Any:
            return {"content": [{"type": "text", "text": "x" * 100_000}], "isError": False}

        serve(pair.box, CALL, large)
        [agent] = [session for session in pair.owner.sessions if session.role == "agent"]
        agent.max_reply_bytes = 50_000
        assert (await pair.anna.call(CALL, call_of()))["code"] == 503
        assert sink.records[-1]["outcome"] == "503"
        assert error_types(failed_only, CALL) == ["503"]


async def test_a_call_that_could_not_be_recorded_has_a_trace_that_says_so(
    nats_url: str, failed_only: InMemorySpanExporter
) -> None:
    async with couple(nats_url, 1) as pair:

        async def done(_: dict[str, Any]) -> Any:
            return {"content": [], "isError": False}

        pair.owner._audit.trail = Trail(logging.getLogger("test"), open_sink=Full, required=True)
        serve(pair.box, CALL, done)
        assert (await pair.anna.call(CALL, call_of()))["code"] == 503
        assert error_types(failed_only, CALL) == ["503"]
        assert await outcomes(pair.world.health_url, CALL) == {"503": 1}


async def test_a_request_that_is_refused_unread_has_a_record_a_trace_and_a_place_in_the_metrics(
    nats_url: str, failed_only: InMemorySpanExporter
) -> None:
    async with couple(
        nats_url, 1, max_payload=4 * MIB, settings={"quota_calls_per_s": 0.01, "quota_burst_s": 400.0}
    ) as pair:
        sink = recorded(pair.owner)
        large = {**call_of(), "req_id": REQ_ID, "params": {"text": "x" * 1_200_000}}
        assert (await pair.anna.call(CALL, large))["code"] == 413
        assert (await pair.anna.call("client:no such!", {"req_id": REQ_ID}))["code"] == 400

        async def is_above_its_quota() -> bool:
            answer: dict[str, Any] = await pair.anna.call("client:get_tools", {**query(BOX), "req_id": REQ_ID})
            return bool(answer["code"] == 429)

        await eventually(is_above_its_quota)
        refused = {record["event"]: record for record in sink.records if record["outcome"] in ("400", "413", "429")}
        spans = {CALL: CALL, "client:no such!": "other", "client:get_tools": "client:get_tools"}
        for (event, name), code in zip(spans.items(), ("413", "400", "429"), strict=True):
            assert refused[event]["outcome"] == code
            assert (refused[event]["req_id"], refused[event]["trace_id"]) == (REQ_ID, REQ_ID)
            assert code in error_types(failed_only, name)
            assert (await outcomes(pair.world.health_url, name))[code] == 1
        assert {f"{span.context.trace_id:032x}" for span in failed_only.get_finished_spans() if span.context} == {
            REQ_ID
        }
        assert refused[CALL]["request_bytes"] > 1_200_000
        assert (refused[CALL]["computer"], refused[CALL]["tool"]) == (BOX, "t")


async def test_the_record_of_a_call_says_from_where_it_came_where_it_went_and_how_large_it_was(nats_url: str) -> None:
    async with couple(nats_url, 1) as pair:
        sink = recorded(pair.owner)
        serve(pair.box, CALL, echo)
        assert "echo" in await pair.anna.call(CALL, {**call_of(7, text="a secret"), "req_id": REQ_ID})
        [record] = sink.records
    assert {name: record[name] for name in ("kind", "outcome", "office", "role", "name", "computer", "tool")} == {
        "kind": "call",
        "outcome": "ok",
        "office": OFFICE,
        "role": "agent",
        "name": "anna",
        "computer": BOX,
        "tool": "t",
    }
    assert (record["req_id"], record["trace_id"], record["address"]) == (REQ_ID, REQ_ID, "127.0.0.1")
    assert record["args_sha256"] == sha256(b'{"text":"a secret"}')
    assert min(record["ms"], record["request_bytes"], record["reply_bytes"]) > 0
    assert "a secret" not in str(record)


async def test_each_join_cancel_and_leave_of_a_client_has_one_record_with_its_office_and_outcome(nats_url: str) -> None:
    async with gateway_world(nats_url) as world, connected(world.url) as anna:
        sink = recorded(world.gateways[0])
        async with connected(world.url) as box:
            for office in ("lab", "lab", "cafe\u0301"):
                assert await box.join("computer", "box", office) == [True, None]
        assert await anna.join("agent", "anna", "lab") == [True, None]
        await anna.call("server:tool_call_cancel", {"agent": "anna", "req_id": "r1"})
        assert await anna.call("server:leave_office", {"office_id": "lab"}) == [True, None]
        await eventually(lambda: len(sink.records) >= 8)
    said = [tuple(each[field] for field in ("name", "office", "kind", "outcome")) for each in sink.records]
    assert sorted(said) == sorted(
        [
            ("box", "lab", "join", "ok"),
            ("box", "lab", "join", "unchanged"),
            ("box", "lab", "leave", "ok"),
            ("box", "caf\u00e9", "join", "ok"),
            ("box", "caf\u00e9", "leave", "disconnected"),
            ("anna", "lab", "join", "ok"),
            ("anna", "lab", "cancel", "ok"),
            ("anna", "lab", "leave", "ok"),
        ]
    )
    assert {each["address"] for each in sink.records} == {"127.0.0.1"}
    assert [each["req_id"] for each in sink.records if each["kind"] == "cancel"] == ["r1"]


async def test_a_leave_is_recorded_with_the_trace_of_its_request(nats_url: str) -> None:
    async with couple(nats_url, 1) as pair:
        sink = recorded(pair.owner)
        assert await pair.anna.call("server:leave_office", {"office_id": OFFICE, "req_id": REQ_ID}) == [True, None]
        [left] = sink.records
        assert (left["kind"], left["req_id"], left["trace_id"]) == ("leave", REQ_ID, REQ_ID)
