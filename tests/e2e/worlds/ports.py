"""Ports for servers that are killed and come back on the same one."""

import random
import socket

_FIRST, _LAST = 20_000, 31_999
"""Below Linux's ephemeral ports: no outgoing connection can take one while its server is away."""


class Ports:
    """Hands out free ports of 127.0.0.1, each once."""

    def __init__(self) -> None:
        self._given: set[int] = set()

    def take(self) -> int:
        for _ in range(1000):
            port = random.randint(_FIRST, _LAST)
            if port not in self._given and _is_free(port):
                self._given.add(port)
                return port
        raise RuntimeError("no free port found")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
