"""Asks the process of this container whether it can do its work: ends with 0 when `/readyz` says so, else with 1.

    python -I -S healthcheck.py VARIABLE      # the variable that holds its port

It runs every few seconds, so it imports next to nothing.
"""

import os
import socket
import sys

_TIMEOUT_S = 2.0


def ready(port: int) -> bool:
    """Whether `/readyz` on that port of this machine answers 200 within 2 s."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S) as connection:
            connection.sendall(b"GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n")
            first, _, _ = connection.recv(4096).partition(b"\r\n")
    except OSError:
        return False
    return first.split(b" ")[1:2] == [b"200"]


if __name__ == "__main__":
    sys.exit(0 if ready(int(os.environ[sys.argv[1]])) else 1)
