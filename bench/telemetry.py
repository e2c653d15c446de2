"""What telemetry costs a gateway: CPU per relayed call, with everything off, metrics alone, and traces. And how long
`smcp trace` takes for one trace of 100,000, the process's start included.

Each kind is a system of its own, as in `call_relay`; the traces go to a receiver in another process. The measurements
are interleaved in changing order, and the ratio to "off" is taken within each turn: read the medians of the ratios.
"""

import argparse
import contextlib
import statistics
import subprocess
import sys
import time
import urllib.request
import uuid

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span
from rich.console import Console
from rich.table import Table

from bench.call_relay import measure, ours
from bench.processes import BIN, line_of, start


def run(runs: int, calls: int, concurrency: int) -> None:
    with contextlib.ExitStack() as stack:
        receiver = start(stack, sys.executable, "-m", "smcp_testing.otlp_receiver")
        traced = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{line_of(receiver)}"}
        ratio = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"}
        kinds = {
            "off": {"OTEL_SDK_DISABLED": "true"},
            "metrics alone": {},
            "1 trace in 100": traced | ratio,
            "every call traced": traced,
        }
        systems = [ours(stack, name, more=settings) for name, settings in kinds.items()]
        figures: dict[str, list[float]] = {name: [] for name in kinds}
        for turn in range(runs + 1):
            for system in systems[turn % 4 :] + systems[: turn % 4]:
                result = measure(system, 1024, concurrency, calls)
                if turn:  # the first turn warms up
                    figures[system.name].append(result["server_us"])
    table = Table(title=f"1 KB, {concurrency} at a time, {runs} runs of {calls} calls; CPU of the gateway per call")
    for column in ["telemetry", "CPU µs", "min-max", "÷ off", "min-max ÷ off"]:
        table.add_column(column, justify="right")
    for name, spent in figures.items():
        ratios = sorted(each / off for each, off in zip(spent, figures["off"], strict=True))
        table.add_row(
            name,
            f"{statistics.median(spent):.0f}",
            f"{min(spent):.0f}-{max(spent):.0f}",
            f"{statistics.median(ratios):.2f}",
            f"{ratios[0]:.2f}-{ratios[-1]:.2f}",
        )
    Console(width=110).print(table)


def find_one(traces: int, runs: int) -> None:
    with contextlib.ExitStack() as stack:
        receiver = start(stack, sys.executable, "-m", "smcp_testing.otlp_receiver")
        url = f"http://127.0.0.1:{line_of(receiver)}"
        ids = [uuid.uuid4() for _ in range(traces)]
        for first in range(0, traces, 5000):
            body = exported(ids[first : first + 5000])
            urllib.request.urlopen(urllib.request.Request(f"{url}/v1/traces", body, method="POST")).close()
        took = []
        for number in range(runs):
            began = time.perf_counter()
            subprocess.run(
                [BIN / "smcp", "trace", ids[number].hex, "--url", url], check=True, stdout=subprocess.DEVNULL
            )
            took.append(time.perf_counter() - began)
    sys.stdout.write(
        f"smcp trace, one of {traces}: {statistics.median(took):.2f} s ({min(took):.2f}-{max(took):.2f})\n"
    )


def exported(ids: list[uuid.UUID]) -> bytes:
    """An export of traces of four spans each, as of a call."""
    office = KeyValue(key="smcp.office", value=AnyValue(string_value="lab"))
    service = KeyValue(key="service.name", value=AnyValue(string_value="smcp-gateway"))
    spans = [
        Span(
            trace_id=trace.bytes,
            span_id=trace.bytes[:7] + bytes([number]),
            parent_span_id=trace.bytes[:7] + bytes([number - 1]) if number else b"",
            name=f"span {number}",
            kind=Span.SPAN_KIND_SERVER,
            attributes=[office, KeyValue(key="smcp.req_id", value=AnyValue(string_value=trace.hex))],
            start_time_unix_nano=time.time_ns(),
            end_time_unix_nano=time.time_ns() + 1_000_000,
        )
        for trace in ids
        for number in range(4)
    ]
    of_resource = ResourceSpans(resource=Resource(attributes=[service]), scope_spans=[ScopeSpans(spans=spans)])
    return bytes(ExportTraceServiceRequest(resource_spans=[of_resource]).SerializeToString())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--calls", type=int, default=4000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--traces", type=int, default=100_000)
    arguments = parser.parse_args()
    find_one(arguments.traces, arguments.runs)
    run(arguments.runs, arguments.calls, arguments.concurrency)
