"""The console script `smcp`, and `python -m smcp_standalone`."""

import sys

from smcp_service.console_script import run_command


def main() -> None:
    # at once: what the other commands need takes a second to import
    if sys.argv[1:2] == ["trace"]:
        del sys.argv[1]
        run_command("smcp_standalone.trace_command")
    run_command("smcp_standalone.main", "smcp")


if __name__ == "__main__":
    main()
