"""`client:get_finder` of 10,000 documents on 20 servers, from the cache.

    python -m bench.finder [--rounds 50]

First at the Computer's dispatcher, with its metadata cache, and a function in place of the MCP servers: a request with
validation, catalog and JSON is measured. Then from an Agent, through its gateway and NATS, with 20 lean MCP servers of
both eras: gateway, registry, nats-server and Computer are processes of their own. Prints milliseconds, medians
(min-max) of the rounds: of the clock, and of the processor; over the chain that is the Computer's, and a mean. It has
no peer.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import psutil
from rich.console import Console
from rich.table import Table

from bench.context_agent import OFFICE, Agent
from bench.processes import BIN, line_of, services_env, start, start_nats, wait_until_ready
from smcp_bus.callers import Caller
from smcp_bus.dispatch import Dispatcher
from smcp_computer.access import Access
from smcp_computer.finder import Finder, MetadataCache
from smcp_computer.mcp.events import ServerEvents
from smcp_computer.resources.index import Listing
from smcp_computer.tools import Catalogue, History
from smcp_proto import catalog
from smcp_service.lifecycle import background
from smcp_testing.mcp_servers import configs

DOCUMENTS = 10_000
SERVERS = 20
LIMIT_MS = 50.0
READ_S = 0.002
"""How long a server takes over one document."""
FILL_S = 600.0
"""How long the first reading of all documents may take (seconds)."""

COMPUTER: Final = "library"

Round = tuple[float, float]
Found = dict[str, list[Round]]
"""By question."""


def lists() -> dict[str, Listing]:
    """What `resources/list` of each server says."""
    return {
        f"server-{server}": Listing(
            f"server-{server}",
            (
                {"uri": uri, "name": uri, "mimeType": "application/json"}
                for number in range(DOCUMENTS // SERVERS)
                for uri in [f"dpe://com.example.server-{server}/doc-{number}"]
            ),
        )
        for server in range(SERVERS)
    }


async def read(server: str, uri: str, timeout: float) -> Mapping[str, Any]:
    """Level 1 of a document."""
    await asyncio.sleep(READ_S)
    number = int(uri.rpartition("-")[2])
    summary = {
        "doc_ref": f"doc-{number}",
        "uri": uri,
        "file_type": ("xlsx", "pdf", "pptx")[number % 3],
        "title": f"{number} 年度报告",
        "page_count": number % 50,
        "keywords": ["财务", "年报", f"keyword {number % 100}"],
        "summary": "年度财务与运营报告, revenue by quarter and region " * 4,
        "last_modified": f"2026-01-{number % 28 + 1:02}T08:30:00+08:00",
    }
    return {"contents": [{"uri": uri, "mimeType": "application/json", "text": json.dumps(summary)}]}


async def measured(dispatcher: Dispatcher, rounds: int, **asked: Any) -> list[Round]:
    row = catalog.CATALOG["client:get_finder"]
    body = json.dumps({"agent": "a", "req_id": "r", "computer": "c", **asked}).encode()
    found: list[Round] = []
    for _ in range(rounds):
        clock, processor = time.perf_counter(), time.process_time()
        answer = await dispatcher.dispatch(row, Caller(role="agent", office="o"), body)
        found.append(((time.perf_counter() - clock) * 1e3, (time.process_time() - processor) * 1e3))
        assert answer.error is None, answer.body
    return found


QUESTIONS: Final[dict[str, dict[str, Any]]] = {
    "the first 20": {},
    "100 from the middle": {"offset": DOCUMENTS // 2, "limit": 100},
    "a keyword and a file type": {"keywords": ["财务"], "file_type": "pdf", "limit": 100},
    "three keywords that no document holds": {"keywords": ["missing", "nothing", "无"]},
}


async def at_the_door(rounds: int) -> tuple[Found, str]:
    """What was found, and what filling the cache took."""
    listed = lists()

    async def known(timeout: float) -> Mapping[str, Listing]:
        return listed

    history = History()
    for number in range(7):
        history.called(f"server-{number}")
    events = ServerEvents()
    async with background() as tasks:
        cache = MetadataCache(read, tasks, lambda server: listed[server], events)
        began = time.perf_counter()
        await cache.documents(listed, timeout=FILL_S)
        filled = time.perf_counter() - began
        access = Access(dict, Catalogue({}), "office")
        finder = Finder(cache, known, history, access, wait_s=5.0)
        dispatcher = Dispatcher({"client:get_finder": finder})
        found = {name: await measured(dispatcher, rounds, **asked) for name, asked in QUESTIONS.items()}
    return found, f"at the dispatcher, {READ_S * 1e3:g} ms each: {filled:.2f} s; kept: {cache.kept_bytes} bytes"


def chain(stack: contextlib.ExitStack) -> tuple[str, psutil.Process]:
    """Start everything; gives the URL of the Agent's gateway, and the Computer's process."""
    files = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    _, nats_url = start_nats(stack, files)
    env = services_env(nats_url)
    start(stack, BIN / "smcp-registry", env=env)
    url = line_of(start(stack, BIN / "smcp-gateway", env=env), "http://").split()[-1]
    wait_until_ready(url)
    servers = {
        f"docs-{number}": configs.lean(
            "2026" if number % 2 else "2025", documents=DOCUMENTS // SERVERS, host=f"host-{number}", delay=READ_S
        )
        for number in range(SERVERS)
    }
    config = files / "servers.json"
    config.write_text(json.dumps({"servers": servers}))
    computer = start(
        stack,
        *(BIN / "smcp-computer", "run", "--config", config, "--office", OFFICE, "--name", COMPUTER),
        env=env,
    )
    return url, psutil.Process(computer.pid)


async def over_the_chain(url: str, computer: psutil.Process, rounds: int) -> tuple[Found, str]:
    """The same, asked by an Agent."""
    agent = Agent()
    await agent.join(url)
    try:
        began = time.perf_counter()
        await _until_complete(agent)
        filled = time.perf_counter() - began
        found: Found = {}
        for name, asked in QUESTIONS.items():
            clocks, processor = [], _processor(computer)
            for _ in range(rounds):
                clock = time.perf_counter()
                answer = await agent.finder(COMPUTER, **asked)
                clocks.append((time.perf_counter() - clock) * 1e3)
                if "code" in answer:
                    raise SystemExit(f"it was not answered: {answer}")
            mean = (_processor(computer) - processor) * 1e3 / rounds
            found[name] = [(clock, mean) for clock in clocks]
    finally:
        await agent.leave()
    return found, f"over the chain, from the Agent's join to the whole catalog: {filled:.2f} s"


async def _until_complete(agent: Agent) -> None:
    """All documents are there with their metadata: the office is notified of later reads."""
    async with asyncio.timeout(FILL_S):
        while True:
            agent.told.clear()
            answer = await agent.finder(COMPUTER)
            if answer.get("total_count") == DOCUMENTS and "a2c_as_listed" not in answer:
                return
            await agent.told.wait()


def _processor(process: psutil.Process) -> float:
    """Seconds; they are counted in ticks of 10 ms, so that one answer cannot be measured."""
    times = process.cpu_times()
    return float(times.user + times.system)


def show(title: str, found: Found) -> bool:
    """Whether a median is above the limit."""
    table = Table("", "ms", "CPU ms", title=title)
    for name, rows in found.items():
        table.add_row(name, *(_shown([row[which] for row in rows]) for which in (0, 1)))
    Console(width=120).print(table)
    return any(statistics.median(clock for clock, _ in rows) > LIMIT_MS for rows in found.values())


def _shown(values: list[float]) -> str:
    spread = f" ({min(values):.2f}-{max(values):.2f})" if min(values) < max(values) else ""
    return f"{statistics.median(values):.2f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=50)
    rounds = parser.parse_args().rounds
    dispatcher, door_filled = asyncio.run(at_the_door(rounds))
    with contextlib.ExitStack() as stack:
        far, far_filled = asyncio.run(over_the_chain(*chain(stack), rounds))
    late = show(f"{DOCUMENTS} documents on {SERVERS} servers, at the Computer's dispatcher", dispatcher)
    late = show("the same, from an Agent", far) or late
    Console(width=120).print(f"read for the first time {door_filled}\nread for the first time {far_filled}")
    Console().print("load average at the end: " + ", ".join(f"{load:.1f}" for load in os.getloadavg()))
    if late:
        raise SystemExit(f"slower than {LIMIT_MS:g} ms")


if __name__ == "__main__":
    main()
