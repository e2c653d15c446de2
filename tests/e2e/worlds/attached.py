"""A container that runs, as a child of the test run: what it prints goes to a file, and it ends with an exit code."""

import signal
import threading
from pathlib import Path
from typing import Final

from docker.errors import APIError
from docker.models.containers import Container as Wrapped

from tests.e2e.worlds.engine import told

_GONE: Final = 409
"""What the engine says of a container that does not run (any more), where one that does is needed."""


class Attached:
    """Made, it runs: see `process.Child`. A thread follows it until its end.

    Raises:
        AssertionError: it cannot be started; says why.
    """

    def __init__(self, container: Wrapped, log: Path) -> None:
        self._container = container
        self._log = log
        self._code: int | None = None
        with told():
            # before it starts: its first line is one of those that matter
            self._printed = container.attach(stream=True, logs=False)
            container.start()
        self._thread = threading.Thread(target=self._follow, name=f"log of {container.name}", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """Of its first process, as this machine counts them."""
        with told():
            self._container.reload()
        return int(self._container.attrs["State"]["Pid"])

    @property
    def returncode(self) -> int | None:
        return self._code

    def poll(self) -> int | None:
        """Its exit code, once it has ended and all that it printed is in the file."""
        if self._thread.is_alive():
            return None
        assert self._code is not None, "the engine did not say how it ended"
        return self._code

    def send_signal(self, sig: int, /) -> None:
        """To its first process. SIGCONT, too, goes to nobody who is frozen: see `Container.resume`."""
        with told():
            try:
                self._container.kill(signal=signal.Signals(sig).name)
            except APIError as error:
                if error.status_code != _GONE:
                    raise

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _follow(self) -> None:
        with self._log.open("ab", buffering=0) as log:
            for part in self._printed:
                log.write(part)
        self._printed.close()
        # that closes the socket, but not what reads from it and keeps it open
        getattr(self._printed, "_response").close()  # noqa: B009 -- nothing public gives it
        self._code = int(self._container.wait()["StatusCode"])
