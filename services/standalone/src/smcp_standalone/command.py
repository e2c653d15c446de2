"""The console script `smcp`."""

from smcp_service.entry import run_command


def main() -> None:
    """Run the command; the program ends with its exit code."""
    run_command("smcp_standalone.main")
