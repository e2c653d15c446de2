"""The console script `smcp-mcp`, and `python -m smcp_mcp`."""

from smcp_service.console_script import run_command


def main() -> None:
    run_command("smcp_mcp.main")


if __name__ == "__main__":
    main()
