"""Waiting and measuring in tests: always with a bound, and fair to a machine that others use too."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar, overload

T = TypeVar("T")

BOUND_S: Final = 30.0
"""How long a test waits for what happens within milliseconds on an idle machine."""
OWNER_FIRST_S: Final = 5
"""The `timeout` of a call whose time-out its Computer's side answers. That comes a tenth of it, and at most half a
second, before the Agent's gateway gives up. Of 1 s the tenth is too short: a process of a busy machine stands still for
longer."""
_PRESSURE: Final = Path("/proc/pressure/cpu")


class Stopwatch:
    """How long something takes, from the moment this is made: `began`, in monotonic seconds."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._contended = _contended_s()

    @property
    def took(self) -> float:
        return time.monotonic() - self.began

    @property
    def undisturbed(self) -> float:
        """The same, without the time in which some process of this machine waited for a processor.

        Check a promise in seconds with this: strict on an idle machine, and no chance failure on a busy one.
        Linux counts that time (pressure stall information); elsewhere nothing is left out.
        """
        return self.took - (_contended_s() - self._contended)


def _contended_s() -> float:
    try:
        some = _PRESSURE.read_text(encoding="ascii").splitlines()[0]
    except OSError:
        return 0.0
    return int(some.rpartition("=")[2]) / 1e6


@asynccontextmanager
async def within(promised: float) -> AsyncIterator[None]:
    """The block ends within so many undisturbed seconds, also where it ends with an error.

    Raises:
        AssertionError: it took longer. TimeoutError: much longer.
    """
    watch = Stopwatch()
    async with asyncio.timeout(promised + BOUND_S):
        try:
            yield
        finally:
            took = watch.undisturbed
            assert took <= promised, f"it took {took:.2f} undisturbed s of {promised:g} s"


def steps(work: Coroutine[Any, Any, Any]) -> tuple[Any, list[float]]:
    """What it returns, and the seconds of processor of each step in which the loop serves nobody else."""
    took: list[float] = []
    while True:
        began = time.thread_time()
        try:
            work.send(None)
        except StopIteration as end:
            return end.value, took
        finally:
            took.append(time.thread_time() - began)


async def longest_step(work: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """What it returns, and the longest step of the event loop meanwhile, in seconds of its own thread: other processes
    do not count."""
    longest, task = 0.0, asyncio.create_task(work)
    while not task.done():
        before = time.thread_time()
        await asyncio.sleep(0)
        longest = max(longest, time.thread_time() - before)
    return await task, longest


@overload
async def eventually(
    predicate: Callable[[], Awaitable[T]], *, timeout: float = ..., message: str = ..., pause: float = ...
) -> T: ...


@overload
async def eventually(
    predicate: Callable[[], T], *, timeout: float = ..., message: str = ..., pause: float = ...
) -> T: ...


async def eventually(
    predicate: Callable[[], object], *, timeout: float = BOUND_S, message: str = "", pause: float = 0.01
) -> object:
    """Ask `predicate()` every `pause` seconds until it is true, and return its value.

    The predicate may be async, and may raise AssertionError while it does not hold yet.

    Raises:
        AssertionError: it was not true within `timeout` seconds; says what it gave last.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    last: object = None
    while True:
        try:
            value = predicate()
            last = result = await value if isinstance(value, Awaitable) else value
            if result:
                return result
        except AssertionError as error:
            last = error
        if loop.time() >= deadline:
            raise AssertionError(f"{message or 'it did not become true'} within {timeout} s; last: {last!r}")
        await asyncio.sleep(pause)
