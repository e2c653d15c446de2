"""The one subscription on which answers to this process arrive, and the requests that wait for them."""

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from smcp_bus.errors import BusError, ConnectionLost, RequestTimedOut

ROOT: Final = "_INBOX"
"""Every inbox of the system lies under it: `_INBOX.<credential>`, or `_INBOX` itself without credentials."""

_SECRET: Final = 8
"""Random bytes of a token that nobody can guess."""

_log = logging.getLogger(__name__)

T = TypeVar("T")


def is_inbox(address: bytes) -> bool:
    """Whether an answer may go there.

    nats-server checks what a process publishes, not where it asks to be answered. Who answers has more rights than who
    asks (a registry may write the log of the rooms), so it must not be made to speak anywhere but into an inbox.
    """
    return address.startswith(b"_INBOX.")


class Entry(Protocol):
    def receive(self, reply: str, head: bytes, body: bytes) -> None:
        """A message came. It must neither block nor raise."""

    def lost(self) -> None:
        """The connection broke."""


class Awaited(Generic[T]):
    """Part of an entry of the inbox: `future` ends with what is awaited, or with the `BusError` that stands for it: as
    a result, never raised, so that nothing is left to be reported where the one who waits was cancelled."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[T | BusError] = asyncio.get_running_loop().create_future()

    def lost(self) -> None:
        self.fail(ConnectionLost("the connection to nats-server broke"))

    def expire(self) -> None:
        self.fail(RequestTimedOut("the answer did not arrive in time"))

    def fail(self, error: BusError) -> None:
        """The outcome is this error, unless there is one."""
        if not self.future.done():
            self.future.set_result(error)


class Inbox:
    """`<prefix>.<process>.*`: token → entry.

    An entry leaves the table by `leave`, whatever became of it; what arrives for a token that has gone is dropped.
    """

    def __init__(self, prefix: str, process: str, stray: Callable[[str, bytes], None]) -> None:
        """`stray` is called with reply subject and header block of a message that asks a token that has gone."""
        self._stray = stray
        self._root = f"{prefix}.{process}."
        self.subject = f"{self._root}*"
        self._cut = len(self._root)
        self._count = 0
        self.entries: dict[bytes, Entry] = {}

    def enter(self, entry: Entry) -> tuple[bytes, str]:
        """Give `entry` a token; returns it and the subject that reaches it."""
        self._count += 1
        # A responder learns one token. It must not be able to guess another one, and reply there.
        token = f"{self._count:x}-{os.urandom(_SECRET).hex()}"
        self.entries[token.encode()] = entry
        return token.encode(), self._root + token

    def leave(self, token: bytes) -> None:
        self.entries.pop(token, None)

    def lose_all(self) -> None:
        for entry in list(self.entries.values()):
            entry.lost()

    def receive(self, subject: bytes, reply: bytes, head: bytes, body: bytes) -> None:
        if reply and not is_inbox(reply):
            _log.warning("a message wants its answer outside of the inboxes; it gets none")
            reply = b""
        entry = self.entries.get(subject[self._cut :])
        if entry is not None:
            entry.receive(reply.decode(), head, body)
        elif reply and head:
            self._stray(reply.decode(), head)
