"""`organize_desktop` of 1,000 windows and `organize_finder` of 10,000 documents.

    python -m bench.organize [--rounds 15]

Prints milliseconds per call, medians (min-max) of the rounds: of the clock, and of the processor. The published
`organize_desktop` runs beside ours, in an environment of its own and in the same rounds.
"""

import argparse
import json
import random
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import published_env
from smcp_proto.desktop import Window, organize_desktop
from smcp_proto.finder import Document, organize_finder

WINDOWS = 1_000
DOCUMENTS = 10_000
SERVERS = 20
LIMIT_MS = 10.0
PEER_S = 60.0
"""How long one round of the published function may take (seconds)."""

Round = tuple[float, float]
"""Milliseconds: of the clock, of the processor."""


def windows() -> list[Window]:
    """Windows of 1 KB each; one in ten has a warning, one server in ten a fullscreen window."""
    chance = random.Random(4)
    return [
        Window(
            f"server-{number % SERVERS}",
            {
                "uri": f"window://com.example.server-{number % SERVERS}/window%20{number}",
                "name": f"window {number}",
                "annotations": {
                    "priority": 80 if number % 10 == 7 else chance.random(),
                    "audience": ["assistant"],
                    "lastModified": "2026-01-15T08:30:00Z",
                },
                "_meta": {"fullscreen": number in (500, 511)},
            },
            [{"uri": "window://x", "mimeType": "text/plain", "text": "x" * 1024}],
        )
        for number in range(WINDOWS)
    ]


def documents() -> list[Document]:
    """Documents with all their metadata, in no order."""
    chance = random.Random(4)
    made = [
        Document.of(
            f"server-{number % SERVERS}",
            {
                "doc_ref": f"doc-{number}",
                "uri": f"dpe://com.example.server-{number % SERVERS}/doc-{number}",
                "file_type": ("xlsx", "pdf", "pptx")[number % 3],
                "title": f"{number} 年度报告",
                "page_count": number % 50,
                "keywords": ["财务", "年报", f"keyword {number % 100}"],
                "summary": "年度财务与运营报告, revenue by quarter and region " * 4,
                "last_modified": f"20{chance.randrange(10, 26)}-{chance.randrange(1, 13):02}-15T08:30:00+08:00",
            },
        )[0]
        for number in range(DOCUMENTS)
    ]
    return [document for document in made if document is not None]


def timed(work: Callable[[], object]) -> Round:
    clock, processor = time.perf_counter(), time.process_time()
    work()
    return (time.perf_counter() - clock) * 1e3, (time.process_time() - processor) * 1e3


def peer(shown: list[Window]) -> Round:
    """One round of the published function: it gets the same windows, and logs as it is set up to."""
    windows = [{"server": each.server, "resource": each.resource, "contents": each.contents} for each in shown]
    script = Path(__file__).parent / "servers" / "published_organize.py"
    run = subprocess.run(
        [published_env.python(), script],
        input=json.dumps(windows), capture_output=True, text=True, check=True, timeout=PEER_S,
    )  # fmt: skip
    clock, processor = json.loads(run.stdout.splitlines()[-1])
    return clock, processor


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    desktop, library = windows(), documents()
    history = [f"server-{number % 7}" for number in range(100)]
    half = len(library) // 2
    work: dict[str, Callable[[], Round]] = {
        f"organize_desktop, {WINDOWS} windows": lambda: timed(lambda: organize_desktop(desktop, None, history)),
        "the same, published": lambda: peer(desktop),
        f"organize_finder, {DOCUMENTS} documents, all": lambda: timed(
            lambda: organize_finder(library, None, None, history)
        ),
        "three keywords, of which none is found": lambda: timed(
            lambda: organize_finder(library, ["missing", "nothing", "无"], None, history)
        ),
        "a keyword and a file type, the middle": lambda: timed(
            lambda: organize_finder(library, ["财务"], "PDF", history, offset=half // 3, limit=100)
        ),
    }
    found: dict[str, list[Round]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, one in work.items():
            found[name].append(one())
    table = Table("", "ms", "CPU ms", title=f"medians of {rounds} rounds (min-max); the aim is {LIMIT_MS:g} ms")
    for name, each in found.items():
        table.add_row(name, *(shown([one[column] for one in each]) for column in (0, 1)))
    Console().print(table)


def shown(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


if __name__ == "__main__":
    main()
