"""The token that says who the Agent is: a text, or what fetches a fresh one for each connection."""

import re
from collections.abc import Awaitable, Callable
from typing import Final

from smcp_agent.errors import Malformed

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
