"""What runs scripts in VRL for `reshaping`, in a process of its own. As a program it compiles the script at standard
input, and says why it cannot, or `null`; its argument is how many bytes it may allocate.

It imports nothing of this package, so that it stays small.
"""

import json
import os
import re
import resource
import sys
from contextlib import suppress
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from vrl_python import VRLRuntime

_WHERE: Final = re.compile(r":(\d+):(\d+)")
_SAFE: Final = re.compile(r'error\[E\d+\]: (function call error for "\w+" at \(\d+:\d+\)|aborted)')
"""The beginning of an error that quotes nothing of the event."""


@cache
def prepare(memory: int) -> None:
    """Bound what this process may allocate (bytes), and hide the environment of this host from scripts."""
    os.environ.clear()
    for limit, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0)):
        with suppress(ValueError, OSError):  # it is lower already, or the system (macOS) has no such limit
            resource.setrlimit(limit, (most, most))


@lru_cache(maxsize=64)
def runtime(script: str) -> "VRLRuntime":
    """Keeps the compiled script."""
    from vrl_python import VRLRuntime  # noqa: PLC0415 -- 10 MB, which only the processes for scripts need

    return VRLRuntime()


def run(script: str, event: bytes, max_bytes: int, memory: int) -> tuple[str, str]:
    """The JSON that a script makes of the JSON of an event, or why it fails."""
    prepare(memory)  # another result may have taken the process that was prepared for this one
    try:
        made = json.dumps(runtime(script).execute(script, json.loads(event)).processed_event)
    except Exception as error:  # noqa: BLE001 -- whatever a script does is its own failure
        found = _SAFE.search(str(error))
        return "", f"the script failed: {found[1]}" if found else "the script failed"
    return (made, "") if len(made) <= max_bytes else ("", "the script gave too much")


def problem(script: str) -> str | None:
    """Why it cannot be compiled, with its line; None: it can."""
    if (found := runtime("").check_syntax(script)) is None:
        return None
    where = _WHERE.search(found.formatted_message)
    place = f"line {where[1]}, column {where[2]}: " if where else ""
    return f"is not valid VRL: {place}{found.messages[0] if found.messages else 'syntax error'}"


if __name__ == "__main__":
    prepare(int(sys.argv[1]))
    sys.stdout.buffer.write((problem(sys.stdin.buffer.read().decode()) or "null").encode())
