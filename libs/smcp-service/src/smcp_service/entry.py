"""How a console script begins: it imports next to nothing itself, so that ctrl-C while the rest of the program is
imported (a second or two) ends it like any other command, without a traceback.
"""

from importlib import import_module
from typing import NoReturn

INTERRUPTED = 130
"""The exit code of a command that ctrl-C ended before it could end by itself; the one that shells give."""


def run_command(module: str) -> NoReturn:
    """Import `module` and run its `main`."""
    try:
        import_module(module).main()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    raise SystemExit(0)
