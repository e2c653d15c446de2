"""Says when the configuration file may be another one: it changed on disk, or the process got SIGHUP.

It does not read the file: see `Computer.reload`. The directories of the file, and of the link to it, are watched rather
than the file: editors put another file in its place, and Kubernetes swaps a link beside it.
"""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Final

from watchfiles import awatch

_log = logging.getLogger("smcp_computer")
logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it tells of every change in the directory

POLL_MS: Final = 5000
"""The file is looked at so often in any case: some file systems tell of no changes, and a directory may be replaced."""
STEP_MS: Final = 100
"""Changes that come within this time are one: an editor makes several."""
BUSY_MS: Final = 500
"""A directory where something changes all the time does not hold a change up for longer."""


async def file_changes(path: Path) -> AsyncGenerator[None, None]:
    """Yields at once, for what changed since the file was read first, and then whenever it may have changed."""
    state = None
    while True:
        directories = _directories(path)
        try:
            while (now := _state(path)) != state:
                state = now
                yield
            watching = awatch(
                *directories,
                watch_filter=None,
                recursive=False,
                step=STEP_MS,
                debounce=BUSY_MS,
                rust_timeout=POLL_MS,
                yield_on_timeout=True,
            )
            async with aclosing(watching):
                async for _ in watching:
                    if (now := _state(path)) != state:
                        state = now
                        yield
                    if _directories(path) != directories:
                        break
        except OSError as error:  # a directory is gone, or the system has no watches left
            _log.debug("%s is looked at every %g s: %s", path, POLL_MS / 1000, error)
            await asyncio.sleep(POLL_MS / 1000)


def _state(path: Path) -> tuple[int, ...]:
    """Another one for any change of the file; empty where there is none."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _directories(path: Path) -> dict[Path, int]:
    """Those to watch, with their inodes: another directory may take the place of one."""
    found: dict[Path, int] = {}
    for each in (path.absolute(), path.resolve()):
        if (directory := each.parent).is_dir():
            found[directory] = directory.stat().st_ino
    return found


@contextmanager
def hangups(reload: Callable[[], object]) -> Iterator[None]:
    """SIGHUP calls `reload` while the body runs, and does nothing after it: the process is ending then.

    SIGHUP that says that the terminal was closed stops the process, as it would without this. One that is ignored
    (nohup) stays ignored.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        yield
        return
    loop, had_terminal = asyncio.get_running_loop(), _has_terminal()

    def on_signal() -> None:
        if had_terminal and not _has_terminal():
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            _log.info("the configuration is read again (SIGHUP)")
            reload()

    loop.add_signal_handler(signal.SIGHUP, on_signal)
    try:
        yield
    finally:
        loop.add_signal_handler(signal.SIGHUP, lambda: None)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
