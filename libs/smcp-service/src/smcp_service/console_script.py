"""Runs a console script. It imports next to nothing itself: ctrl-C while the program is imported ends it at once."""

import os
import signal
import sys
from importlib import import_module
from typing import NoReturn

INTERRUPTED = 130
"""The exit code of a command that ctrl-C ended before it could end by itself; the one that shells give."""


def version_line(distribution: str, command: str | None = None) -> str:
    from importlib.metadata import version  # noqa: PLC0415 -- see above

    return f"{command or distribution} {version(distribution)}"


def run_command(module: str, command: str | None = None) -> NoReturn:
    """Import `module` and run its `main`; `--version` alone is answered without that. ctrl-C ends the process at once
    until `lifecycle.run` listens for signals: libraries would catch a KeyboardInterrupt."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed (`>&-`): uvloop aborts where a socket gets its number
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: PTH123, SIM115 -- until the process ends
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(version_line(module.partition(".")[0].replace("_", "-"), command) + "\n")
        raise SystemExit(0)
    _import_structlog()
    import_module(module).main()
    raise SystemExit(0)


def _import_structlog() -> None:
    """Import structlog without rich, which would take 4 MB of each process for tracebacks in colour."""
    if "rich" not in sys.modules:
        sys.modules["rich"] = None  # type: ignore[assignment] # an import of it fails
        import_module("structlog")
        del sys.modules["rich"]
