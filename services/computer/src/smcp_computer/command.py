"""The console script `smcp-computer`."""

from smcp_service.entry import run_command


def main() -> None:
    run_command("smcp_computer.main")
