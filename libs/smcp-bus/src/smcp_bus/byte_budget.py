"""A budget of bytes in flight, given out in the order of asking."""

from collections import deque
from collections.abc import Callable


class Grant:
    __slots__ = ("_budget", "_start", "given", "size")

    def __init__(self, budget: "ByteBudget", size: int, start: Callable[[], None]) -> None:
        self._budget = budget
        self._start: Callable[[], None] | None = start
        self.size = size
        self.given = False

    def give(self) -> None:
        """It has its share now: what was to start starts. For the budget alone."""
        self.given = True
        start, self._start = self._start, None  # a share that is held long must not hold what it was asked for
        if start is not None:
            start()

    def release(self) -> None:
        self._budget.release(self)


class ByteBudget:
    """At most `limit` bytes are given out at any time.

    First come, first served: a large share is not overtaken for ever by small ones. A share above the limit is given
    when nothing else is out.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._queue: deque[Grant] = deque()
        self._out: set[Grant] = set()

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
        if grant in self._out:
            self._out.remove(grant)
            self.used -= grant.size
        elif grant in self._queue:
            self._queue.remove(grant)
        else:
            return
        self._serve()

    def _serve(self) -> None:
        while self._queue and self.used + self._queue[0].size <= self.limit:
            grant = self._queue.popleft()
            self.used += grant.size
            self._out.add(grant)
            grant.give()
