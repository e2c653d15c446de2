"""The key that `smcp up` makes for one run, and the file by which clients of the same user find it.

The file is named after the URL's host and port, as `smcp up` prints them. `localhost` does not find it: another user
could listen on the other address that `localhost` stands for, and would get the key.
"""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

_LONGEST: Final = 256
"""Bytes; a key has 60."""
_KEY: Final = re.compile(r"smcp_[0-9a-z]+_[A-Za-z0-9_-]+")


def local_key(url: str) -> str | None:
    """The key for the gateway at this URL, if a `smcp up` of this user runs there. Never raises."""
    try:
        handle = os.open(_path(url), os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except (OSError, ValueError):
        return None
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(file.fileno())
        if hasattr(os, "getuid") and (found.st_uid != os.getuid() or found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)):
            return None
        key = file.read(_LONGEST).decode("ascii", "replace").strip()
        return key if _KEY.fullmatch(key) else None


@contextmanager
def shared_key(url: str, key: str) -> Iterator[None]:
    """Let clients of this user find the key while the body runs. Raises OSError: the file cannot be written."""
    path = _path(url)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # of a run that was killed
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(key + "\n")
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()


def _path(url: str) -> Path:
    """Raises ValueError: that is no URL with a host and a port."""
    parts = urlsplit(url)
    if not parts.hostname or not parts.port:
        raise ValueError(url)
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
    return state / "a2c-smcp" / "keys" / f"{parts.hostname.replace(':', '_')}-{parts.port}"
