"""What well-behaved offices notice of a hostile client: their calls before, during and after each attack.

Each office has an Agent and a Computer on Socket.IO; its Agent calls, pauses, and calls again. For attacks at smcp-mcp
that is the Agent of all offices, and an MCP client of each calls. For each attack the services are started anew. With
`--against` those of another git revision are attacked in the same run, in turn; clients and attacks (`bench.attacks`)
are those of this tree.
"""

import argparse
import asyncio
import contextlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, cast

import aiohttp
import psutil
from rich.console import Console
from rich.table import Table

from bench import published_env
from bench.attacks import AT_SMCP_MCP, ATTACKS, HOSTILE, Attack, Target
from bench.processes import (
    cpu_of_one,
    line_of,
    services_env,
    start,
    start_nats,
    wait_until_ready,
    waited_of_one,
)
from smcp_auth.api_keys import new_key
from smcp_auth.grants import UNLIMITED

PAUSE_S: Final = 0.1
"""After each call: 50 offices ask for 500 calls/s at most, which leaves a gateway of one core idle most of the time."""
PHASES: Final = ("before", "during", "after")
SHARES: Final = ("CPU %", "waits %")
"""Of the time: what the gateway (or smcp-mcp) ran, and waited for a CPU that others had, the attacker among them."""
COLUMNS: Final = (
    *("attack", "services", "calls/s", "p99 ms", "÷", "failed", "evicted", "CPU µs", "cut off"),
    *SHARES,
    "load",
)


@dataclass
class System:
    target: Target
    victim: psutil.Process
    """The gateway, or smcp-mcp if that is attacked."""
    load: subprocess.Popen[str]
    offices: int
    figures: dict[str, dict[str, float]] = field(default_factory=dict)
    cut_off: list[str] = field(default_factory=list)
    """Why the attack ended, each time; it begins again."""

    def measure(self, phase: str, seconds: float) -> None:
        """The calls of all offices for so long, with the CPU of the victim for each of them."""
        order = {"concurrency": self.offices, "size": 1024, "calls": 1_000_000, "seconds": seconds}
        stdin = cast("IO[str]", self.load.stdin)
        began, cpu, waited = time.monotonic(), cpu_of_one(self.victim), waited_of_one(self.victim)
        stdin.write(json.dumps(order | {"pause_s": PAUSE_S, "may_fail": True}) + "\n")
        stdin.flush()
        figures: dict[str, float] = json.loads(line_of(self.load, "{"))
        took, cpu = time.monotonic() - began, cpu_of_one(self.victim) - cpu
        figures["cpu_us"] = cpu / max(figures["calls"], 1) * 1e6
        figures["cpu"], figures["waited"] = cpu / took, (waited_of_one(self.victim) - waited) / took
        self.figures[phase] = figures

    async def attacked(self, attack: Attack, seconds: float) -> None:
        async def persist() -> None:
            while True:
                try:
                    await attack(self.target)
                except (AssertionError, OSError, aiohttp.ClientError, asyncio.IncompleteReadError) as error:
                    self.cut_off.append(repr(error))
                    await asyncio.sleep(0.1)

        attacking = asyncio.create_task(persist())
        await asyncio.to_thread(self.measure, "during", seconds)
        if attacking.done():
            attacking.result()
        attacking.cancel()
        await asyncio.wait([attacking])


@dataclass(frozen=True)
class Services:
    """Of a revision."""

    python: Path = Path(sys.executable)
    sources: str = ""
    """The import path of its packages; empty: the installed ones."""
    knows_rights: bool = True
    """Whether a key can have patterns of tools."""


def open_system(stack: contextlib.ExitStack, offices: int, services: Services, *, mcp: bool = False) -> System:
    """`mcp`: with smcp-mcp, and MCP clients."""
    files = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    _, nats_url = start_nats(stack, files)
    key, entry = new_key(subject="bench", offices=["*"], roles=["agent", "computer"], names=["*"])
    patterns = [f"*a*a*{number}*" for number in range(64)]
    limited_key, limited = new_key(subject="eve", offices=["*"], roles=["agent"], names=["*"], tools=patterns)
    mcp_key, guest = new_key(subject="mallory", offices=[HOSTILE], roles=["agent"], names=["*"])
    own_key, own = new_key(
        subject="smcp-mcp", offices=["*"], roles=["agent"], names=["*"], delegates=True, quota=UNLIMITED
    )
    keys = files / "keys.json"
    keys.touch(0o600)
    # an older revision does not know all fields
    given = (entry, limited, guest, own) if mcp else (entry, limited)
    entries = [each.model_dump(mode="json", exclude_defaults=True) for each in given]
    entries[1] = {name: value for name, value in entries[1].items() if services.knows_rights or name != "tools"}
    keys.write_text(json.dumps({"keys": entries}))
    env = services_env(nats_url) | {"SMCP_AUTH_KEYS": str(keys), "PYTHONPATH": services.sources}
    env["SMCP_REBALANCE_S"] = "4"  # the only gateway: nobody moves unless an attacker fakes others
    start(stack, services.python, "-m", "smcp_registry", env=env)
    gateway = start(stack, services.python, "-m", "smcp_gateway", env=env)
    url = line_of(gateway, "http://").split()[-1]
    wait_until_ready(url)
    common: tuple[str, ...] = ("--url", url, "--offices", str(offices))
    token = {"SMCP_TOKEN": key}
    computers = start(stack, sys.executable, "-m", "bench.computers", *common, "--on", "socketio", env=token)
    line_of(computers, "ready")
    target, victim = Target(url, nats_url, key, limited_key, mcp_key), gateway
    if mcp:
        at = {"SMCP_URL": url, "SMCP_TOKEN": own_key, "SMCP_MCP_PORT": "0"}
        victim = start(stack, services.python, "-m", "smcp_mcp", env=env | at)
        target.mcp_url = line_of(victim, "http://").split()[-1]
        common = ("--url", target.mcp_url, "--offices", str(offices), "--mcp")
    agents = start(stack, sys.executable, "-m", "bench.load", *common, env=token)
    line_of(agents, "ready")
    return System(target, psutil.Process(victim.pid), agents, offices)


def services_of(revision: str, directory: Path) -> Services:
    """Unpack a revision's services into a directory, with their libraries (below `build`)."""
    command = ["git", "archive", revision, "libs", "services", "requirements.lock"]
    archive = subprocess.run(command, cwd=published_env.ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(directory, filter="data")
    python = published_env.python(f"services-{revision}", directory / "requirements.lock")
    knows_rights = any("tools: " in file.read_text() for file in directory.glob("*/*/src/*/**/grants.py"))
    return Services(python, ":".join(map(str, sorted(directory.glob("*/*/src")))), knows_rights)


def run(attacks: list[str], offices: int, seconds: float, against: str | None, nice: int) -> None:
    table = Table(title=f"{offices} offices, {seconds:g} s each: before / during / after")
    for column in COLUMNS:
        table.add_column(column, justify="right" if column != "attack" else "left")
    with tempfile.TemporaryDirectory() as directory:
        others = {} if against is None else {against: services_of(against, Path(directory))}
        for attack in attacks:
            for name, services in (others | {"this": Services()}).items():
                with contextlib.ExitStack() as stack:
                    system = open_system(stack, offices, services, mcp=attack in AT_SMCP_MCP)
                    system.measure("warm-up", seconds / 5)
                    system.measure("before", seconds)
                    with ThreadPoolExecutor(1, initializer=os.nice, initargs=(nice,)) as attacker:  # it alone is nice
                        attacker.submit(asyncio.run, system.attacked(ATTACKS[attack], seconds)).result()
                    system.measure("after", seconds)
                table.add_row(attack, name, *cells(system))
    Console(width=180).print(table)


def cells(system: System) -> list[str]:
    figures = [system.figures[phase] for phase in PHASES]
    return [
        " / ".join(f"{each['calls_s']:.0f}" for each in figures),
        " / ".join(f"{each['p99_ms']:.0f}" for each in figures),
        f"{figures[1]['p99_ms'] / figures[0]['p99_ms']:.1f}",
        f"{sum(each['failed'] for each in figures):.0f}",
        f"{figures[-1]['evicted']:.0f}",
        f"{figures[0]['cpu_us']:.0f}",
        str(len(system.cut_off)),
        " / ".join(f"{each['cpu']:.0%}" for each in figures),
        " / ".join(f"{each['waited']:.0%}" for each in figures),
        f"{os.getloadavg()[0]:.1f}",
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--offices", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=10, help="of each phase")
    parser.add_argument("--attack", choices=ATTACKS, action="append", help="only this one; may stand more than once")
    parser.add_argument("--against", metavar="REVISION", help="services of this git revision, too")
    parser.add_argument("--nice", type=int, default=0, help="of the attacker, so that it takes less of the same CPUs")
    chosen = parser.parse_args()
    run(chosen.attack or list(ATTACKS), chosen.offices, chosen.seconds, chosen.against, chosen.nice)
