"""A budget of bytes in flight, given out in the order of asking."""

from collections import deque
from collections.abc import Callable


class Grant:
    """A share of a budget; it is `given` from its turn until it is released."""

    __slots__ = ("_budget", "given", "size", "start")

    def __init__(self, budget: "ByteBudget", size: int, start: Callable[[], None]) -> None:
        self._budget = budget
        self.start = start
        self.size = size
        self.given = False

    def release(self) -> None:
        self._budget.release(self)


class ByteBudget:
    """At most `limit` bytes are given out at any time.

    First come, first served: small shares do not overtake a large one. A share above the limit is given alone.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._queue: deque[Grant] = deque()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def ask(self, size: int, start: Callable[[], None]) -> Grant:
        """Call `start` as soon as `size` bytes are free, at once if they are."""
        grant = Grant(self, min(size, self.limit), start)
        self._queue.append(grant)
        self._serve()
        return grant

    def release(self, grant: Grant) -> None:
        if grant.given:
            grant.given = False
            self.used -= grant.size
        elif grant in self._queue:
            self._queue.remove(grant)
        else:
            return
        self._serve()

    def _serve(self) -> None:
        while self._queue and self.used + self._queue[0].size <= self.limit:
            grant = self._queue.popleft()
            grant.given = True
            self.used += grant.size
            start = grant.start
            del grant.start  # a share that is held long must not hold what it was asked for
            start()
