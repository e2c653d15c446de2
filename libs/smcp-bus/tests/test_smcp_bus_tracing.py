"""The spans of requests in one process; e2e tests have whole traces."""

import asyncio
import json
import re
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from smcp_bus import registry_contract, subjects, tracing
from smcp_bus.callers import Caller
from smcp_bus.dispatch import Answer, Call, Dispatcher, Tracing
from smcp_bus.headers import TRACEPARENT
from smcp_proto.catalog import CATALOG, trace_id
from smcp_proto.errors import NotFound
from smcp_proto.schemas import ToolCallReq

ALICE = Caller(role="agent", office="lab", name="alice")
REQ_ID = "0123456789abcdef0123456789abcdef"
PARENT = f"00-{'a' * 32}-{'b' * 16}-01"
SUBJECT = subjects.client("lab", "pc", "tool_call")
TEMPLATE = "smcp.v1.{office}.client.{computer}.tool_call"


def tool_call(**fields: Any) -> dict[str, Any]:
    call = {"agent": "alice", "req_id": REQ_ID, "computer": "pc", "tool_name": "echo", "params": {}, "timeout": 5}
    return call | fields


async def succeed(request: ToolCallReq, call: Call) -> Answer:
    return Answer(b'{"content":[]}')


async def dispatch(
    handler: Any, *, spans: Tracing | None, subject: str = "", headers: dict[str, str] | None = None, **fields: Any
) -> None:
    dispatcher = Dispatcher({"client:tool_call": handler}, tracing=spans)
    row = CATALOG["client:tool_call"]
    await dispatcher.dispatch(row, ALICE, tool_call(**fields), headers=headers or {}, subject=subject)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def call_of(payload: dict[str, Any], *, caller: Caller = ALICE, headers: dict[str, str] | None = None) -> Call:
    return Call(CATALOG["client:tool_call"], caller, payload["req_id"], 0.0, payload, headers=headers or {})


async def test_messages_sent_for_a_request_are_child_spans_with_its_ids(exported: InMemorySpanExporter) -> None:
    carried: dict[str, str] = {}

    async def ask(request: ToolCallReq, call: Call) -> Answer:
        with tracing.sending(SUBJECT) as headers:
            carried.update(headers)
        return await succeed(request, call)

    await dispatch(ask, spans=tracing.client_spans())
    send, served = exported.get_finished_spans()
    assert (served.name, served.kind) == ("client:tool_call", SpanKind.SERVER)
    assert (send.name, send.kind) == (f"send {TEMPLATE}", SpanKind.PRODUCER)
    assert send.parent is not None
    assert served.context is not None
    assert send.parent.span_id == served.context.span_id
    assert send.context is not None
    assert carried[TRACEPARENT].split("-")[1:3] == [f"{send.context.trace_id:032x}", f"{send.context.span_id:016x}"]
    for span in (send, served):
        assert {("smcp.req_id", REQ_ID), ("smcp.office", "lab")} <= attributes(span).items()

    exported.clear()
    await dispatch(succeed, spans=tracing.bus_spans(), subject=SUBJECT, headers=carried)
    (processed,) = exported.get_finished_spans()
    assert (processed.name, processed.kind) == (f"process {TEMPLATE}", SpanKind.CONSUMER)
    assert processed.parent is not None
    assert processed.parent.span_id == send.context.span_id
    assert attributes(processed)["messaging.consumer.group.name"] == "owner"


async def test_messages_sent_for_no_request_are_not_recorded(exported: InMemorySpanExporter) -> None:
    with tracing.sending(SUBJECT) as headers:
        assert not headers
    dispatcher = Dispatcher({}, tracing=tracing.bus_spans())
    await dispatcher.dispatch(
        registry_contract.PENDING, ALICE, {"calls": []}, subject=subjects.client("lab", "pc", "pending")
    )
    assert not exported.get_finished_spans()


async def test_a_request_does_not_inherit_the_trace_of_its_task(exported: InMemorySpanExporter) -> None:
    with trace.get_tracer("x").start_as_current_span("of another request"):
        await dispatch(succeed, spans=tracing.bus_spans(), subject=SUBJECT)
    (processed,) = exported.get_finished_spans()
    assert processed.parent is None


@pytest.mark.parametrize(
    ("result", "error_type"),
    [
        ({"isError": False, "content": []}, None),
        ({"content": [{"text": '"isError":true'}], "structuredContent": {"isError": True}}, None),
        ({"isError": True, "content": []}, "tool_error"),
        ({"isError": True, "meta": None}, "tool_error"),
        ({"isError": True, "meta": {"a2c_timeout": True}}, "timeout"),
        ({"isError": True, "meta": {"a2c_cancelled": True}}, "cancelled"),
        ({"isError": True, "meta": {"a2c_input_required": {"requests": {}, "state": "s"}}}, None),
    ],
)
async def test_a_tool_that_failed_marks_the_span_of_its_call(
    exported: InMemorySpanExporter, result: dict[str, Any], error_type: str | None
) -> None:
    async def answer(request: ToolCallReq, call: Call) -> Answer:
        return Answer(json.dumps(result).encode())

    await dispatch(answer, spans=tracing.client_spans())
    (span,) = exported.get_finished_spans()
    assert attributes(span).get("error.type") == error_type
    assert (span.status.status_code is StatusCode.ERROR) is (error_type is not None)


async def test_refusals_errors_and_lost_clients_mark_the_span_without_texts(exported: InMemorySpanExporter) -> None:
    async def not_found(request: ToolCallReq, call: Call) -> None:
        with tracing.sending(SUBJECT):
            raise NotFound("secret")

    async def gone(request: ToolCallReq, call: Call) -> None:
        raise asyncio.CancelledError

    await dispatch(not_found, spans=tracing.client_spans())
    await dispatch(succeed, spans=tracing.client_spans(), timeout="soon")
    with pytest.raises(asyncio.CancelledError):
        await dispatch(gone, spans=tracing.client_spans())
    spans = exported.get_finished_spans()
    assert [attributes(span)["error.type"] for span in spans] == ["404", "404", "400", "cancelled"]
    assert all(span.status.status_code is StatusCode.ERROR and not span.events for span in spans)
    assert "secret" not in "".join(span.to_json() for span in spans)


async def test_a_long_tool_name_is_truncated_and_a_req_id_that_is_none_gets_one_of_ours(
    exported: InMemorySpanExporter,
) -> None:
    await dispatch(succeed, spans=tracing.client_spans(), req_id="x" * 1000, tool_name="y" * 1000)
    (span,) = exported.get_finished_spans()
    assert len(attributes(span)["gen_ai.tool.name"]) == tracing.LONGEST
    assert re.fullmatch(r"[0-9a-f]{32}", attributes(span)["smcp.req_id"])


@pytest.mark.rule("answers.traces.traceparent.unreadable")
def test_the_trace_of_a_request_is_known_without_recording_it() -> None:
    plain = call_of(tool_call())
    assert tracing.trace_id_of(plain) == int(REQ_ID, 16)
    named = call_of(tool_call(req_id="r-1"))
    assert tracing.trace_id_of(named) == trace_id("lab", "alice", "r-1")
    assert tracing.trace_id_of(call_of(tool_call(traceparent=PARENT))) == int("a" * 32, 16)
    assert tracing.trace_id_of(call_of(tool_call(traceparent="nonsense"))) == int(REQ_ID, 16)
    other = {TRACEPARENT: PARENT.replace("a", "c")}
    assert tracing.trace_id_of(call_of(tool_call(traceparent=PARENT), headers=other)) == int("c" * 32, 16)


def test_a_joins_spans_carry_the_requested_office_on_both_sides() -> None:
    payload = {"role": "agent", "name": "alice", "office_id": "lab", "req_id": "r-1"}
    at_the_gateway = call_of(payload, caller=Caller(role=None))
    at_the_registry = call_of(payload, caller=ALICE)
    assert tracing.office_of(at_the_gateway) == tracing.office_of(at_the_registry) == "lab"
    assert (
        tracing.trace_id_of(at_the_gateway) == tracing.trace_id_of(at_the_registry) == trace_id("lab", "alice", "r-1")
    )


@pytest.mark.parametrize(
    ("subject", "template", "queue"),
    [
        (subjects.client("北京", "a.b", "get_tools"), "smcp.v1.{office}.client.{computer}.get_tools", "owner"),
        (subjects.server("x", "agent", "y", "find"), "smcp.v1.{office}.server.agent.{name}.find", "registry"),
        (subjects.notify("x", "update_config"), "smcp.v1.{office}.notify.update_config", ""),
        (subjects.hosts("x", "y", "lease"), "smcp.hosts.v1.{credential}.{process}.lease", "registry"),
        (subjects.hosts("x", "y", "gateway_lease"), "smcp.hosts.v1.{credential}.{process}.gateway_lease", "registry"),
        (subjects.hosts("x", "y", "alive"), "smcp.hosts.v1.{credential}.{process}.alive", ""),
        (subjects.operators("x", "room"), "smcp.operators.v1.{credential}.room", "registry"),
        ("something.else", "something.else", ""),
        ("smcp.v1.x.client", "smcp.v1.x.client", ""),
    ],
)
def test_a_subjects_template_has_no_names_in_it(subject: str, template: str, queue: str) -> None:
    assert subjects.destination(subject) == (template, queue)


def test_no_span_is_opened_without_a_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    assert tracing.client_spans() is tracing.bus_spans() is None


@pytest.mark.parametrize("authenticated", [False, True])
async def test_a_clients_sampled_flag_counts_only_with_a_token(
    exported: InMemorySpanExporter, authenticated: bool
) -> None:
    dispatcher = Dispatcher({"client:tool_call": succeed}, tracing=tracing.client_spans())
    caller = Caller(role="agent", office="lab", name="alice", authenticated=authenticated)
    for flag in ("00", "01"):
        await dispatcher.dispatch(
            CATALOG["client:tool_call"], caller, tool_call(traceparent=PARENT.removesuffix("01") + flag)
        )
    spans = exported.get_finished_spans()
    assert len(spans) == (1 if authenticated else 2)
    assert {f"{span.context.trace_id:032x}" for span in spans if span.context} == {"a" * 32}


async def test_the_trace_of_a_recorded_request_is_given_to_its_metrics(exported: InMemorySpanExporter) -> None:
    ended: list[tuple[float | str, ...]] = []

    def add(seconds: float, *values: str, trace_id: str) -> None:
        ended.append((*values, trace_id))

    for spans in (tracing.client_spans(), None):
        dispatcher = Dispatcher({"client:tool_call": succeed}, tracing=spans, ended=tracing.counted(add))
        await dispatcher.dispatch(CATALOG["client:tool_call"], ALICE, tool_call())
    (span,) = exported.get_finished_spans()
    assert span.context is not None
    recorded = f"{span.context.trace_id:032x}"
    assert ended == [("client:tool_call", "ok", recorded), ("client:tool_call", "ok", "")]
