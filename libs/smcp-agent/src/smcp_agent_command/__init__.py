"""The console script `smcp-agent`: it imports nothing before ctrl-C has its meaning."""

import os
import signal
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run `smcp-agent`; a ctrl-C ends it with 130 and no traceback, also while its libraries are being imported: some
    would catch a KeyboardInterrupt."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    if sys.stdout is None:  # closed (`>&-`)
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 -- until the process ends
    from smcp_agent.cli.main import app  # noqa: PLC0415 -- half a second of imports, which ctrl-C may end

    app()
    sys.exit()
