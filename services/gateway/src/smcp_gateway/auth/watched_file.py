"""A file that says who may connect, or who may not any more: read at the start, and again whenever it changes.

What is in it, and what a gateway does about a change, is for `api_keys`, `grants` and `guard`.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from smcp_service.lifecycle import Failure
from smcp_service.settings import SettingsError

LARGEST: Final = 16 * 1024 * 1024

Value = TypeVar("Value")


class AuthFileError(Failure):
    """The file cannot be used. The message names it, and the field, never a hash."""

    exit_code = SettingsError.exit_code


def content(path: Path) -> bytes:
    """Raises AuthFileError: it cannot be read, is too large, or its group or others may write it."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(LARGEST + 1)
    except OSError as error:
        raise AuthFileError(f"{path}: cannot be read: {error.strerror or error}") from None
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise AuthFileError(f"{path}: its group or others may write it (mode {mode:04o}); run chmod go-w on it")
    if len(text) > LARGEST:
        raise AuthFileError(f"{path}: is larger than {LARGEST} bytes")
    return text


class WatchedFile(Generic[Value]):
    """What `read` makes of a file. Raises AuthFileError: it cannot be read the first time."""

    def __init__(self, path: Path, read: Callable[[Path], Value]) -> None:
        self._path = path
        self._read = read
        self._seen = self._stamp()
        self._refused = self._seen
        """The last change that could not be read and was reported."""
        self.value = read(path)

    def refresh(self) -> bool:
        """Read the file again if it has changed; returns whether it had. Blocks: call it in a thread.

        Raises:
            AuthFileError: it has changed and cannot be read; the value stays as it is. Raised once for a change.
        """
        stamp = self._stamp()  # before reading: a change meanwhile is seen next time
        if stamp == self._seen:
            return False
        try:
            self.value = self._read(self._path)
        except AuthFileError:  # tried again each time: the cause may be temporary
            if stamp == self._refused:
                return False
            self._refused = stamp
            raise
        self._seen = self._refused = stamp
        return True

    def _stamp(self) -> tuple[int, int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size
