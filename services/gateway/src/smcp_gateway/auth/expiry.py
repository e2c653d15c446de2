"""Sessions end with what let them in: the token that expires, the key that is removed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from smcp_gateway.auth.authority import Authority
from smcp_gateway.session import Session, Sessions

LOOK_S: Final = 1.0
"""Between two looks; a session outlives its token by no more."""

HangUp = Callable[[Session, str], Awaitable[None]]


class Expiry:
    """Args:
    hang_up: closes a client's connection, saying why in the log.
    close_strangers: closes the connections of clients that did not say in time who they are.
    """

    def __init__(
        self, authority: Authority, sessions: Sessions, hang_up: HangUp, close_strangers: Callable[[], Awaitable[None]]
    ) -> None:
        self._authority = authority
        self._sessions = sessions
        self._hang_up = hang_up
        self._close_strangers = close_strangers

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self._authority.refresh()
            for session in self._sessions:
                why = None if session.principal is None else self._authority.ended(session.principal)
                if why is not None:
                    await self._hang_up(session, why)
            await self._close_strangers()
