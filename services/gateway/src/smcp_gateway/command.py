"""The console script `smcp-gateway`."""

from smcp_service.entry import run_command


def main() -> None:
    run_command("smcp_gateway.main")
