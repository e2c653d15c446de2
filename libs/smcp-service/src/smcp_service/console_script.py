"""Runs a console script, and imports libraries without their parts that the process does not use.

It imports next to nothing itself: ctrl-C while the program is imported ends it at once."""

import os
import signal
import sys
from importlib import import_module
from types import ModuleType
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
    import_without("structlog", "rich", "rich.console", "rich.pretty", "rich.traceback")  # tracebacks in colour: 4 MB
    import_module(module).main()
    raise SystemExit(0)


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def import_without(wanted: str, *unwanted: str) -> None:
    """Import a module (`mcp.client`) without others that it imports and this process does not use: they take megabytes.
    Empty modules stand for them meanwhile; a later import gives the real ones. It depends on what the library imports.
    Does nothing if the library was imported before."""
    if wanted.partition(".")[0] in sys.modules:
        return
    stand_ins = {name: _StandIn(name) for name in unwanted if name not in sys.modules}
    sys.modules.update(stand_ins)
    try:
        import_module(wanted)
    finally:
        for name in stand_ins:
            del sys.modules[name]
