"""A tool call by an MCP client over Streamable HTTP: directly, through an office, and through FastMCP's proxy.

The client is this process, and the MCP server is one process for all three. Between them is nothing; or `smcp-mcp`, a
gateway, a Computer, a registry and nats-server; or FastMCP's proxy, in an environment of its own (`fastmcp.in`). The
measurements are interleaved, and each figure is the median of the runs. CPU is that of all processes between client and
server, per call. The machine is shared and noisy: compare within a run.
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
import uvloop
from mcp.client.client import Client
from rich.console import Console
from rich.table import Table

from bench import published_env
from bench.computer import OFFICE, System
from bench.processes import BIN, cpu_of_one, line_of, start
from smcp_testing.mcp_servers import configs

HERE: Final = Path(__file__).parent
TEXT: Final = {"text": "x" * 1024}
READY_S: Final = 60.0
AT_ONCE: Final = (1, 16)
Figures = dict[str, float]
MEASURES: Final = ("p50 ms", "added ms", "p99 ms", "CPU µs/call")


@dataclass
class Route:
    """What is between client and server, and the URL for clients."""

    name: str
    url: str
    between: list[psutil.Process] = field(default_factory=list)


def through_office(stack: contextlib.ExitStack, server_url: str) -> Route:
    before = set(psutil.Process().children())
    system = System(stack)
    system.computer(stack, {"target": configs.http("streamable", server_url)})
    env = {**system.env, "SMCP_URL": system.url, "SMCP_MCP_PORT": "0"}
    url = line_of(start(stack, BIN / "smcp-mcp", env=env), "http://").split()[-1]
    parts = set(psutil.Process().children()) - before
    return Route("an office", f"{url}/mcp/{OFFICE}", sorted(parts, key=lambda part: part.pid))


def through_proxy(stack: contextlib.ExitStack, server_url: str) -> Route:
    interpreter = published_env.python("fastmcp", HERE / "fastmcp.lock")
    proxy: subprocess.Popen[str] = start(stack, interpreter, HERE / "servers" / "fastmcp_proxy.py", server_url)
    return Route("FastMCP's proxy", line_of(proxy, "http://"), [psutil.Process(proxy.pid)])


async def until_there(client: Client) -> str:
    """Wait for the tool; returns its name."""
    async with asyncio.timeout(READY_S):
        while True:
            with contextlib.suppress(Exception):  # the Computer has not joined yet
                for tool in (await client.list_tools()).tools:
                    if tool.name.endswith("echo"):
                        return tool.name
            await asyncio.sleep(0.1)


async def measure(client: Client, tool: str, route: Route, at_once: int, calls: int) -> Figures:
    took: list[float] = []

    async def caller() -> None:
        for _ in range(calls // at_once):
            began = time.perf_counter()
            result = await client.call_tool(tool, TEXT)
            took.append(1e3 * (time.perf_counter() - began))
            assert not result.is_error, result

    before = {part: cpu_of_one(part) for part in route.between}
    await asyncio.gather(*(caller() for _ in range(at_once)))
    cpu_us = {part.name(): 1e6 * (cpu_of_one(part) - cpu) / len(took) for part, cpu in before.items()}
    centiles = statistics.quantiles(took, n=100)
    return {"p50 ms": centiles[49], "p99 ms": centiles[98], "CPU µs/call": sum(cpu_us.values()), **cpu_us}


async def compare(routes: list[Route], mode: str, runs: int, calls: int) -> dict[tuple[int, str], list[Figures]]:
    figures: dict[tuple[int, str], list[Figures]] = {}
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(route.url, mode=mode, cache=None)) for route in routes]
        tools = [await until_there(client) for client in clients]
        for run in range(runs + 1):
            for at_once in AT_ONCE:
                direct: Figures = {}
                for route, client, tool in zip(routes, clients, tools, strict=True):
                    found = await measure(client, tool, route, at_once, calls)
                    direct = direct or found
                    found["added ms"] = found["p50 ms"] - direct["p50 ms"]
                    if run:  # the first one warms up
                        figures.setdefault((at_once, route.name), []).append(found)
    return figures


def spread(rows: list[Figures], measure: str) -> str:
    values = sorted(row[measure] for row in rows)
    digits = 2 if measure.endswith("ms") else 0
    return f"{statistics.median(values):.{digits}f} ({values[0]:.{digits}f}–{values[-1]:.{digits}f})"


def main(mode: str, runs: int, calls: int) -> None:
    console = Console(width=110)
    console.print(f"load average before: {os.getloadavg()[0]:.1f}")
    with contextlib.ExitStack() as stack:
        server = start(stack, *configs.command("toolbox", "--transport", "streamable"))
        url = line_of(server, "http://")
        routes = [Route("directly", url), through_office(stack, url), through_proxy(stack, url)]
        figures = uvloop.run(compare(routes, mode, runs, calls))
        for at_once in AT_ONCE:
            table = Table(
                title=f"1 KB, {at_once} at a time: median (min–max) of {runs} runs of {calls} calls; client {mode}"
            )
            for column in ("", *MEASURES):
                table.add_column(column, justify="right")
            for route in routes:
                table.add_row(route.name, *(spread(figures[at_once, route.name], each) for each in MEASURES))
            console.print(table)
            for part in routes[1].between:
                console.print(f"CPU of {part.name()}: {spread(figures[at_once, routes[1].name], part.name())} µs/call")
    console.print(f"load average after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", default="auto", help="the client's era: auto (2026-07-28) or legacy (2025-11-25)")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--calls", type=int, default=320)
    arguments: Any = parser.parse_args()
    main(arguments.mode, arguments.runs, arguments.calls)
