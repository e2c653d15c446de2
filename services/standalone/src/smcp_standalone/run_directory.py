"""A temporary directory for one run. It holds credentials, so nothing of it stays when the run has ended.

Its owner holds a lock in it (`flock`, which the kernel lets go of at every kind of death): a directory whose lock can
be had belongs to a run that was killed, and the next run removes it.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

LOCK: Final = "lock"
_REMOVALS: Final = 5
"""A nats-server that is being stopped may write into a directory while it is removed."""


@contextmanager
def run_directory(prefix: str) -> Iterator[Path]:
    """A private directory while the body runs; what killed runs left under the same `prefix` is removed first.

    Raises:
        OSError: there is no place for it.
    """
    _remove_leftovers(prefix)
    directory, lock = _locked(prefix)
    with lock:
        try:
            yield directory
        finally:
            remove(directory)


def remove(directory: Path) -> None:
    """Remove the directory with all that is in it, as far as that goes."""
    for _ in range(_REMOVALS):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return


def _locked(prefix: str) -> tuple[Path, IO[str]]:
    while True:
        directory = Path(tempfile.mkdtemp(prefix=prefix))
        lock = (directory / LOCK).open("x")
        if _held(lock, directory):
            return directory, lock
        lock.close()  # another run that starts now took it for a leftover, and removes it


def _held(lock: IO[str], directory: Path) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(lock.fileno()), (directory / LOCK).stat())
    except (BlockingIOError, FileNotFoundError):
        return False


def _remove_leftovers(prefix: str) -> None:
    for directory in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):  # gone meanwhile, or not ours to touch
            found = directory.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                continue
            with (directory / LOCK).open("r+") as lock:
                if _held(lock, directory):
                    remove(directory)
