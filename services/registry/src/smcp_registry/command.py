"""The console script `smcp-registry`."""

from smcp_service.entry import run_command


def main() -> None:
    run_command("smcp_registry.main")
