"""What nats-server's permissions refuse: it says so after the fact, in a text that names the subject."""

from collections import deque
from typing import Final

from smcp_bus.errors import BusError

_KEPT: Final = 64
"""Refusals that are remembered: each is asked for right after the round trip that brought it."""


class Denials:
    """The refusals that were heard last. nats-py gives nats-server's words in lower case."""

    def __init__(self) -> None:
        self._texts: deque[str] = deque(maxlen=_KEPT)

    def hear(self, text: str) -> None:
        """nats-server has refused something, in these words."""
        self._texts.append(text)

    def forgive(self, subject: str) -> None:
        """Forget an earlier refusal to subscribe to `subject`: permissions may have changed."""
        self._texts = deque((text for text in self._texts if not _of_subscription(text, subject)), _KEPT)

    def check_permitted(self, subject: str) -> None:
        """After a round trip. Raises BusError where nats-server refused to subscribe to `subject`."""
        if any(_of_subscription(text, subject) for text in self._texts):
            raise BusError(f"not permitted to subscribe to {subject}")


def is_of_publishing(text: str, subject: str) -> bool:
    """Whether nats-server refuses with `text` to publish to `subject`."""
    return f'for publish to "{subject.lower()}"' in text


def _of_subscription(text: str, subject: str) -> bool:
    return f'for subscription to "{subject.lower()}"' in text
