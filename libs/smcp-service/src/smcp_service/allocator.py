"""How the C library keeps memory for a process that is given one large body after the other.

By default glibc gives the top of the heap back to the kernel whenever 128 KiB of it are free, and asks for it again
with the next body: each time it comes as pages that have to be cleared. For a gateway that is some hundredths of the
CPU of a call of 64 KB.
"""

import ctypes
import sys
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
"""Of glibc's `malloc.h`."""

KEPT_BYTES: Final = 16 * 1024 * 1024
"""What may be free at the top of the heap before it is given back."""
STEP_BYTES: Final = 1024 * 1024
"""What is asked for beyond what is needed."""
MAPPED_BYTES: Final = 1024 * 1024
"""What is as large comes from the kernel each time, and goes back as soon as it is free: it splinters no heap."""


def keep_freed_memory() -> bool:
    """Keep some freed memory for the next body. False: the C library is not glibc, and nothing was changed."""
    if sys.platform == "win32":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = {_M_TRIM_THRESHOLD: KEPT_BYTES, _M_TOP_PAD: STEP_BYTES, _M_MMAP_THRESHOLD: MAPPED_BYTES}
    return bool(min(mallopt(name, value) for name, value in wanted.items()) == 1)
