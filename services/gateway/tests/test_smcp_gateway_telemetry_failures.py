"""Traces, logs and metrics never replace an answer, whatever stands in the headers and fields of a request."""

import io
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from smcp_bus import subjects
from smcp_bus.callers import Caller
from smcp_bus.dispatch import Answer, Call, Dispatcher
from smcp_bus.tracing import bus_spans, client_spans, counted, log_fields, read_span_context
from smcp_proto.catalog import CATALOG
from smcp_proto.schemas import ToolCallReq
from smcp_service.logging import configure_logging
from smcp_testing.box_calls import call

TOOL_CALL: Final = CATALOG["client:tool_call"]
ANNA: Final = Caller(role="agent", office="lab", name="anna")
SUBJECT: Final = subjects.client("lab", "box", "tool_call")
PARENT: Final = f"00-{'a' * 32}-{'b' * 16}-01"
RESULT: Final = b'{"content":[]}'
shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

ODD = st.text(max_size=600) | st.sampled_from(["", "x" * 513, "x" * 70_000, "\x1b[2J", "a\nb", "\x00", "\ud800"])
PARENTS = (
    ODD
    | st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.{0,500})?", fullmatch=True)
    | st.tuples(st.text(max_size=3), st.just(PARENT), st.text(max_size=600)).map("".join)
)
STATES = ODD | st.from_regex(r"([a-z0-9@]{1,4}=[ -~]{0,20},){0,40}[a-z]=1", fullmatch=True)


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level, stream = list(root.handlers), root.level, io.StringIO()
    configure_logging("gateway", stream=stream)
    yield stream
    root.handlers, root.level = handlers, level
    logging.captureWarnings(capture=False)


async def run(request: ToolCallReq, _: Call) -> Answer:
    logging.getLogger("computer").info("tool call")
    return Answer(RESULT)


@shared
@given(parent=PARENTS, header=st.none() | PARENTS, state=STATES, spans=st.sampled_from([client_spans, bus_spans]))
@example(parent="x" * 513, header=None, state="", spans=client_spans)
@example(parent="", header=PARENT, state="x" * 513, spans=bus_spans)
@example(parent="", header=PARENT, state="a=1,a=2", spans=bus_spans)
async def test_no_trace_context_replaces_an_answer_or_loses_its_log_line(
    log: io.StringIO,
    exported: InMemorySpanExporter,
    parent: str,
    header: str | None,
    state: str,
    spans: Callable[[], Any],
) -> None:
    log.truncate(log.seek(0))
    dispatcher = Dispatcher({TOOL_CALL.event: run}, tracing=spans(), observe=log_fields)
    headers = {"tracestate": state} | ({} if header is None else {"traceparent": header})
    body = call(7) | {"traceparent": parent}
    answer = await dispatcher.dispatch(TOOL_CALL, ANNA, body, headers=headers, subject=SUBJECT)
    assert answer == Answer(RESULT)
    (line,) = map(json.loads, log.getvalue().splitlines())
    assert (line["event"], line["req_id"], line["office"]) == ("tool call", "r7", "lab")


@shared
@given(fields=st.dictionaries(st.sampled_from(sorted(call())) | ODD, ODD | st.integers() | st.none()), header=ODD)
async def test_any_field_and_header_gets_an_answer_of_its_own(
    log: io.StringIO, exported: InMemorySpanExporter, fields: dict[str, Any], header: str
) -> None:
    seen: list[str] = []
    dispatcher = Dispatcher(
        {TOOL_CALL.event: run},
        tracing=bus_spans(),
        observe=log_fields,
        ended=counted(lambda seconds, *values, trace_id: seen.append(values[1])),
    )
    answer = await dispatcher.dispatch(
        TOOL_CALL, ANNA, call() | fields, headers={"Smcp-Req-Id": header}, subject=SUBJECT
    )
    assert seen == ["ok" if answer.error is None else str(answer.error)]
    assert answer.error in {None, 400, 403}


def test_a_known_trace_context_is_read() -> None:
    read = read_span_context(PARENT, "vendor=one, tenant@other=two")
    assert read is not None
    assert (f"{read.trace_id:032x}", f"{read.span_id:016x}", read.trace_flags) == ("a" * 32, "b" * 16, 1)
    assert read.trace_state.to_header() == "vendor=one,tenant@other=two"
    assert read_span_context(f"cc{PARENT[2:]}-later") is not None
    for wrong in (f"{PARENT}-later", f"ff{PARENT[2:]}", PARENT.replace("a", "0"), PARENT.upper()):
        assert read_span_context(wrong) is None


@contextmanager
def failing(*, first: bool) -> Iterator[Callable[[Answer], None]]:
    if first:
        raise RuntimeError
    yield lambda answer: None
    raise RuntimeError


def broken(*_: object) -> None:
    raise RuntimeError


@contextmanager
def unrecorded() -> Iterator[Callable[[Answer], None]]:
    yield broken


@pytest.mark.parametrize(
    "options",
    [
        {"observe": lambda call: failing(first=True)},
        {"observe": lambda call: failing(first=False)},
        {"tracing": lambda call: failing(first=True)},
        {"tracing": lambda call: failing(first=False)},
        {"tracing": lambda call: unrecorded()},
        {"tracing": broken},
        {"observe": broken},
        {"ended": broken},
    ],
)
async def test_a_tool_runs_once_and_its_answer_arrives_where_telemetry_fails(options: dict[str, Any]) -> None:
    ran = 0

    async def count(request: ToolCallReq, _: Call) -> Answer:
        nonlocal ran
        ran += 1
        return Answer(RESULT)

    answer = await Dispatcher({TOOL_CALL.event: count}, **options).dispatch(TOOL_CALL, ANNA, call())
    assert (answer, ran) == (Answer(RESULT), 1)
