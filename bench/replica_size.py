"""What a replica takes: the memory of a gateway's sockets and members, and of a registry's and nats-server's rooms.

Sockets are WebSockets that say nothing; members are spread over offices of ten. All is measured as growth (resident
memory) from one thousand to the next, so that what a process takes once does not count. There is no peer: the published
server keeps everything in one process (`bench.rooms` compares that).
"""

import argparse
import asyncio
import contextlib
import socket
import subprocess
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import orjson
import psutil
import uvloop
from rich.console import Console
from rich.table import Table

from bench.members import Member, Tally
from bench.processes import BIN, line_of, services_env, start, start_nats, wait_until_ready
from smcp_bus.nats.bus import BusConfig, open_bus
from smcp_bus.registry_client import RegistryClient
from smcp_bus.registry_contract import Claim

PER_OFFICE: Final = 10
AT_ONCE: Final = 64
LEASE_S: Final = "600"
"""Nothing is renewed or swept meanwhile."""
QUIET_S: Final = 1.0
"""Time for a process to let go of what the last step left behind."""
MIB: Final = 1024 * 1024


@dataclass
class Sizes:
    """The memory of processes, step by step."""

    processes: dict[str, psutil.Process]
    steps: list[tuple[str, dict[str, float]]] = field(default_factory=list)

    async def take(self, step: str) -> None:
        await asyncio.sleep(QUIET_S)
        found = {name: process.memory_info().rss / MIB for name, process in self.processes.items()}
        self.steps.append((step, found))

    def table(self, title: str) -> Table:
        table = Table(title=title)
        for column in ("", *(f"{name} MiB" for name in self.processes), *(f"{name} +" for name in self.processes)):
            table.add_column(column, justify="right")
        before: dict[str, float] | None = None
        for step, found in self.steps:
            grown = ["" if before is None else f"{found[name] - before[name]:+.1f}" for name in found]
            table.add_row(step, *(f"{value:.1f}" for value in found.values()), *grown)
            before = found
        return table


async def sockets(url: str, sizes: Sizes, thousands: int) -> None:
    """Connect them, thousand by thousand; then all of them join, thousand by thousand."""
    address, gate = urlsplit(url), asyncio.Semaphore(AT_ONCE)
    members: list[Member] = []

    async def connect(number: int) -> Member:
        async with gate:
            loop = asyncio.get_running_loop()
            _, member = await loop.create_connection(
                lambda: Member(f"pc-{number}", Tally(), Tally()), address.hostname or "", address.port or 80
            )
            await member.ready
            return member

    async def join(number: int) -> None:
        async with gate:
            place = {"role": "computer", "name": f"pc-{number}", "office_id": f"office-{number // PER_OFFICE}"}
            answer = await members[number].ask("server:join_office", place)
            if b"true" not in answer:
                raise SystemExit(f"a join was refused: {answer!r}")

    try:
        await sizes.take("nobody")
        for thousand in range(thousands):
            numbers = range(1000 * thousand, 1000 * (thousand + 1))
            members += await asyncio.gather(*map(connect, numbers))
            await sizes.take(f"{len(members)} sockets")
        for thousand in range(thousands):
            await asyncio.gather(*map(join, range(1000 * thousand, 1000 * (thousand + 1))))
            await sizes.take(f"{1000 * (thousand + 1)} of them members")
    finally:
        await asyncio.gather(*(member.closed() for member in members))


async def rooms(nats_url: str, sizes: Sizes, thousands: int) -> None:
    """Members without sockets, claimed on the bus."""
    async with open_bus(BusConfig(url=nats_url)) as bus:
        registry = RegistryClient(bus, credential=bus.credential, process=bus.process)
        gate = asyncio.Semaphore(AT_ONCE)

        async def join(number: int) -> None:
            office, name = f"room-{number // PER_OFFICE}", f"pc-{number}"
            claim = Claim(
                session=uuid.uuid4().hex, credential=bus.credential, process=bus.process,
                incarnation=uuid.uuid4().hex, identity=f"{office}/{name}",
            )  # fmt: skip
            body = orjson.dumps({"role": "computer", "name": name, "office_id": office})
            async with gate:
                await registry.join((office, "computer", name), claim, body)

        await sizes.take("no more members")
        for step in range(0, thousands, 5):
            began = time.perf_counter()
            await asyncio.gather(*map(join, range(1000 * step, 1000 * (step + 5))))
            took = time.perf_counter() - began
            await sizes.take(f"{1000 * (step + 5)} members ({5000 / took:.0f} joins/s)")


def started_again(stack: contextlib.ExitStack, env: dict[str, str]) -> float:
    """How long another registry takes until it is ready (seconds)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    began = time.perf_counter()
    start(stack, BIN / "smcp-registry", env=env | {"SMCP_HEALTH_PORT": str(port)})
    wait_until_ready(f"http://127.0.0.1:{port}")
    return time.perf_counter() - began


def run(socket_thousands: int, member_thousands: int) -> None:
    console = Console(width=120)
    with contextlib.ExitStack() as stack:
        files = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        nats, nats_url = start_nats(stack, files)
        env = services_env(nats_url) | {"SMCP_LEASE_S": LEASE_S}
        registry = start(stack, BIN / "smcp-registry", env=env)
        gateway = start(stack, BIN / "smcp-gateway", env=env)
        url = line_of(gateway, "http://").split()[-1]
        wait_until_ready(url)

        def of(**parts: subprocess.Popen[str]) -> Sizes:
            return Sizes({name: psutil.Process(part.pid) for name, part in parts.items()})

        on_gateway, on_bus = of(gateway=gateway, registry=registry, nats=nats), of(registry=registry, nats=nats)
        uvloop.run(sockets(url, on_gateway, socket_thousands))
        console.print(on_gateway.table(f"sockets of one gateway, and members in offices of {PER_OFFICE}"))
        empty = started_again(stack, env)
        uvloop.run(rooms(nats_url, on_bus, member_thousands))
        console.print(on_bus.table(f"members in offices of {PER_OFFICE}, without sockets"))
        stored = sum(file.stat().st_size for file in (files / "js").rglob("*") if file.is_file()) / MIB
        console.print(f"JetStream's files: {stored:.1f} MiB")
        console.print(f"another registry is ready after {empty:.1f} s, with these members after ", end="")
        console.print(f"{started_again(stack, env):.1f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sockets", type=int, default=3, help="thousands of sockets")
    parser.add_argument("--members", type=int, default=10, help="thousands of members without sockets, by fives")
    arguments = parser.parse_args()
    run(arguments.sockets, arguments.members)
