"""The console script `smcp-agent`: it imports nothing before ctrl-C has its meaning."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run `smcp-agent`; a ctrl-C ends it with 130 and no traceback, also while its libraries are being imported."""
    try:
        from smcp_agent.cli.main import main as run  # noqa: PLC0415 -- half a second of imports, which ctrl-C may end

        sys.exit(run())
    except KeyboardInterrupt:
        sys.exit(130)
