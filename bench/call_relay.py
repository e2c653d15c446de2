"""Relayed `client:tool_call`s: our gateway, the published server, and a bare Socket.IO echo as the floor.

Each is a process of its own, with 16 offices; the measurements are interleaved, and each figure is the median of the
runs. Server CPU is user + system time of the server's process per call (for ours: of the gateway; NATS is shown beside
it). The machine is shared and noisy: read the ratios, not the absolute figures.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

import psutil
from rich.console import Console
from rich.table import Table

from bench import published_env
from bench.processes import BIN, cpu_of_one, line_of, services_env, start, start_nats, wait_until_ready

OFFICES = 16
KINDS = [(1024, 1), (1024, 64), (65536, 1), (65536, 64)]


@dataclass
class System:
    """`servers`: what is compared, one process or several; `nats` is shown beside them."""

    name: str
    servers: list[psutil.Process]
    load: subprocess.Popen[str]
    nats: list[psutil.Process] = field(default_factory=list)


def load(stack: contextlib.ExitStack, url: str) -> subprocess.Popen[str]:
    process = start(stack, sys.executable, "-m", "bench.load", "--url", url, "--offices", str(OFFICES))
    line_of(process, "ready")
    return process


def echo(stack: contextlib.ExitStack) -> System:
    server = start(stack, sys.executable, "-m", "bench.servers.echo")
    return System("bare echo", [psutil.Process(server.pid)], load(stack, f"http://127.0.0.1:{line_of(server)}"))


def published(stack: contextlib.ExitStack) -> System:
    script = Path(__file__).parent / "servers" / "published.py"
    server = start(stack, published_env.python(), script, env={"A2C_SMCP_LOG_SILENT": "1"})
    url = f"http://127.0.0.1:{line_of(server)}"
    computers = start(stack, sys.executable, "-m", "bench.computers", "--url", url, "--on", "socketio")
    line_of(computers, "ready")
    return System("published", [psutil.Process(server.pid)], load(stack, url))


def ours(
    stack: contextlib.ExitStack, name: str, on: str = "nats", gateways: int = 1, more: Mapping[str, str] | None = None
) -> System:
    """Agents are on the first gateway, Computers on Socket.IO on the last one. `more`: settings of the services."""
    ports = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    nats, url = start_nats(stack, ports)
    env = services_env(url)
    start(stack, BIN / "smcp-registry", env={**env, **(more or {})})
    replicas = [start(stack, BIN / "smcp-gateway", env={**env, **(more or {})}) for _ in range(gateways)]
    urls = [line_of(replica, "http://").split()[-1] for replica in replicas]
    for each in urls:
        wait_until_ready(each)
    where = url if on == "nats" else urls[-1]
    computers = start(stack, sys.executable, "-m", "bench.computers", "--url", where, "--on", on)
    line_of(computers, "ready")
    servers = [psutil.Process(replica.pid) for replica in replicas]
    return System(name, servers, load(stack, urls[0]), [psutil.Process(nats.pid)])


def cpu(processes: list[psutil.Process]) -> float:
    """Seconds on a CPU, of all together, over all threads."""
    return sum(map(cpu_of_one, processes))


def measure(system: System, size: int, concurrency: int, calls: int) -> dict[str, float]:
    before = cpu(system.servers), cpu(system.nats)
    stdin = cast("IO[str]", system.load.stdin)
    stdin.write(json.dumps({"concurrency": concurrency, "size": size, "calls": calls}) + "\n")
    stdin.flush()
    result: dict[str, float] = json.loads(line_of(system.load, "{"))
    for what, processes, began in (("server", system.servers, before[0]), ("nats", system.nats, before[1])):
        result[f"{what}_us"] = (cpu(processes) - began) / result["calls"] * 1e6
    return result


def run(runs: int, calls: int) -> None:
    console = Console(width=110)
    figures: dict[tuple[int, int, str], list[dict[str, float]]] = {}
    with contextlib.ExitStack() as stack:
        systems = [
            echo(stack),
            published(stack),
            ours(stack, "gateway"),
            ours(stack, "Socket.IO Computers, same replica", "socketio"),
            ours(stack, "Socket.IO Computers, another replica", "socketio", gateways=2),
        ]
        for turn in range(runs + 1):
            for size, concurrency in KINDS:
                for system in systems:
                    wanted = max(200, calls // (1 if size < 10_000 else 4) // (1 if concurrency > 1 else 4))
                    result = measure(system, size, concurrency, wanted)
                    if turn:  # the first turn warms up
                        figures.setdefault((size, concurrency, system.name), []).append(result)
    for size, concurrency in KINDS:
        table = Table(
            title=f"{size // 1024} KB, {concurrency} at a time, {OFFICES} offices, median of {runs} runs; CPU per call"
        )
        for column in ["server", "calls/s", "p50 ms", "p99 ms", "CPU µs", "min–max", "NATS µs", "÷ floor", "÷ publ."]:
            table.add_column(column, justify="right")
        floor = median(figures[size, concurrency, "bare echo"], "server_us")
        peer = median(figures[size, concurrency, "published"], "server_us")
        for system in systems:
            rows = figures[size, concurrency, system.name]
            server = median(rows, "server_us")
            spread = sorted(row["server_us"] for row in rows)
            table.add_row(
                system.name,
                f"{median(rows, 'calls_s'):.0f}",
                f"{median(rows, 'p50_ms'):.2f}",
                f"{median(rows, 'p99_ms'):.2f}",
                f"{server:.0f}",
                f"{spread[0]:.0f}–{spread[-1]:.0f}",
                f"{median(rows, 'nats_us'):.0f}" if system.nats else "",
                f"{server / floor:.2f}",
                f"{server / peer:.2f}",
            )
        console.print(table)


def median(rows: list[dict[str, float]], key: str) -> float:
    return statistics.median(row[key] for row in rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--calls", type=int, default=4000)
    arguments = parser.parse_args()
    run(arguments.runs, arguments.calls)
