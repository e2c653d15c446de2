"""Ports for servers that are killed and come back on the same one. One that the system chooses (0) could be an outgoing
connection's meanwhile."""

import os
import random
import socket
from typing import ClassVar, Final

_FIRST: Final = 20_000
_AFTER: Final = 32_000
"""Below Linux's ephemeral ports: no outgoing connection can take one while its server is away."""
_chance: Final = random.SystemRandom()  # hypothesis seeds the other one, alike in every process


class Ports:
    """Hands out free ports of 127.0.0.1, each once in this process, and none that another worker of the run hands out:
    the server that it is for may start some time later, or be away for a while."""

    _given: ClassVar[set[int]] = set()

    def take(self) -> int:
        worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        for _ in range(1000):
            port = _chance.randrange(_FIRST + worker, _AFTER, workers)
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
