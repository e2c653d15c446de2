"""The process that runs scripts in VRL for `reshaping`: a JSON line in, a JSON line out, until standard input ends.
Its argument is how many bytes it may allocate.

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


def main() -> None:
    for limit, most in ((resource.RLIMIT_AS, int(sys.argv[1])), (resource.RLIMIT_CORE, 0)):
        with suppress(ValueError, OSError):  # it is lower already, or the system (macOS) has no such limit
            resource.setrlimit(limit, (most, most))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        sys.stdout.write(json.dumps(answer(request["script"], request["event"])) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
