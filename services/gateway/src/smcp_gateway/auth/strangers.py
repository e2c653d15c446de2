"""Connections that nobody is behind yet: engine.io takes them before a client says who it is."""

from typing import Final

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
