"""The program that stands for one that a fork server forks: it asks for it, and ends as that one ends.

    python -I -S fork_client.py SOCKET TARGET [ARGUMENT ...]

Its arguments, environment, directory and standard streams become the other's. It imports as little as it can. When it
gets a SIGTERM or a SIGINT, the other one gets it, too; when it is killed, the other one is killed. A SIGQUIT kills the
other one, and this one ends when that has ended.
"""

from __future__ import annotations

import marshal
import os
import signal
import socket
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # to import `typing` is a fifth of what this program costs
    from collections.abc import Mapping, Sequence
    from typing import Final, NoReturn

HEADER: Final = struct.Struct("!I")
"""How many bytes the wish has that follows, as `marshal` writes it; with it come the streams. Each byte after the
wish is the number of a signal that the program which stands for the other got."""
STREAMS: Final = 3
NUMBER: Final = struct.Struct("!i")
"""What the server says: the id of the process, then how it ended: its exit code, or the negative number of a signal."""
BORN_S: Final = 60.0


def reach(path: str) -> socket.socket:
    """A connection to the server, which may be just being started.

    Raises:
        OSError: it did not come.
    """
    deadline = time.monotonic() + BORN_S
    while True:
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            server.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return server


def ask(server: socket.socket, command: Sequence[str], env: Mapping[str, str], streams: Sequence[int]) -> None:
    """Ask for a program with these arguments, environment and standard streams, in the directory of this process."""
    target, *arguments = command
    wish = marshal.dumps((target, arguments, dict(env), os.getcwd()))  # noqa: PTH109 -- pathlib is much
    socket.send_fds(server, [HEADER.pack(len(wish))], streams)
    server.sendall(wish)


def told(server: socket.socket, flags: int = 0) -> int:
    """The next number that the server says.

    Raises:
        BlockingIOError: it has said none yet, with `MSG_DONTWAIT` as flag.
    """
    number: int
    (number,) = NUMBER.unpack(server.recv(NUMBER.size, flags))
    return number


def main() -> NoReturn:
    path, *command = sys.argv[1:]
    server = reach(path)
    ask(server, command, dict(os.environ), list(range(STREAMS)))
    for passed_on in (signal.SIGTERM, signal.SIGINT):
        signal.signal(passed_on, lambda number, _: server.send(bytes([number])))
    signal.signal(signal.SIGQUIT, lambda *_: server.shutdown(socket.SHUT_WR))
    for stream in range(STREAMS):
        os.close(stream)  # they are the other's: who reads them sees when it has ended
    told(server)  # its process id
    status = told(server)
    if status < 0:
        if -status in (signal.SIGTERM, signal.SIGINT):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(abs(status))


if __name__ == "__main__":
    main()
