"""The console script `smcp`."""

from smcp_service.entry import run_command


def main() -> None:
    run_command("smcp_standalone.main")
