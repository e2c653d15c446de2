"""Errors that end a process and that its operator can do something about."""


class Failure(Exception):
    """Ends the process with a sentence instead of a traceback: a port is taken, a server cannot be reached.

    `exit_code` is what the process exits with: 1 failed, 2 wrong usage or configuration.
    """

    exit_code: int = 1
