"""How long a handler may take: a little less than its caller waits."""

import asyncio
from typing import Final

from smcp_bus.dispatch import Call
from smcp_bus.owner import time_limit


class Budget:
    """Args:
    seconds: from now on.

    Attributes:
        until: when it is over, in loop time.
    """

    def __init__(self, seconds: float) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self.until: Final = self._loop.time() + seconds

    @classmethod
    def of(cls, call: Call, *, most: float | None = None) -> "Budget":
        """Of a request; at most `most` seconds."""
        left = call.deadline - asyncio.get_running_loop().time()
        limit = time_limit(left, left)
        return cls(limit if most is None else min(limit, most))

    @property
    def left(self) -> float:
        """Seconds; 0 where it is over."""
        return max(0.0, self.until - self._loop.time())
