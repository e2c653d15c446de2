"""The console script `smcp-computer`, and `python -m smcp_computer`."""

from smcp_service.console_script import run_command


def main() -> None:
    run_command("smcp_computer.main")


if __name__ == "__main__":
    main()
