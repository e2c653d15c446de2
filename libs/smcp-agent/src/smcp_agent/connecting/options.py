"""Options of a connection, and its token, which may be the key that `smcp up` makes for one run: clients of the same
user find it in a file, named after the URL's host and port. Not after `localhost`: another user could listen on the
other address that it stands for, and would get the key.
"""

import asyncio
import os
import re
import stat
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SkipValidation

from smcp_agent.connecting.transport import ReadTurns
from smcp_agent.errors import Malformed, SmcpError, TokenUnavailable

MAX_PAYLOAD: Final = 32 * 1024 * 1024
"""Bytes: the services' default of `SMCP_MAX_PAYLOAD`."""
ROUND_A_BODY: Final = 4 * 1024 * 1024
"""Bytes that a message may have beside a payload."""
MAX_MESSAGE: Final = MAX_PAYLOAD + ROUND_A_BODY
CONNECT_S: Final = 10.0
"""How long one gateway may take until it has connected; the next one is tried then."""

Token = str | Callable[[], Awaitable[str]]
"""A key or a JWT; or a function that is called before each connection and gives one."""

Answer = Callable[[str, object], Awaitable[bytes]]
"""Event and its argument in, the JSON of the acknowledgement's argument out. It must not raise."""


class ConnectionOptions(BaseModel):
    """How to connect: always by a WebSocket, which any replica can take."""

    model_config = ConfigDict(frozen=True, strict=True, arbitrary_types_allowed=True)

    max_message: Annotated[int, Field(gt=0)] = MAX_MESSAGE
    """Bytes of the largest message to receive; said to the server, which answers 413 for what is larger."""
    max_values: Annotated[int, Field(gt=0)] | None = None
    """How many JSON values an answer may have, also said to the server; None: as many as that allows."""
    max_request: int = MAX_PAYLOAD
    """Bytes of the largest request to send to a server that does not say what it takes."""
    auth: Mapping[str, Any] = {}
    headers: Mapping[str, str] = {}
    token: SkipValidation[Token | None] = Field(default=None, repr=False)
    answer: Answer | None = None
    """Answers what the gateway asks (`client:*`); None: it asks nothing, as of an Agent."""
    connect_timeout: Annotated[float, Field(gt=0)] = CONNECT_S
    read_turns: ReadTurns | None = None


async def with_token(options: ConnectionOptions) -> ConnectionOptions:
    """The options with the token in `auth`. Raises TokenUnavailable; Malformed: the token cannot be sent."""
    token = options.token
    if token is None:
        return options
    if not isinstance(token, str):
        try:
            async with asyncio.timeout(options.connect_timeout):
                token = await token()
        except SmcpError:
            raise
        except Exception as error:
            raise TokenUnavailable(f"the token could not be fetched: {type(error).__name__}") from error
        if not isinstance(token, str):
            raise TokenUnavailable(f"the token function returned no text, but {type(token).__name__}")
    check_token(token)
    return options.model_copy(update={"auth": {**options.auth, "token": token}, "token": None})


MAX_TOKEN: Final = 8192
_SENDABLE: Final = re.compile(rf"[\x21-\x7e]{{1,{MAX_TOKEN}}}")


def check_token(token: str) -> str:
    """The token as it is. Raises Malformed: it is empty, too long, or not of visible ASCII; it is not quoted."""
    if not _SENDABLE.fullmatch(token):
        raise Malformed(
            "token: has to be 1 to 8192 visible ASCII characters without spaces", details={"field": "token"}
        )
    return token


def read_token(path: Path, said: str) -> str:
    """The token in a file. Raises TokenUnavailable, which begins with `said`, the option that names the file."""
    try:
        return check_token(path.read_text(encoding="utf-8").strip())
    except (OSError, ValueError) as error:
        why = f"cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}"
    except Malformed as error:
        why = error.message.removeprefix("token: ")
    raise TokenUnavailable(f"{said} {path}: {why}")


def token_from(path: Path, said: str) -> Token:
    """Reads the file before each connection (`read_token`): the token may be renewed."""
    return partial(asyncio.to_thread, read_token, path, said)


def local_key(url: str) -> str | None:
    """The key of a `smcp up` of this user at this URL."""
    try:
        handle = os.open(key_file(url), os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except (OSError, ValueError):
        return None
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(file.fileno())
        if hasattr(os, "getuid") and (found.st_uid != os.getuid() or found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)):
            return None
        key = file.read(MAX_TOKEN).decode("ascii", "replace").strip()
        return key if _SENDABLE.fullmatch(key) else None


def shared_key(url: str, key: str) -> AbstractContextManager[None]:
    """Let clients of this user find the key while the body runs. Raises OSError: the file cannot be written."""
    return private_file(key_file(url), key + "\n")


@contextmanager
def private_file(path: Path, text: str) -> Iterator[None]:
    """Write a file that this user alone can read; delete it after the body. Raises OSError: it cannot be written."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # of a run that was killed
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()


def key_file(url: str) -> Path:
    """Where the key for the gateway at this URL is. Raises ValueError: that is not a URL with a host and a port."""
    parts = urlsplit(url)
    if not parts.hostname or not parts.port:
        raise ValueError(url)
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
    return state / "a2c-smcp" / "keys" / f"{parts.hostname.replace(':', '_')}-{parts.port}"
