"""Runs a console script. It imports next to nothing itself, so that ctrl-C while the program is imported (a second or
two) ends it like any other command, without a traceback.
"""

import os
import signal
from importlib import import_module
from typing import NoReturn

INTERRUPTED = 130
"""The exit code of a command that ctrl-C ended before it could end by itself; the one that shells give."""


def run_command(module: str) -> NoReturn:
    """Import `module` and run its `main`.

    ctrl-C ends the process at once until `lifecycle.run` listens for signals; there is nothing to clean up yet, and
    libraries would catch a KeyboardInterrupt in an import or while they read the command line.
    """
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    import_module(module).main()
    raise SystemExit(0)
