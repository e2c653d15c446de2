"""How many bytes of large replies the gateway holds for one client beside its outbox.

A client may ask for many large replies and read none. Those that come in parts stay with their Computers until there is
room. Those that come in one message are here unasked: they wait for the outbox, but only so many of them.
"""

from collections.abc import Callable

from smcp_bus.byte_budget import ByteBudget, Grant


class ReplyRoom:
    """Args:
    fetched: bytes of replies in parts, on their way from a Computer to the outbox; a larger one comes alone.
    unasked: bytes of replies that came in one message and wait for the outbox.
    """

    def __init__(self, *, fetched: int, unasked: int) -> None:
        self._fetched = ByteBudget(fetched)
        self._limit = unasked
        self._unasked = 0

    @property
    def bytes(self) -> int:
        """Bytes that are held, or may come."""
        return self._fetched.used + self._unasked

    @property
    def waiting(self) -> int:
        """Replies that stay with their Computers meanwhile."""
        return self._fetched.waiting

    def ask(self, size: int, start: Callable[[], None]) -> Grant:
        """Have `start` called as soon as there is room for a reply of `size` bytes that is still at its Computer."""
        return self._fetched.ask(size, start)

    def take(self, size: int) -> bool:
        """False where there is no room for a reply that is here already."""
        if self._unasked + size > self._limit:
            return False
        self._unasked += size
        return True

    def give_back(self, size: int) -> None:
        """A reply that was taken is in the outbox, or will not go there; `size` in bytes, as taken."""
        self._unasked -= size


class ReplyShare:
    """What the reply to one event has of the room; `release` when it is in the outbox, or will not come."""

    __slots__ = ("_grant", "_room", "_taken")

    def __init__(self, room: ReplyRoom) -> None:
        self._room = room
        self._grant: Grant | None = None
        self._taken = 0

    def admit(self, size: int, start: Callable[[], None]) -> None:
        """See `smcp_bus.bus.Admit`."""
        if self._grant is not None:
            self._grant.release()  # the request was sent once more, for an answer that was lost
        self._grant = self._room.ask(size, start)

    def hold(self, size: int) -> bool:
        """Whether the reply, which is here, may wait for the outbox."""
        if self._grant is not None and self._grant.given:
            return True
        if not self._room.take(size):
            return False
        self._taken += size
        return True

    def release(self) -> None:
        """Idempotent."""
        if self._grant is not None:
            self._grant.release()
        if self._taken:
            self._room.give_back(self._taken)
            self._taken = 0
