"""The console script `smcp-registry`, and `python -m smcp_registry`."""

from smcp_service.console_script import run_command


def main() -> None:
    run_command("smcp_registry.main")


if __name__ == "__main__":
    main()
