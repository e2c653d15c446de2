"""A desktop of 20 windows on 5 MCP servers that take 5 ms each, and how long a changed window takes to an Agent.

Over the real chain, each part a process of its own: an Agent, two gateways, nats-server, a registry, a Computer, five
MCP servers of both eras. The Agent measures: from its `client:get_desktop` to the answer, and from the call of a tool
that changes a window to `notify:update_desktop`, the gathering of changes (100 ms) included.

The peer is the floor: the MCP SDK's own client, in this process, reads 20 windows of five such servers side by side.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import socketio
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from rich.console import Console
from rich.table import Table

from bench.processes import BIN, line_of, services_env, start, start_nats, wait_until_ready
from smcp_testing.mcp_servers import configs

SERVERS: Final = 5
WINDOWS: Final = 4
DELAY_S: Final = 0.005
OFFICE, COMPUTER, AGENT = "lab", "pc", "alice"
READY_S: Final = 60.0


class Agent:
    """An Agent on plain python-socketio."""

    def __init__(self) -> None:
        untyped: Any = socketio.AsyncClient
        self._sio = untyped(reconnection=False)
        self.updated = asyncio.Event()
        self._sio.on("notify:update_desktop", self._told, namespace="/smcp")

    async def join(self, url: str) -> None:
        await self._sio.connect(url, namespaces=["/smcp"], transports=["websocket"])
        joined = await self._ask("server:join_office", {"role": "agent", "name": AGENT, "office_id": OFFICE})
        if joined != [True, None]:
            raise SystemExit(f"the Agent was not let in: {joined}")

    async def leave(self) -> None:
        await self._sio.disconnect()

    async def desktop(self) -> list[str]:
        answer = await self._ask("client:get_desktop", {"agent": AGENT, "req_id": "d", "computer": COMPUTER})
        shown: list[str] = answer.get("desktops", [])
        return shown

    async def change_a_window(self, number: int) -> None:
        params = {"uri": "window://host-0/0", "text": f"text {number}"}
        request = {"agent": AGENT, "req_id": f"u{number}", "computer": COMPUTER, "timeout": 30}
        await self._ask("client:tool_call", {**request, "tool_name": "desk-0__update", "params": params})

    async def _ask(self, event: str, payload: dict[str, Any]) -> Any:
        return await self._sio.call(event, payload, namespace="/smcp", timeout=30)

    async def _told(self, _: Any) -> None:
        self.updated.set()


def mcp_servers() -> dict[str, dict[str, Any]]:
    """Their configurations by name."""
    return {
        f"desk-{number}": configs.context(
            "2026" if number % 2 else "2025", windows=WINDOWS, host=f"host-{number}", delay=DELAY_S
        )
        for number in range(SERVERS)
    }


@contextlib.asynccontextmanager
async def bare_clients() -> AsyncIterator[list[Client]]:
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for config in mcp_servers().values():
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
    config = files / "computer.json"
    config.write_text(json.dumps({"servers": mcp_servers()}))
    start(
        stack,
        *(BIN / "smcp-computer", "run", "--config", config, "--office", OFFICE, "--name", COMPUTER),
        env={**env, "SMCP_CONFIRM": "allow"},
    )
    return urls[1]


async def measure(url: str, desktops: int, updates: int) -> dict[str, list[float]]:
    """Milliseconds."""
    agent = Agent()
    await agent.join(url)
    try:
        await _until_complete(agent)
        bare, shown = [], []
        async with bare_clients() as clients:
            for _ in range(desktops):
                bare.append(await _timed_reads(clients))
                shown.append(await _timed_desktop(agent))
        told = [await _timed_update(agent, number) for number in range(updates)]
    finally:
        await agent.leave()
    return {"bare reads": bare, "desktop": shown, "update": told}


async def _until_complete(agent: Agent) -> None:
    async with asyncio.timeout(READY_S):
        while len(await agent.desktop()) < SERVERS * WINDOWS:  # noqa: ASYNC110 -- the servers tell nobody
            await asyncio.sleep(0.1)
        number = 0
        while not agent.updated.is_set():  # until the window is subscribed to
            number -= 1
            await agent.change_a_window(number)
            await asyncio.sleep(0.5)


async def _timed_reads(clients: list[Client]) -> float:
    uris = [
        (client, f"window://host-{host}/{number}") for host, client in enumerate(clients) for number in range(WINDOWS)
    ]
    began = time.perf_counter()
    await asyncio.gather(*(client.read_resource(uri) for client, uri in uris))
    return 1e3 * (time.perf_counter() - began)


async def _timed_desktop(agent: Agent) -> float:
    began = time.perf_counter()
    if len(await agent.desktop()) != SERVERS * WINDOWS:
        raise SystemExit("the desktop is not complete")
    return 1e3 * (time.perf_counter() - began)


async def _timed_update(agent: Agent, number: int) -> float:
    await asyncio.sleep(0.3)  # what was told before has come
    agent.updated.clear()
    began = time.perf_counter()
    changing = asyncio.ensure_future(agent.change_a_window(number))
    async with asyncio.timeout(30):
        await agent.updated.wait()
    took = 1e3 * (time.perf_counter() - began)
    await changing
    return took


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
        "update": "< 150 ms, 100 ms of it gathering",
    }
    for name, took in figures.items():
        p95 = statistics.quantiles(took, n=20)[-1]
        cells = (statistics.median(took), p95, min(took), max(took))
        table.add_row(name, *(f"{cell:.1f}" for cell in cells), aims[name])
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
