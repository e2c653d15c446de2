"""Files that others read or write, too: written as a whole, and read again when they change."""

import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Generic, TypeVar

from smcp_service.lifecycle import Failure
from smcp_service.settings import SettingsError

LARGEST: Final = 16 * 1024 * 1024

Value = TypeVar("Value")


def replace_files(contents: Mapping[Path, bytes], *, keep_access: bool = False, mode: int = 0o600) -> None:
    """Write all files beside their places, then rename them into place. `keep_access`: as the file that is there.

    Raises OSError: none is changed, unless the system refuses to rename.
    """
    written: dict[Path, Path] = {}
    try:
        for path, content in contents.items():
            target = Path(os.path.realpath(path))  # `resolve` raises RuntimeError for a loop of links
            if target.is_dir():  # told before others are replaced
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
            written[target] = Path(name)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(handle)
                os.fchmod(handle, mode)
                if keep_access and target.exists():
                    before = target.stat()
                    os.fchown(handle, before.st_uid, before.st_gid)
                    os.fchmod(handle, stat.S_IMODE(before.st_mode))
        for target, temporary in written.items():
            temporary.replace(target)
    finally:
        for temporary in written.values():
            temporary.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a file or directory, until the process ends at the latest. Raises OSError; BlockingIOError:
    another process has it, and `wait` is false."""
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(handle)


def stamp(path: Path) -> tuple[int, ...]:
    """Another one for any change of a file; empty where there is none."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class UnusableFile(Failure):
    """The file cannot be used. The message names it, and the field, never a hash."""

    exit_code = SettingsError.exit_code


def read_protected(path: Path) -> bytes:
    """Raises UnusableFile: it cannot be read, is too large, or its group or others may write it."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(LARGEST + 1)
    except OSError as error:
        raise UnusableFile(f"{path}: cannot be read: {error.strerror or error}") from None
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnusableFile(f"{path}: its group or others may write it (mode {mode:04o}); run chmod go-w on it")
    if len(text) > LARGEST:
        raise UnusableFile(f"{path}: is larger than {LARGEST} bytes")
    return text


class WatchedFile(Generic[Value]):
    """What `read` makes of a file. Raises UnusableFile: it cannot be read the first time."""

    def __init__(self, path: Path, read: Callable[[Path], Value]) -> None:
        self._path = path
        self._read = read
        self._seen = stamp(path)
        self._refused = self._seen
        """The last change that could not be read and was reported."""
        self.value = read(path)

    def refresh(self) -> bool:
        """Read the file again if it has changed; returns whether it had. Blocks: call it in a thread. Raises
        UnusableFile, once per change, if the file cannot be read; the value stays as it is."""
        now = stamp(self._path)  # before reading: a change meanwhile is seen next time
        if now == self._seen:
            return False
        try:
            self.value = self._read(self._path)
        except UnusableFile:  # tried again each time: the cause may be temporary
            if now == self._refused:
                return False
            self._refused = now
            raise
        self._seen = self._refused = now
        return True
