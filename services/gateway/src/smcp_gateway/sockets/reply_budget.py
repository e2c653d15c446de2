"""Bounds the bytes of large replies that the gateway holds for one client beside its outbox."""

from collections.abc import Callable

from smcp_bus.byte_budget import ByteBudget, Grant


class ReplyBudget(ByteBudget):
    """A client may ask for many large replies and read none. Those in parts stay with their Computers until the budget
    has room for them. Those in one message are here already: at most `unasked_limit` bytes of them wait for the outbox.
    """

    def __init__(self, limit: int, unasked_limit: int) -> None:
        super().__init__(limit)
        self.unasked_limit = unasked_limit
        self.unasked = 0

    @property
    def bytes(self) -> int:
        return self.used + self.unasked


class ReplyShare:
    """What the reply to one event has of the budget; `release` it when the reply is in the outbox, or will not come."""

    __slots__ = ("_budget", "_grant", "_unasked")

    def __init__(self, budget: ReplyBudget) -> None:
        self._budget = budget
        self._grant: Grant | None = None
        self._unasked = 0

    def admit(self, size: int, start: Callable[[], None]) -> None:
        """See `smcp_bus.bus.Admit`."""
        if self._grant is not None:
            self._grant.release()  # the request was sent once more, for an answer that was lost
        self._grant = self._budget.ask(size, start)

    def hold(self, size: int) -> bool:
        """Whether the reply, which is here, may wait for the outbox."""
        if self._grant is not None and self._grant.given:
            return True
        if self._budget.unasked + size > self._budget.unasked_limit:
            return False
        self._budget.unasked += size
        self._unasked += size
        return True

    def release(self) -> None:
        """Idempotent."""
        if self._grant is not None:
            self._grant.release()
        self._budget.unasked -= self._unasked
        self._unasked = 0
