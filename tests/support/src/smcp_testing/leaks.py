"""What a test must not leave behind: asyncio tasks and child processes."""

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from smcp_testing.fork_server import MODULE as NURSERY
from smcp_testing.fork_server import Forked
from smcp_testing.waiting import BOUND_S

_PATIENCE_S = BOUND_S
"""How long the end of a test may take to become quiet: a cancelled task needs a round of the loop, a child its exit."""

_ENDS_WITH_LOOP = "AnyIO process pool shutdown task"
"""anyio ends its worker processes when the loop ends."""
_HELPERS = ("resource_tracker", "forkserver", "semaphore_tracker", NURSERY)
"""Children that are kept for the whole process, by multiprocessing and by us; what they start is not a helper."""


def child_processes() -> set[psutil.Process]:
    """All living descendants of this process (zombies that nobody waited for count as living), and what a fork server
    forked for it."""
    return {child for child in (*_descendants(), *_forked()) if not _is_helper(child)}


def _descendants() -> Iterator[psutil.Process]:
    """Read from what Linux lists of each process, if it does: psutil reads all processes of the machine, and this is
    wanted twice for each test."""
    this = os.getpid()
    if not Path(f"/proc/{this}/task/{this}/children").exists():
        yield from psutil.Process().children(recursive=True)
        return
    parents = [this]
    while parents:
        for pid in _children(parents.pop()):
            parents.append(pid)
            with contextlib.suppress(psutil.NoSuchProcess):
                yield psutil.Process(pid)


def _forked() -> Iterator[psutil.Process]:
    for pid in Forked.living:
        with contextlib.suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process has ended meanwhile
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # only the thread has
                found += map(int, thread.joinpath("children").read_text().split())
    return found


def assert_no_child_processes_beside(before: set[psutil.Process]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while left := child_processes() - before:
        if time.monotonic() > deadline:
            raise AssertionError(f"the test left child processes behind: {[_describe(child) for child in left]}")
        time.sleep(0.01)


async def assert_no_tasks_beside(before: set["asyncio.Task[object]"]) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _PATIENCE_S
    while left := {
        task for task in asyncio.all_tasks() - before - {asyncio.current_task()} if task.get_name() != _ENDS_WITH_LOOP
    }:
        if loop.time() > deadline:
            raise AssertionError(f"the test left tasks behind: {[task.get_coro() for task in left]}")
        await asyncio.wait(left, timeout=deadline - loop.time())  # one that ends may begin another


def _is_helper(child: psutil.Process) -> bool:
    try:
        if child.ppid() != os.getpid():
            return False
        return any(helper in part for part in child.cmdline() for helper in _HELPERS)
    except psutil.Error:
        return False


def _describe(child: psutil.Process) -> str:
    try:
        return f"{child.pid} {' '.join(child.cmdline()) or child.status()}"
    except psutil.Error:
        return f"{child.pid} (gone)"
