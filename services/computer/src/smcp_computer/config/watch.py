"""Says when the configuration may be another one: a file of it changed on disk, or the process got SIGHUP.

It does not read the files: see `Computer.reload`. The directories of a file, and of the link to it, are watched rather
than the file: editors put another file in its place, and Kubernetes swaps a link beside it.
"""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Final

from watchfiles import awatch

_log = logging.getLogger("smcp_computer")
logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it tells of every change in the directory

POLL_MS: Final = 5000
"""Files are looked at so often in any case: some file systems tell of no changes, and a directory may be replaced."""
STEP_MS: Final = 50
"""Changes that come within this time are one: an editor makes several. A change waits for one step or two."""
BUSY_MS: Final = 500
"""A directory where something changes all the time does not hold a change up for longer."""


async def file_changes(files: Callable[[], Collection[Path]]) -> AsyncGenerator[None, None]:
    """Yields at once, for what changed since the files were read first, and then whenever one may have changed.

    `files` may return others after a change: the configuration file names some of them.
    """
    state = None
    while True:
        directories = _directories(files())
        try:
            while (now := _state(files())) != state:
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
                    if (now := _state(files())) != state:
                        state = now
                        yield
                    if _directories(files()) != directories:
                        break
        except OSError as error:  # a directory is gone, or the system has no watches left
            _log.debug("cannot watch the configuration; it is checked every %g s: %s", POLL_MS / 1000, error)
            await asyncio.sleep(POLL_MS / 1000)


def _state(files: Collection[Path]) -> dict[Path, tuple[int, ...]]:
    """Another one for any change of a file; empty tuples for those that are not there."""
    state: dict[Path, tuple[int, ...]] = {}
    for path in files:
        try:
            found = path.stat()
        except OSError:
            state[path] = ()
        else:
            state[path] = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    return state


def _directories(files: Collection[Path]) -> dict[Path, int]:
    """Those to watch, with their inodes: another directory may take the place of one."""
    found: dict[Path, int] = {}
    for each in (place for path in files for place in (path.absolute(), path.resolve())):
        if (directory := each.parent).is_dir():
            found[directory] = directory.stat().st_ino
    return found


def spare_hangups() -> None:
    """Until `hangups` has the signal, SIGHUP ends the process only where its terminal was closed.

    What it would read again is not read yet, or is read again as soon as the files are followed.
    """
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        on_signal = _unless_closed(lambda: None)
        signal.signal(signal.SIGHUP, lambda *_: on_signal())


@contextmanager
def hangups(reload: Callable[[], object]) -> Iterator[None]:
    """SIGHUP calls `reload` while the body runs, and does nothing after it: the process is ending then.

    SIGHUP that says that the terminal was closed stops the process, as it would without this. One that is ignored
    (nohup) stays ignored.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, _unless_closed(reload))
    try:
        yield
    finally:
        loop.add_signal_handler(signal.SIGHUP, lambda: None)


def _unless_closed(action: Callable[[], object]) -> Callable[[], None]:
    """Calls `action`, but stops the process where it has lost its terminal meanwhile."""
    had_terminal = _has_terminal()

    def on_signal() -> None:
        if had_terminal and not _has_terminal():
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            action()

    return on_signal


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
