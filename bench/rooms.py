"""A room of 500: how long they take to join, and what the room's list costs; beside the published server.

The servers are started anew for each run and take turns. CPU and memory are those of all server processes: for ours
gateway, registry and nats-server together, since the published server does the work of all three.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, cast

import psutil
from rich.console import Console
from rich.table import Table

from bench import published_env
from bench.processes import BIN, cpu_of_one, line_of, services_env, start, start_nats, wait_until_ready

PUBLISHED: Final = "published"
OURS: Final = "gateway"
PARTS: Final = ("gateway", "registry", "nats")
JOINS: Final = {"at once": True, "one after the other": False}
Figures = dict[str, float]


@dataclass
class System:
    servers: dict[str, psutil.Process]
    members: subprocess.Popen[str]

    def do(self, what: str, **arguments: object) -> Figures:
        """Has the members do it; what came of it, with CPU (s) and growth of memory (MB) of the servers meanwhile."""
        cpu_before = {name: cpu_of_one(process) for name, process in self.servers.items()}
        memory_before = self._memory()
        stdin = cast("IO[str]", self.members.stdin)
        stdin.write(json.dumps({"do": what, **arguments}) + "\n")
        stdin.flush()
        figures: Figures = json.loads(line_of(self.members, "{"))
        for name, process in self.servers.items():
            figures[name] = cpu_of_one(process) - cpu_before[name]
        figures["cpu_s"] = sum(figures[name] for name in self.servers)
        figures["memory_mb"] = (self._memory() - memory_before) / 1e6
        return figures

    def _memory(self) -> int:
        return sum(int(process.memory_info().rss) for process in self.servers.values())


@contextlib.contextmanager
def system(name: str, size: int) -> Iterator[System]:
    with contextlib.ExitStack() as stack:
        servers, url = published(stack) if name == PUBLISHED else ours(stack)
        members = start(stack, sys.executable, "-m", "bench.members", "--url", url, "--size", str(size))
        line_of(members, "ready")
        yield System({part: psutil.Process(server.pid) for part, server in servers.items()}, members)


def published(stack: contextlib.ExitStack) -> tuple[dict[str, subprocess.Popen[str]], str]:
    script = Path(__file__).parent / "servers" / "published.py"
    server = start(stack, published_env.python(), script, env={"A2C_SMCP_LOG_SILENT": "1"})
    return {"server": server}, f"http://127.0.0.1:{line_of(server)}"


def ours(stack: contextlib.ExitStack) -> tuple[dict[str, subprocess.Popen[str]], str]:
    files = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    nats, nats_url = start_nats(stack, files)
    env = services_env(nats_url)
    registry = start(stack, BIN / "smcp-registry", env=env)
    gateway = start(stack, BIN / "smcp-gateway", env=env)
    url = line_of(gateway, "http://").split()[-1]
    wait_until_ready(url)
    return {"gateway": gateway, "registry": registry, "nats": nats}, url


def run(runs: int, size: int, lists: int) -> None:
    figures: dict[tuple[str, str], list[Figures]] = {}
    for _ in range(runs):
        for name in (PUBLISHED, OURS):
            with system(name, size) as running:
                for how, at_once in JOINS.items():
                    running.do("connect")
                    figures.setdefault((how, name), []).append(running.do("join", at_once=at_once))
                    if at_once:
                        running.do("list", times=lists // 4)  # warms up
                        figures.setdefault(("list", name), []).append(running.do("list", times=lists))
                    running.do("disconnect")
    console = Console(width=150)
    for how in JOINS:
        console.print(joins(how, size, runs, figures))
    console.print(listing(size, runs, lists, figures))


def joins(how: str, size: int, runs: int, figures: dict[tuple[str, str], list[Figures]]) -> Table:
    table = Table(title=f"{size} joins into one office, {how}, median of {runs} runs (min–max)")
    columns = ("server", "last ack s", "÷ publ.", "all told s", "÷ publ.", "CPU s", "÷ publ.", *PARTS, "memory MB")
    for column in columns:
        table.add_column(column, justify="right")
    peer = figures[how, PUBLISHED]
    for name in (PUBLISHED, OURS):
        rows = figures[how, name]
        cells = [name]
        for key in ("acknowledged_s", "told_s", "cpu_s"):
            cells += [spread(rows, key, 2), f"{median(rows, key) / median(peer, key):.2f}"]
        cells += [f"{median(rows, part):.2f}" if part in rows[0] else "" for part in PARTS]
        table.add_row(*cells, spread(rows, "memory_mb", 0))
    return table


def listing(size: int, runs: int, lists: int, figures: dict[tuple[str, str], list[Figures]]) -> Table:
    table = Table(title=f"list_room of {size} Computers and an Agent, {lists} times, median of {runs} runs (min–max)")
    for column in ("server", "CPU ms", "÷ publ.", *PARTS, "p50 ms", "÷ publ.", "KB"):
        table.add_column(column, justify="right")
    each = {
        name: [
            row | {key: row[key] / lists * 1e3 for key in ("cpu_s", *PARTS) if key in row}
            for row in figures["list", name]
        ]
        for name in (PUBLISHED, OURS)
    }
    for name, rows in each.items():
        cells = [name]
        cells += [spread(rows, "cpu_s", 2), f"{median(rows, 'cpu_s') / median(each[PUBLISHED], 'cpu_s'):.2f}"]
        cells += [f"{median(rows, part):.2f}" if part in rows[0] else "" for part in PARTS]
        cells += [spread(rows, "p50_ms", 2), f"{median(rows, 'p50_ms') / median(each[PUBLISHED], 'p50_ms'):.2f}"]
        table.add_row(*cells, f"{median(rows, 'bytes') / 1e3:.0f}")
    return table


def median(rows: list[Figures], key: str) -> float:
    return statistics.median(row[key] for row in rows)


def spread(rows: list[Figures], key: str, digits: int) -> str:
    values = [row[key] for row in rows]
    return f"{median(rows, key):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--size", type=int, default=500, help="Computers that join")
    parser.add_argument("--lists", type=int, default=200, help="questions for the room's list")
    arguments = parser.parse_args()
    run(arguments.runs, arguments.size, arguments.lists)
