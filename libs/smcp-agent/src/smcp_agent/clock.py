"""Monotonic time that goes on while the host is suspended; on Linux that of the event loop does not."""

import time
from typing import Final

_CLOCK: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def now() -> float:
    """Seconds since some moment."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
