"""The console script `smcp`, and `python -m smcp_standalone`."""

from smcp_service.console_script import run_command


def main() -> None:
    run_command("smcp_standalone.main")


if __name__ == "__main__":
    main()
