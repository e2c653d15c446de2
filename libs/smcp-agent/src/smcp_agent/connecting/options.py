"""Options of a connection, and its token."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from smcp_agent.errors import Malformed, SmcpError, TokenUnavailable

MAX_MESSAGE: Final = 36 * 1024 * 1024
"""Bytes: the default limit of the gateways (32 MiB) and room for what is round it."""
MAX_REQUEST: Final = 32 * 1024 * 1024
CONNECT_S: Final = 10.0
"""How long one gateway may take until it has connected; the next one is tried then."""

Transport = Literal["websocket", "polling"]
DEFAULT_TRANSPORTS: Final[tuple[Transport, ...]] = ("websocket", "polling")


Token = str | Callable[[], Awaitable[str]]
"""A key or a JWT; or a function that is called before each connection and gives one."""

Answer = Callable[[str, object], Awaitable[bytes]]
"""Event and its argument in, the JSON of the acknowledgement's argument out. It must not raise."""


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How to connect.

    WebSocket comes first: a polling session's requests must all reach the same replica (sticky routing), a WebSocket is
    one request. Polling is tried only where something answered the WebSocket's handshake and refused it.
    """

    transports: Sequence[Transport] = DEFAULT_TRANSPORTS
    max_message: int = MAX_MESSAGE
    """Bytes of the largest message to receive; said to the server, which answers 413 for what is larger."""
    max_request: int = MAX_REQUEST
    """Bytes of the largest request to send to a server that does not say what it takes."""
    auth: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    token: Token | None = field(default=None, repr=False)
    answer: Answer | None = None
    """Answers what the gateway asks (`client:*`); None: it asks nothing, as of an Agent."""
    connect_s: float = CONNECT_S


async def with_token(options: ConnectionOptions) -> ConnectionOptions:
    """The options with the token in `auth`, where published servers look for it, and in the header for gateways.

    Raises TokenUnavailable: what fetches tokens failed, or took too long; Malformed: the token cannot be sent.
    """
    token = options.token
    if token is None:
        return options
    if not isinstance(token, str):
        try:
            async with asyncio.timeout(options.connect_s):
                token = await token()
        except TimeoutError as error:
            raise TokenUnavailable(f"there was no token within {options.connect_s:g} s") from error
        except SmcpError:
            raise
        except Exception as error:
            raise TokenUnavailable(f"the token could not be fetched: {type(error).__name__}") from error
        if not isinstance(token, str):
            raise TokenUnavailable(f"what fetches tokens gave no text, but {type(token).__name__}")
    check_token(token)
    return replace(
        options,
        auth={**options.auth, "token": token},
        headers={**options.headers, "Authorization": f"Bearer {token}"},
        token=None,
    )


_SENDABLE: Final = re.compile(r"[\x21-\x7e]{1,8192}")


def check_token(token: str) -> str:
    """The token as it is. Raises Malformed: it is empty, too long, or not of visible ASCII; it is not quoted."""
    if not _SENDABLE.fullmatch(token):
        raise Malformed(
            "token: has to be 1 to 8192 visible ASCII characters without spaces", details={"field": "token"}
        )
    return token
