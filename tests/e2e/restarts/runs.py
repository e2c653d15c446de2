"""The file in which each tool that runs stands with its `req_id`. The standard library alone."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Run:
    """A tool that ran: since when (monotonic seconds), and for how long it was to."""

    id: str
    began: float
    seconds: float


def note(path: str, req_id: str, seconds: float) -> None:
    """Append a run. Many processes do so: a line is one write."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{req_id} {time.monotonic():.6f} {seconds:.6f}\n".encode())
    finally:
        os.close(file)


def read(path: Path, skip: int = 0) -> Iterator[Run]:
    """The runs in the file, but for the first `skip` bytes."""
    if not path.exists():
        return
    with path.open(encoding="ascii") as file:
        file.seek(skip)
        for line in file:
            req_id, began, seconds = line.split()
            yield Run(req_id, float(began), float(seconds))
