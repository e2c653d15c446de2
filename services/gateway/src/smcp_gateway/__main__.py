"""The console script `smcp-gateway`, and `python -m smcp_gateway`."""

from smcp_service.console_script import run_command


def main() -> None:
    run_command("smcp_gateway.main")


if __name__ == "__main__":
    main()
