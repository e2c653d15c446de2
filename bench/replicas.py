"""What passes each gateway with 1, 2 and 4 of them: counted by nats-server, not timed.

The members of the office are on the first gateway, one of them a Computer on NATS; every other gateway holds a member
of another office. Beside them stands a call to a Computer whose socket the last gateway holds.
"""

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import urllib.request
import uuid
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any, Final

import psutil
import socketio
from rich.console import Console
from rich.table import Table

from bench.load import Json
from bench.processes import BIN, line_of, services_env, start, start_nats, wait_until_ready

REPLICAS: Final = (1, 2, 4)
PATIENCE_S: Final = 30.0
LEASE_S: Final = "600"
"""Not renewed meanwhile: what is counted is what the members do."""
QUIET_S: Final = 0.5
"""Where nothing has passed for so long, what was begun beside the answers (learning who is in an office) is over."""
OFFICE, NATIVE, BOX, AGENT = "office-0", "pc-office-0", "box", "agent"
Counts = list[tuple[int, int]]
"""For each gateway: messages that nats-server got from it, and those that it sent to it."""


class Gateways:
    def __init__(self, stack: contextlib.ExitStack, count: int) -> None:
        files = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _, self.nats_url = start_nats(stack, files, "-m", "-1")
        env = services_env(self.nats_url) | {"SMCP_LEASE_S": LEASE_S}
        [ports] = files.glob("*.ports")
        self._monitoring = json.loads(ports.read_text())["monitoring"][0]
        start(stack, BIN / "smcp-registry", env=env)
        self._processes = [start(stack, BIN / "smcp-gateway", env=env) for _ in range(count)]
        self.urls = [line_of(process, "http://").split()[-1] for process in self._processes]
        for url in self.urls:
            wait_until_ready(url)

    def counts(self) -> Counts:
        with urllib.request.urlopen(f"{self._monitoring}/connz", timeout=5) as answer:
            connections = {each["port"]: each for each in json.load(answer)["connections"]}
        found = [connections[port] for port in map(self._port, self._processes)]
        return [(each["in_msgs"], each["out_msgs"]) for each in found]

    def _port(self, process: subprocess.Popen[str]) -> int:
        """Its own end of its connection to nats-server."""
        server = int(self.nats_url.rpartition(":")[2])
        ends = psutil.Process(process.pid).net_connections("tcp")
        return next(end.laddr.port for end in ends if end.status == "ESTABLISHED" and end.raddr.port == server)


class Member:
    """One client. It counts the notifications of configurations."""

    def __init__(self) -> None:
        self.sio = socketio.AsyncClient(json=Json, reconnection=False)
        self._left = 0
        self._all_told = asyncio.Event()
        self.sio.on("notify:update_config", self._told, namespace="/smcp")
        self.sio.on("client:tool_call", self._call, namespace="/smcp")

    async def ask(self, event: str, payload: dict[str, Any]) -> Any:
        return await self.sio.call(event, payload, namespace="/smcp", timeout=PATIENCE_S)

    async def join(self, role: str, name: str, office: str = OFFICE) -> None:
        answer = await self.ask("server:join_office", {"role": role, "name": name, "office_id": office})
        if not answer[0]:
            raise SystemExit(f"a join was refused: {answer[1]}")

    async def hear(self, times: int, telling: Awaitable[None]) -> None:
        """Return when it has received so many of them."""
        self._left = times
        self._all_told.clear()
        await telling
        async with asyncio.timeout(PATIENCE_S):
            await self._all_told.wait()

    async def call(self, computer: str, times: int) -> None:
        for _ in range(times):
            request = {"agent": AGENT, "req_id": uuid.uuid4().hex, "computer": computer, "timeout": 30}
            answer = await self.ask("client:tool_call", request | {"tool_name": "echo", "params": {"text": "x"}})
            if "code" in answer:
                raise SystemExit(f"a call failed: {answer}")

    async def announce(self, computer: str, times: int) -> None:
        for _ in range(times):
            await self.ask("server:update_config", {"computer": computer})

    async def _told(self, _: Any) -> None:
        self._left -= 1
        if not self._left:
            self._all_told.set()

    async def _call(self, _: Any) -> dict[str, Any]:
        return {"content": [], "isError": False}


@contextlib.asynccontextmanager
async def member(url: str) -> AsyncIterator[Member]:
    client = Member()
    await client.sio.connect(url, namespaces=["/smcp"], transports=["websocket"])
    try:
        yield client
    finally:
        await client.sio.disconnect()


async def count(gateways: Gateways, times: int) -> dict[str, Counts]:
    """By what was done: how the counts of the gateways have grown."""
    first, *others = gateways.urls
    async with contextlib.AsyncExitStack() as stack:
        agent = await stack.enter_async_context(member(first))
        await agent.join("agent", AGENT, OFFICE)
        teller = await stack.enter_async_context(member(first))
        await teller.join("computer", "teller", OFFICE)
        for number, url in enumerate(others):
            stranger = await stack.enter_async_context(member(url))
            await stranger.join("computer", f"stranger-{number}", "another office")
        told = await grown(gateways, agent.hear(times, teller.announce("teller", times)))
        called = await grown(gateways, agent.call(NATIVE, times))
        box = await stack.enter_async_context(member(gateways.urls[-1]))
        await box.join("computer", BOX, OFFICE)
        relayed = await grown(gateways, agent.call(BOX, times))
    return {"notifications": told, "calls on NATS": called, "calls to the last one's socket": relayed}


async def grown(gateways: Gateways, work: Awaitable[None]) -> Counts:
    before = await settled(gateways)
    await work
    after = await settled(gateways)
    return [(new[0] - old[0], new[1] - old[1]) for new, old in zip(after, before, strict=True)]


async def settled(gateways: Gateways) -> Counts:
    """The counts, once nothing passes any more."""
    async with asyncio.timeout(PATIENCE_S):
        counts = await asyncio.to_thread(gateways.counts)
        while True:
            await asyncio.sleep(QUIET_S)  # nats-server tells nobody: two counts are compared
            now = await asyncio.to_thread(gateways.counts)
            if now == counts:
                return now
            counts = now


def run(times: int) -> None:
    table = Table(title=f"{times} of each: messages from / to the gateways, as nats-server counts them")
    for column in ("", "gateways", "all", *(f"gateway {number + 1}" for number in range(max(REPLICAS)))):
        table.add_column(column, justify="right")
    rows: dict[str, list[tuple[int, Counts]]] = {}
    for replicas in REPLICAS:
        with contextlib.ExitStack() as stack:
            gateways = Gateways(stack, replicas)
            on_nats = ("--url", gateways.nats_url, "--on", "nats", "--offices", "1")
            line_of(start(stack, sys.executable, "-m", "bench.computers", *on_nats), "ready")
            for what, counts in asyncio.run(count(gateways, times)).items():
                rows.setdefault(what, []).append((replicas, counts))
    for what, counted in rows.items():
        for replicas, counts in counted:
            everything = (sum(each[0] for each in counts), sum(each[1] for each in counts))
            table.add_row(what, str(replicas), *(f"{sent} / {got}" for sent, got in (everything, *counts)))
    Console(width=130).print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=1000)
    run(parser.parse_args().times)
