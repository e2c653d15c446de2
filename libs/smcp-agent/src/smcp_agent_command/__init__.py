"""The console script `smcp-agent`: it imports nothing before ctrl-C has its meaning."""

import signal
import sys
from types import FrameType
from typing import Final, NoReturn

INTERRUPTED: Final = 130


def main() -> NoReturn:
    """Run `smcp-agent`; a ctrl-C ends it with 130 and no traceback, also while its libraries are being imported."""
    signal.signal(signal.SIGINT, _end)
    from smcp_agent.cli.main import main as run  # noqa: PLC0415 -- half a second of imports, which ctrl-C may end

    sys.exit(run())


def _end(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(INTERRUPTED)
