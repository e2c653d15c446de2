"""The console script `smcp-computer`, and `python -m smcp_computer`."""

import os
import signal
from typing import Final

from smcp_service.console_script import run_command

_PASSED_ON: Final = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
_FROM_TERMINAL: Final = 128
"""`si_code` of what the kernel sends: ctrl-C at a terminal reaches the Computer by itself."""


def main() -> None:
    if os.getpid() == 1:
        _fork_from_process_1()
    run_command("smcp_computer.main")


def _fork_from_process_1() -> None:
    """Return in a child. Process 1 of a container (without `--init`) becomes the parent of all orphans, of the programs
    of inputs, say: it waits for all that end, passes signals on, and ends as the Computer does.
    """
    handled = {*_PASSED_ON, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    computer = os.fork()
    if computer == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
        return
    while True:
        received = signal.sigwaitinfo(handled)
        if received.si_signo != signal.SIGCHLD:
            if not (received.si_signo == signal.SIGINT and received.si_code == _FROM_TERMINAL):
                os.kill(computer, received.si_signo)
            continue
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == computer:
                code = os.waitstatus_to_exitcode(ended[1])
                os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
