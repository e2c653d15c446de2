"""Finds the Computers that run on this host for this user, and asks one of them over its control socket.

`control` is the other end. Both agree on the directory, the names of its files, and JSON over HTTP; the paths are in
`control`.
"""

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from smcp_service.lifecycle import Failure
from smcp_service.settings import SettingsError

SOCKET: Final = "control.sock"
LOGS: Final = "logs"
"""The directory with what MCP servers write to their standard error."""
ANSWER_S: Final = 30.0
"""How long a Computer may take for what is not a call of a tool."""
GREETING_S: Final = 2.0
"""How long one may take to say who it is: another one may hang."""


def states_directory() -> Path:
    """Where the state directories of this user's Computers are, unless they are elsewhere (`SMCP_STATE_DIR`)."""
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "a2c-smcp"


def seat_directory(office: str, name: str) -> Path:
    """The state directory of one Computer."""
    # hashed: names may be long, and the path of a socket has 107 bytes at most
    seat = blake2b(f"{office}\0{name}".encode(), digest_size=6).hexdigest()
    return states_directory() / seat


class Refused(Failure):
    """The Computer does not do it; the message is its own."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.exit_code = SettingsError.exit_code if status == HTTPStatus.BAD_REQUEST else Failure.exit_code


@dataclass(frozen=True)
class RunningComputer:
    directory: Path
    office: str
    name: str

    def ask(self, method: str, *path: str, body: object = None, timeout: float = ANSWER_S) -> Any:
        """Raises Refused, or Failure: it does not answer."""
        return _ask(self.directory / SOCKET, method, path, body, timeout)


def find(office: str | None, name: str | None) -> RunningComputer:
    """The one that runs with that office and name; None: any. Raises Failure: there is none, or there are several."""
    given = {"office": office or os.environ.get("SMCP_OFFICE"), "name": name or os.environ.get("SMCP_NAME")}
    fitting = [
        each for each in running() if all(value in (None, getattr(each, field)) for field, value in given.items())
    ]
    if len(fitting) == 1:
        return fitting[0]
    asked = " ".join(f"--{field} {value}" for field, value in given.items() if value is not None)
    if not fitting:
        there = f" with {asked}" if asked else ""
        raise Failure(
            f"no Computer of this user runs here{there}: `smcp-computer run` starts one; "
            "SMCP_STATE_DIR says where its socket is, if it was started with it"
        )
    choices = "\n".join(f"  --office {each.office} --name {each.name}" for each in fitting)
    raise Failure(f"several Computers run here; say which one:\n{choices}")


def running() -> list[RunningComputer]:
    """Those that answer, by office and name."""
    given = os.environ.get("SMCP_STATE_DIR")
    sockets = [Path(given) / SOCKET] if given else sorted(states_directory().glob(f"*/{SOCKET}"))
    found = []
    for each in sockets:
        try:
            said = _ask(each, "GET", (), None, GREETING_S)
        except Failure:
            continue  # nobody listens there any more
        found.append(RunningComputer(each.parent, said["office"], said["name"]))
    return sorted(found, key=lambda each: (each.office, each.name))


def _ask(path: Path, method: str, parts: tuple[str, ...], body: object, timeout: float) -> Any:
    connection = _UnixConnection(path, timeout)
    headers: Mapping[str, str] = {} if body is None else {"Content-Type": "application/json"}
    try:
        connection.request(
            method,
            f"/{'/'.join(quote(part, safe='') for part in parts)}",
            None if body is None else json.dumps(body),
            headers,
        )
        response = connection.getresponse()
        said = json.loads(response.read())
    except TimeoutError:
        raise Failure(f"the Computer did not answer within {timeout:g} s") from None
    except (OSError, HTTPException, ValueError) as error:
        raise Failure(f"the Computer does not answer: {error}") from None
    finally:
        connection.close()
    if response.status >= 400:
        raise Refused(said["error"], response.status)
    return said


class _UnixConnection(HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
