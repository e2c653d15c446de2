"""The protocol versions that a client may state at connect (`?a2c_version=`), and the refusal of others."""

import re
from typing import Final, Literal

from pydantic import BaseModel

SERVER_VERSION: Final = "0.4.0"
MIN_SUPPORTED: Final = "0.2.0"
MAX_SUPPORTED: Final = "0.4.999"
"""As clients compare it: any patch of 0.4."""

REFUSED: Final = 4008
_LEAST: Final = (0, 2)
_MOST: Final = (0, 4)
_MAX_SHOWN: Final = 64
_NUMBER: Final = r"(0|[1-9][0-9]{0,8})"
_VERSION: Final = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}")


class VersionRefusal(BaseModel):
    """The body of the HTTP 400 that a client of another version gets; flat, not an `ErrorBody`."""

    code: Literal[4008] = REFUSED
    message: str
    server_version: str = SERVER_VERSION
    client_version: str
    min_supported: str = MIN_SUPPORTED
    max_supported: str = MAX_SUPPORTED


def refuse_version(client_version: str | None) -> VersionRefusal | None:
    """Return why a client that says `client_version` is refused; None: it is welcome.

    None (it says nothing) is the dialect of the protocol pages. Otherwise major and minor count: 0.2 to 0.4.
    """
    if client_version is None:
        return None
    shown = client_version[:_MAX_SHOWN]
    match = _VERSION.fullmatch(client_version)
    if match is None:
        return VersionRefusal(message="a2c_version: a version is MAJOR.MINOR.PATCH", client_version=shown)
    if _LEAST <= (int(match[1]), int(match[2])) <= _MOST:
        return None
    return VersionRefusal(
        message=f"protocol version {shown} is not supported; supported are {MIN_SUPPORTED} to {MAX_SUPPORTED}",
        client_version=shown,
    )
