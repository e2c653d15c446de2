"""The one subscription on which everything arrives that was addressed to this process's own waiting places."""

from collections.abc import Callable
from typing import Protocol

from smcp_bus.nats_client import NatsClient


class Place(Protocol):
    """What waits under a token."""

    def receive(self, reply: str, head: bytes, body: bytes) -> None:
        """A message came. It must neither block nor raise."""

    def lost(self) -> None:
        """The connection broke."""


class Inbox:
    """`<prefix>.<process>.*`: token → place.

    A place leaves the table by `leave`, whatever became of it; what arrives for a token that has gone is dropped.
    """

    def __init__(self, prefix: str, process: str, stray: Callable[[str, bytes], None]) -> None:
        """`stray` is called with reply subject and header block of a message that asks a token that has gone."""
        self._stray = stray
        self._root = f"{prefix}.{process}."
        self._cut = len(self._root)
        self._count = 0
        self.places: dict[bytes, Place] = {}

    def subscribe(self, client: NatsClient) -> None:
        client.attach(f"{self._root}*", "", self._receive)

    def enter(self, place: Place) -> tuple[bytes, str]:
        """Give `place` a token; returns it and the subject that reaches it."""
        self._count += 1
        token = b"%x" % self._count
        self.places[token] = place
        return token, f"{self._root}{token.decode()}"

    def leave(self, token: bytes) -> None:
        """Idempotent."""
        self.places.pop(token, None)

    def lose_all(self) -> None:
        """Tell every place that the connection broke."""
        for place in list(self.places.values()):
            place.lost()

    def each(self, visit: Callable[[Place], None]) -> None:
        for place in list(self.places.values()):
            visit(place)

    def _receive(self, subject: bytes, reply: bytes, head: bytes, body: bytes) -> None:
        place = self.places.get(subject[self._cut :])
        if place is not None:
            place.receive(reply.decode(), head, body)
        elif reply and head:
            self._stray(reply.decode(), head)
