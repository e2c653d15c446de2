"""What a test must not leave behind: asyncio tasks and child processes."""

import asyncio
import time

import psutil

_PATIENCE_S = 2.0
"""How long the end of a test may take to become quiet: a cancelled task needs a round of the loop, a child its exit."""

_HELPERS = ("resource_tracker", "forkserver", "semaphore_tracker")
"""Children that multiprocessing keeps for the whole process."""


def child_processes() -> set[psutil.Process]:
    """All living descendants of this process (zombies that nobody waited for count as living)."""
    return {child for child in psutil.Process().children(recursive=True) if not _is_helper(child)}


def assert_no_child_processes_beside(before: set[psutil.Process]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while left := child_processes() - before:
        if time.monotonic() > deadline:
            raise AssertionError(f"the test left child processes behind: {[_describe(child) for child in left]}")
        time.sleep(0.01)


async def assert_no_tasks_beside(before: set["asyncio.Task[object]"]) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _PATIENCE_S
    while left := {task for task in asyncio.all_tasks() if task is not asyncio.current_task()} - before:
        if loop.time() > deadline:
            raise AssertionError(f"the test left tasks behind: {[task.get_coro() for task in left]}")
        await asyncio.sleep(0.01)


def _is_helper(child: psutil.Process) -> bool:
    try:
        return any(helper in part for part in child.cmdline() for helper in _HELPERS)
    except psutil.Error:
        return False


def _describe(child: psutil.Process) -> str:
    try:
        return f"{child.pid} {' '.join(child.cmdline()) or child.status()}"
    except psutil.Error:
        return f"{child.pid} (gone)"
