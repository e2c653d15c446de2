"""Says when the configuration may be another one: a file of it changed on disk, or the process got SIGHUP.

It does not read the files: see `Computer.reload`. They are looked at again and again, through their links: editors put
another file in a file's place, Kubernetes swaps a link beside it, and some file systems tell of no changes.
"""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

LOOK_S: Final = 0.2
"""Between two looks. A change counts once two of them saw the same, since an editor makes several in a row."""
MOST_LOOKS: Final = 5
"""A file that changes all the time counts after so many looks, which is 1 s."""


async def file_changes(files: Callable[[], Collection[Path]]) -> AsyncGenerator[None, None]:
    """Yields at once, for what changed since the files were read first, and then whenever one may have changed.

    `files` may return others after a change: the configuration file names some of them.
    """
    read = seen = _state(files())
    looks = 0
    yield
    while True:
        await asyncio.sleep(LOOK_S)
        before, seen = seen, _state(files())
        looks = 0 if seen == read else looks + 1
        if looks and (before == seen or looks == MOST_LOOKS):
            read, looks = seen, 0
            yield


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
