"""The token that says who the Agent is: a text, or what fetches a fresh one for each connection."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from smcp_agent.errors import Malformed, SmcpError, TokenUnavailable

if TYPE_CHECKING:
    from smcp_agent.connecting.connection import ConnectionOptions

Token = str | Callable[[], Awaitable[str]]
"""A key or a JWT; or a function that is called before each connection and gives one."""

_SENDABLE: Final = re.compile(r"[\x21-\x7e]{1,8192}")


def check_token(token: str) -> str:
    """The token as it is.

    Raises:
        Malformed: it cannot be sent: it is empty, too long, or not of visible ASCII. It is not quoted.
    """
    if not _SENDABLE.fullmatch(token):
        raise Malformed(
            "token: has to be 1 to 8192 visible ASCII characters without spaces", details={"field": "token"}
        )
    return token


async def with_token(options: "ConnectionOptions") -> "ConnectionOptions":
    """The options for one round of connecting: the token stands in `auth`, where published servers look for it, and in
    the header, by which a gateway refuses a wrong one before it opens anything.

    Raises:
        TokenUnavailable: what fetches tokens failed, or took longer than a connection may.
        Malformed: the token cannot be sent.
    """
    if options.token is None:
        return options
    token = check_token(options.token if isinstance(options.token, str) else await _fetched(options))
    return replace(
        options,
        auth={**options.auth, "token": token},
        headers={**options.headers, "Authorization": f"Bearer {token}"},
        token=None,
    )


async def _fetched(options: "ConnectionOptions") -> str:
    assert callable(options.token)
    try:
        async with asyncio.timeout(options.connect_s):
            token = await options.token()
    except TimeoutError as error:
        raise TokenUnavailable(f"there was no token within {options.connect_s:g} s") from error
    except SmcpError:
        raise
    except Exception as error:
        raise TokenUnavailable(f"the token could not be fetched: {type(error).__name__}") from error
    if not isinstance(token, str):
        raise TokenUnavailable(f"what fetches tokens gave no text, but {type(token).__name__}")
    return token
