"""The orders to a process of the load, one word per line, and its replies. The standard library alone."""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

MARK: Final = "@ "
"""Begins a line of ours: the published package prints, too."""

Work = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
"""Does what is to be done until the event is set, and ends what runs."""


async def follow(opened: AbstractAsyncContextManager[Work]) -> None:
    """Reply `ready` when all members are in, work from `begin` to `finish`, reply `done`, and end at `go`."""
    async with opened as work:
        say("ready")
        await _told("begin")
        finishing = asyncio.Event()
        working = asyncio.ensure_future(work(finishing))
        finish = asyncio.create_task(_told("finish"))
        await asyncio.wait({working, finish}, return_when=asyncio.FIRST_COMPLETED)
        if not finish.done():
            await working  # it raises
            raise RuntimeError("the work ended before its time")
        finishing.set()
        await working
        say("done")
        await _told("go")
    times = os.times()
    say(f"cpu {times.user + times.system + times.children_user + times.children_system:.2f}")


def config() -> Any:
    """The JSON in the file that the first argument names."""
    return json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))


def say(word: str) -> None:
    sys.stdout.write(f"\n{MARK}{word}\n")
    sys.stdout.flush()


async def _told(word: str) -> None:
    line = await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    if line.strip() != word:
        raise RuntimeError(f"told {line!r} in place of {word!r}")
