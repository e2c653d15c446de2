"""A Computer by itself: a call beside the MCP SDK's own client, the start of many servers, a changed file, and idling.

Each part is a process of its own: nats-server, a registry, a gateway, the Computer; the Agent is this process.

call:   one tool call of 1 KB at a time through the whole system, beside the same stdio server called directly by the
        MCP SDK (`bench.direct_client`), interleaved; and the CPU of the Computer beside that of the direct client
start:  50 servers that start together: when the first tool can be called, and when the last one can
change: one server of those 50 changes in the file: when the Agent hears of it, when it has the new tools, and how many
        processes were restarted; beside it what the server itself takes to start and to end, with the MCP SDK's client
idle:   a Computer with 10 servers that nobody calls: its memory (its helper processes included), and its CPU
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Any, Final, cast

import psutil
import uvloop
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from rich.console import Console
from rich.table import Table

from bench.processes import BIN, cpu_of_one, line_of, services_env, start, start_nats, wait_until_ready
from smcp_agent import ConfigChanged, SmcpAgent
from smcp_testing.mcp_servers import configs

OFFICE: Final = "bench"
COMPUTER: Final = "host"
SIZE: Final = 1024
MANY: Final = 50
IDLE: Final = 10
READY_S: Final = 300.0


class System:
    """Everything but Computers; gives the URL of the gateway."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.files = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _, nats_url = start_nats(stack, self.files)
        self.env = {**services_env(nats_url), "SMCP_CONFIRM": "allow"}
        start(stack, BIN / "smcp-registry", env=self.env)
        self.url = line_of(start(stack, BIN / "smcp-gateway", env=self.env), "http://").split()[-1]
        wait_until_ready(self.url)

    def computer(self, stack: contextlib.ExitStack, servers: dict[str, Any]) -> tuple[subprocess.Popen[str], Path]:
        """A Computer with these servers, and its file."""
        config = self.files / f"{len(servers)}.json"
        config.write_text(json.dumps({"servers": servers}))
        options = ("--config", config, "--office", OFFICE, "--name", COMPUTER)
        state = {"SMCP_STATE_DIR": str(self.files / f"state-{len(servers)}")}
        return start(stack, BIN / "smcp-computer", "run", *options, env={**self.env, **state}), config


@contextlib.asynccontextmanager
async def agent_at(url: str) -> AsyncIterator[SmcpAgent]:
    async with SmcpAgent(url, office=OFFICE, name="bench-agent") as agent:
        yield agent


async def until_listed(agent: SmcpAgent, tools: int, name: str = "") -> float:
    """Return when so many tools of the Computer are listed, one of them called `name`: the time of that."""
    async with asyncio.timeout(READY_S):
        while True:
            with contextlib.suppress(Exception):  # it has not joined yet
                names = [tool.name for tool in await agent.tools(COMPUTER)]
                if len(names) >= tools and (not name or name in names):
                    return time.perf_counter()
            await asyncio.sleep(0.02)


def server(number: int, **env: str) -> dict[str, Any]:
    """One tool, which only this server has."""
    alias = env.get("ALIAS", f"hello-{number}")
    meta: dict[str, Any] = {"tool_meta": {"hello": {"alias": alias}}, "forbidden_tools": ["browser_navigate"]}
    return configs.stdio("hello", env=env or None, **meta)


async def calls(system: System, runs: int, count: int) -> list[tuple[str, str, str]]:
    with contextlib.ExitStack() as stack:
        echo = configs.stdio("toolbox")
        computer, _ = system.computer(stack, {"box": echo})
        command = [echo["server_parameters"]["command"], *echo["server_parameters"]["args"]]
        direct = start(stack, BIN / "python", "-m", "bench.direct_client", *command)
        line_of(direct, "ready")
        process = psutil.Process(computer.pid)
        ratios, cpus, ours_ms, peer_ms, ours_us, peer_us = [], [], [], [], [], []
        async with agent_at(system.url) as agent:
            await until_listed(agent, 1)
            text = "x" * SIZE
            for run in range(runs + 1):
                took, cpu = [], cpu_of_one(process)
                for _ in range(count):
                    began = time.perf_counter()
                    await agent.call_tool(COMPUTER, "echo", {"text": text}, timeout=30)
                    took.append(time.perf_counter() - began)
                cpu_us = 1e6 * (cpu_of_one(process) - cpu) / count
                peer = await asyncio.to_thread(ask, direct, {"size": SIZE, "calls": count})
                if not run:
                    continue  # warms up
                ours_ms.append(1e3 * statistics.median(took))
                peer_ms.append(peer["p50_ms"])
                ours_us.append(cpu_us)
                peer_us.append(peer["cpu_us"])
                ratios.append(ours_ms[-1] / peer_ms[-1])
                cpus.append(cpu_us / peer["cpu_us"])
        return [
            ("call, p50, through the system", f"{spread(ours_ms)} ms", ""),
            ("call, p50, directly", f"{spread(peer_ms)} ms", ""),
            ("÷", spread(ratios), "at most 1.8"),
            ("CPU of the Computer", f"{spread(ours_us)} µs", ""),
            ("CPU of the direct client", f"{spread(peer_us)} µs", ""),
            ("÷", spread(cpus), "at most 1.5"),
        ]


def ask(process: subprocess.Popen[str], question: dict[str, Any]) -> dict[str, float]:
    stdin = cast("IO[str]", process.stdin)
    stdin.write(json.dumps(question) + "\n")
    stdin.flush()
    answer: dict[str, float] = json.loads(line_of(process, "{"))
    return answer


async def many(system: System, changes: int) -> list[tuple[str, str, str]]:
    servers = {f"s{number}": server(number) for number in range(MANY)}
    with contextlib.ExitStack() as stack:
        async with agent_at(system.url) as agent:
            began = time.perf_counter()
            computer, config = system.computer(stack, servers)
            first = await until_listed(agent, 1) - began
            await agent.call_tool(COMPUTER, (await agent.tools(COMPUTER))[0].name, {}, timeout=30)
            last = await until_listed(agent, MANY) - began
            heard, told, alone, restarted = [], [], [], []
            events = agent.events()
            for number in range(changes):
                servers["s7"] = server(7, ALIAS=f"hello-again-{number}")
                before = pids(computer.pid)
                began = time.perf_counter()
                config.write_text(json.dumps({"servers": servers}))
                while not isinstance(await anext(events), ConfigChanged):
                    pass
                heard.append(time.perf_counter() - began)
                told.append(await until_listed(agent, MANY, f"hello-again-{number}") - began)
                restarted.append(len(before - pids(computer.pid)))
                alone.append(await start_and_end(servers["s7"]["server_parameters"]))
    return [
        ("start of 50, first tool called after", f"{first:.1f} s", "before the slowest is up"),
        ("start of 50, all listed after", f"{last:.1f} s", ""),
        ("one of 50 changed, told to the Agent after", f"{spread(heard)} s", "under 1 s"),
        ("its new tools listed after", f"{spread(told)} s", "under 1 s"),
        ("the same server ends and starts by itself in", f"{spread(alone)} s", ""),
        ("processes that ended for it", ", ".join(map(str, restarted)), "1 server"),
    ]


async def start_and_end(parameters: dict[str, Any]) -> float:
    began = time.perf_counter()
    async with Client(stdio_client(StdioServerParameters(**parameters)), mode="auto", cache=None) as client:
        await client.list_tools()
    return time.perf_counter() - began


def pids(pid: int) -> set[int]:
    return {child.pid for child in psutil.Process(pid).children(recursive=True)}


async def idle(system: System, seconds: float) -> list[tuple[str, str, str]]:
    with contextlib.ExitStack() as stack:
        servers = {f"s{number}": server(number) for number in range(IDLE)}
        computer, _ = system.computer(stack, servers)
        async with agent_at(system.url) as agent:
            await until_listed(agent, IDLE)
        process = psutil.Process(computer.pid)
        helpers = [child for child in process.children(recursive=True) if "smcp" in " ".join(child.cmdline()[:8])]
        helpers = [child for child in helpers if "smcp_testing" not in " ".join(child.cmdline())]
        await asyncio.sleep(5)  # what the start left behind is collected
        own, cpu = process.memory_full_info(), cpu_of_one(process)
        await asyncio.sleep(seconds)
        share = 100 * (cpu_of_one(process) - cpu) / seconds
        beside = sum(child.memory_full_info().pss for child in helpers)
    memory = f"{own.rss / 1e6:.0f} MB RSS, {own.pss / 1e6:.0f} PSS; {beside / 1e6:.1f} PSS in {len(helpers)} helpers"
    return [
        (f"{IDLE} idle servers, memory of the Computer", memory, "under 80 MB"),
        (f"{IDLE} idle servers, CPU of the Computer", f"{share:.2f} % of a core", "under 0.5 %"),
    ]


def spread(figures: list[float]) -> str:
    return f"{statistics.median(figures):.2f} ({min(figures):.2f}–{max(figures):.2f})"


async def main(options: argparse.Namespace) -> None:
    table = Table(title=f"a Computer; load average {', '.join(f'{load:.1f}' for load in os.getloadavg())}")
    for column in ("", "median (min–max)", "aim"):
        table.add_column(column)
    with contextlib.ExitStack() as stack:
        system = System(stack)
        for name, part in (
            ("call", calls(system, options.runs, options.calls)),
            ("many", many(system, options.changes)),
            ("idle", idle(system, options.idle_s)),
        ):
            if name in options.kinds:
                for row in await part:
                    table.add_row(*row)
            else:
                part.close()
    Console(width=130).print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=["call", "many", "idle"], help="call, many, idle")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--changes", type=int, default=5)
    parser.add_argument("--idle-s", type=float, default=30.0)
    uvloop.run(main(parser.parse_args()))  # as the direct client
