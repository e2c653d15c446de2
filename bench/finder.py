"""`client:get_finder` of 10,000 documents on 20 servers, from the cache.

    python -m bench.finder [--rounds 50]

At the Computer's door, with its library, and a function in place of the MCP servers: what is measured is one request
with validation, catalog and JSON. Prints milliseconds, medians (min-max) of the rounds: of the clock, and of the
processor. It has no peer.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Mapping
from typing import Any

from opentelemetry.metrics import get_meter
from rich.console import Console
from rich.table import Table

from smcp_bus.dispatch import Door
from smcp_bus.dispatch_types import Caller
from smcp_computer.finder.library import Library
from smcp_computer.finder.overflow import Overflow
from smcp_computer.handlers.get_finder import Finder
from smcp_proto import catalog
from smcp_service.lifecycle import background
from smcp_service.settings import MIB

DOCUMENTS = 10_000
SERVERS = 20
LIMIT_MS = 50.0
READ_S = 0.002
"""How long a server takes over one document."""
FILL_S = 120.0

Round = tuple[float, float]
Listing = Mapping[str, Mapping[str, Any]]


def lists() -> dict[str, Listing]:
    """What the servers list."""
    return {
        f"server-{server}": {
            uri: {"uri": uri, "name": uri, "mimeType": "application/json"}
            for number in range(DOCUMENTS // SERVERS)
            for uri in [f"dpe://com.example.server-{server}/doc-{number}"]
        }
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


async def measured(door: Door, rounds: int, **asked: Any) -> list[Round]:
    row = catalog.CATALOG["client:get_finder"]
    body = json.dumps({"agent": "a", "req_id": "r", "computer": "c", **asked}).encode()
    found: list[Round] = []
    for _ in range(rounds):
        clock, processor = time.perf_counter(), time.process_time()
        answer = await door.dispatch(row, Caller(role="agent", office="o"), body)
        found.append(((time.perf_counter() - clock) * 1e3, (time.process_time() - processor) * 1e3))
        assert answer.error is None, answer.body
    return found


async def bench(rounds: int) -> None:
    listed = lists()

    async def known(timeout: float) -> Mapping[str, Listing]:
        return listed

    history = tuple(f"server-{number % 7}" for number in range(7))
    async with background() as tasks:
        library = Library(
            read,
            tasks,
            lambda server: listed[server],
            lambda: None,
            Overflow(get_meter("bench")),
            cache_bytes=64 * MIB,
            index_bytes=128 * MIB,
        )
        began = time.perf_counter()
        await library.documents(listed, timeout=FILL_S)
        filled = time.perf_counter() - began
        door = Door({"client:get_finder": Finder(library, known, lambda: history, wait_s=5.0, max_body=2**25)})
        table = Table("", "ms", "CPU ms", title=f"{DOCUMENTS} documents on {SERVERS} servers")
        questions: dict[str, dict[str, Any]] = {
            "the first 20": {},
            "100 from the middle": {"offset": DOCUMENTS // 2, "limit": 100},
            "a keyword and a file type": {"keywords": ["财务"], "file_type": "pdf", "limit": 100},
            "three keywords that no document holds": {"keywords": ["missing", "nothing", "无"]},
        }
        late = False
        for name, asked in questions.items():
            found = await measured(door, rounds, **asked)
            late = late or statistics.median(processor for _, processor in found) > LIMIT_MS
            table.add_row(name, *(_shown([one[which] for one in found]) for which in (0, 1)))
    console = Console()
    console.print(table)
    console.print(
        f"read for the first time, {READ_S * 1e3:g} ms each: {filled:.2f} s; kept: {library.kept_bytes} bytes"
    )
    if late:
        raise SystemExit(f"slower than {LIMIT_MS:g} ms")


def _shown(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=50)
    asyncio.run(bench(parser.parse_args().rounds))


if __name__ == "__main__":
    main()
