"""The process that runs scripts in VRL for `reshaping`: a JSON line in, a JSON line out, until standard input ends.
Its argument is how many bytes it may allocate. With `check` behind it, it compiles the script at standard input, and
says why it cannot, or `null`.

It imports nothing of this package, so that it stays small.
"""

import json
import re
import resource
import sys
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

from vrl_python import VRLRuntime

_WHERE: Final = re.compile(r":(\d+):(\d+)")
_SAFE: Final = re.compile(r'error\[E\d+\]: (function call error for "\w+" at \(\d+:\d+\)|aborted)')
"""The beginning of an error that quotes nothing of the event."""


@lru_cache(maxsize=64)
def runtime(script: str) -> VRLRuntime:
    """Keeps the compiled script."""
    return VRLRuntime()


def answer(script: str, event: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"value": runtime(script).execute(script, event).processed_event}
    except Exception as error:  # noqa: BLE001 -- whatever a script does is its own failure
        found = _SAFE.search(str(error))
        return {"error": f"the script failed: {found[1]}" if found else "the script failed"}


def problem(script: str) -> str | None:
    """Why it cannot be compiled, with its line; None: it can."""
    if (found := VRLRuntime.check_syntax(script)) is None:
        return None
    where = _WHERE.search(found.formatted_message)
    place = f"line {where[1]}, column {where[2]}: " if where else ""
    return f"is no valid VRL: {place}{found.messages[0] if found.messages else 'syntax error'}"


def main() -> None:
    for limit, most in ((resource.RLIMIT_AS, int(sys.argv[1])), (resource.RLIMIT_CORE, 0)):
        with suppress(ValueError, OSError):  # it is lower already, or the system (macOS) has no such limit
            resource.setrlimit(limit, (most, most))
    if "check" in sys.argv:
        sys.stdout.buffer.write((problem(sys.stdin.buffer.read().decode()) or "null").encode())
        return
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        sys.stdout.write(json.dumps(answer(request["script"], request["event"])) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
