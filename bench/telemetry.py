"""What telemetry costs a gateway: CPU per relayed call, with everything off, metrics alone, and traces.

Each kind is a system of its own, as in `call_relay`; the traces go to a receiver in another process. The measurements
are interleaved in changing order, and the ratio to "off" is taken within each turn: read the medians of the ratios.
"""

import argparse
import contextlib
import statistics
import sys

from rich.console import Console
from rich.table import Table

from bench.call_relay import measure, ours
from bench.processes import line_of, start


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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--calls", type=int, default=4000)
    parser.add_argument("--concurrency", type=int, default=64)
    arguments = parser.parse_args()
    run(arguments.runs, arguments.calls, arguments.concurrency)
