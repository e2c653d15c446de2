"""Sessions end with what let them in: the token that expires, the key that is removed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from smcp_gateway.auth.authority import Authority
from smcp_gateway.sockets.session import Session, Sessions

LOOK_S: Final = 1.0
"""Between two looks; a session outlives its token by no more."""

HangUp = Callable[[Session, str], Awaitable[None]]
KeepPlace = Callable[[Session], Awaitable[None]]


class Expiry:
    """Args:
    hang_up: closes a client's connection, saying why in the log.
    keep_place: has the place of a member kept for its holder; takes some seconds at most. For who may come back with a
        fresh token: the office hears nothing of that then.
    close_strangers: closes the connections of clients that did not say in time who they are.
    """

    def __init__(
        self,
        authority: Authority,
        sessions: Sessions,
        *,
        hang_up: HangUp,
        keep_place: KeepPlace,
        close_strangers: Callable[[], Awaitable[None]],
    ) -> None:
        self._authority = authority
        self._sessions = sessions
        self._hang_up = hang_up
        self._keep_place = keep_place
        self._close_strangers = close_strangers

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self._authority.refresh()
            async with asyncio.TaskGroup() as ending:
                for session in self._sessions:
                    principal = session.principal
                    why = None if principal is None else self._authority.ended(principal)
                    if principal is not None and why is not None:
                        ending.create_task(self._end(session, why, keep=self._authority.may_return(principal)))
            await self._close_strangers()

    async def _end(self, session: Session, why: str, *, keep: bool) -> None:
        if keep:
            session.leaving = True  # nothing new is begun for it
            await self._keep_place(session)
        await self._hang_up(session, why)


CONNECT_S: Final = 10.0
"""How long a client may take to connect to the namespace."""
REFUSED_S: Final = 1.0
"""How long one that was refused may take to hear so."""


class Strangers:
    """By engine.io's id: until when each is waited for. Times are of one monotonic clock (seconds)."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._until)

    def came(self, sid: str, now: float) -> None:
        """It is connected, and has not said yet who it is."""
        self._until[sid] = now + CONNECT_S

    def was_refused(self, sid: str, now: float) -> None:
        """It was told that it may not connect, and is to hear so before its connection ends."""
        self._until[sid] = min(now + REFUSED_S, self._until.get(sid, now + REFUSED_S))

    def left(self, sid: str) -> None:
        """It is gone, or no stranger any more."""
        self._until.pop(sid, None)

    def overdue(self, now: float) -> list[str]:
        """Those that were waited for long enough; they are not named again."""
        over = [sid for sid, until in self._until.items() if until <= now]
        for sid in over:
            del self._until[sid]
        return over
