"""A desktop of 20 windows on 5 MCP servers that take 5 ms each, and how long a changed window takes to an Agent.

Over the real chain, each part a process of its own: an Agent, two gateways, nats-server, a registry, two Computers with
five MCP servers of both eras each. The Agent measures: from its `client:get_desktop` to the answer, and from the call
of a tool that changes a window to `notify:update_desktop`, the gathering of changes (100 ms) included.

One Computer has servers on the MCP SDK, as most are: they themselves compute for some milliseconds, on the same cores
as the rest. The other has lean ones, written by hand, that cost next to nothing: their desktop shows the chain and the
Computer, and nothing of the servers but their 5 ms.

The peer is the floor, for each kind of servers: the MCP SDK's own client, in this process, reads 20 windows of five
such servers side by side. All are interleaved.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from rich.console import Console
from rich.table import Table

from bench.context_agent import OFFICE, Agent
from bench.processes import BIN, line_of, services_env, start, start_nats, wait_until_ready
from smcp_testing.mcp_servers import configs

SERVERS: Final = 5
WINDOWS: Final = 4
DELAY_S: Final = 0.005
CHANGING: Final = "window://host-0/0"
KINDS: Final = ("SDK", "lean")
"""Of MCP servers; the Computers are named after them."""
READY_S: Final = 60.0
GATHER_S: Final = 0.1
"""A notification that comes sooner after a change belongs to an earlier one."""
Took = dict[str, list[float]]
"""Milliseconds, by what was done."""


def mcp_servers(kind: str) -> dict[str, dict[str, Any]]:
    """Their configurations by name."""
    made: Callable[..., dict[str, Any]] = configs.context if kind == "SDK" else configs.lean
    return {
        f"desk-{number}": made("2026" if number % 2 else "2025", windows=WINDOWS, host=f"host-{number}", delay=DELAY_S)
        for number in range(SERVERS)
    }


@contextlib.asynccontextmanager
async def bare_clients(kind: str) -> AsyncIterator[list[Client]]:
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for config in mcp_servers(kind).values():
            parameters = config["server_parameters"]
            transport = stdio_client(StdioServerParameters(command=parameters["command"], args=parameters["args"]))
            clients.append(await stack.enter_async_context(Client(transport, mode="auto", cache=None)))
        yield clients


def chain(stack: contextlib.ExitStack) -> str:
    """Start everything; gives the URL of the Agent's gateway."""
    files = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    _, nats_url = start_nats(stack, files)
    env = services_env(nats_url)
    start(stack, BIN / "smcp-registry", env=env)
    urls = [line_of(start(stack, BIN / "smcp-gateway", env=env), "http://").split()[-1] for _ in range(2)]
    for url in urls:
        wait_until_ready(url)
    for kind in KINDS:
        config = files / f"{kind}.json"
        config.write_text(json.dumps({"servers": mcp_servers(kind)}))
        start(
            stack,
            *(BIN / "smcp-computer", "run", "--config", config, "--office", OFFICE, "--name", kind),
            env={**env, "SMCP_CONFIRM": "allow"},
        )
    return urls[1]


async def measure(url: str, desktops: int, updates: int) -> Took:
    agent = Agent()
    await agent.join(url)
    took: Took = {}
    try:
        async with contextlib.AsyncExitStack() as stack:
            for kind in KINDS:
                await _until_complete(agent, kind)
            clients = {kind: await stack.enter_async_context(bare_clients(kind)) for kind in KINDS}
            for _ in range(desktops):
                for kind in KINDS:
                    took.setdefault(f"{kind}: bare reads", []).append(await _timed_reads(clients[kind]))
                    took.setdefault(f"{kind}: desktop", []).append(await _timed_desktop(agent, kind))
        for number in range(updates):
            for kind in KINDS:
                took.setdefault(f"{kind}: update", []).append(await _timed_update(agent, kind, number))
    finally:
        await agent.leave()
    return took


async def _until_complete(agent: Agent, computer: str) -> None:
    """All windows are there, and the one that will change is subscribed to: the office is notified of both."""

    async def complete() -> bool:
        shown = await agent.desktop(computer)
        return len(shown) == SERVERS * WINDOWS and CHANGING in await agent.call(computer, "subscribed")

    async with asyncio.timeout(READY_S):
        while True:
            agent.told.clear()
            if await complete():
                return
            await agent.told.wait()


async def _timed_reads(clients: list[Client]) -> float:
    uris = [
        (client, f"window://host-{host}/{number}") for host, client in enumerate(clients) for number in range(WINDOWS)
    ]
    began = time.perf_counter()
    await asyncio.gather(*(client.read_resource(uri) for client, uri in uris))
    return 1e3 * (time.perf_counter() - began)


async def _timed_desktop(agent: Agent, computer: str) -> float:
    began = time.perf_counter()
    if len(await agent.desktop(computer)) != SERVERS * WINDOWS:
        raise SystemExit("the desktop is not complete")
    return 1e3 * (time.perf_counter() - began)


async def _timed_update(agent: Agent, computer: str, number: int) -> float:
    began, took = time.perf_counter(), 0.0
    changing = asyncio.ensure_future(agent.call(computer, "update", uri=CHANGING, text=f"text {number}"))
    async with asyncio.timeout(30):
        while took < GATHER_S:
            agent.told.clear()
            await agent.told.wait()
            took = time.perf_counter() - began
    await changing
    return 1e3 * took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--desktops", type=int, default=200)
    parser.add_argument("--updates", type=int, default=30)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        figures = asyncio.run(measure(chain(stack), options.desktops, options.updates))
    table = Table(
        title=f"{SERVERS * WINDOWS} windows on {SERVERS} MCP servers, {1e3 * DELAY_S:g} ms each, over the chain"
    )
    for column in ("", "p50 ms", "p95 ms", "min ms", "max ms", "aim"):
        table.add_column(column, justify="right")
    aims = {
        "bare reads": "the floor",
        "desktop": f"< 20 ms (one after the other: {1e3 * DELAY_S * SERVERS * WINDOWS:g} ms)",
        "update": f"< 150 ms, {1e3 * GATHER_S:g} ms of it gathering",
    }
    for name, took in figures.items():
        p95 = statistics.quantiles(took, n=20)[-1]
        cells = (statistics.median(took), p95, min(took), max(took))
        table.add_row(name, *(f"{cell:.1f}" for cell in cells), aims[name.partition(": ")[2]])
    console = Console(width=150)
    console.print(table)
    console.print("SDK: MCP servers on the MCP SDK, which themselves compute. lean: servers that cost next to nothing.")
    console.print("load average at the end: " + ", ".join(f"{load:.1f}" for load in os.getloadavg()))


if __name__ == "__main__":
    main()
