"""How a token is refused of which nothing is known to be right: whoever sent it is told no more than that."""

from typing import Final

from smcp_proto.errors import NotAuthenticated

NOT_ACCEPTED: Final = "the token is not accepted"
"""All that is said of such a token."""
_QUOTED: Final = 64
"""Characters of what a token says of itself; more of it is not logged."""


class NotAccepted(NotAuthenticated):
    """A token is not accepted.

    Attributes:
        why: for the log of the gateway alone: it would help whoever guesses.
    """

    def __init__(self, why: str) -> None:
        super().__init__(NOT_ACCEPTED)
        self.why = why


def quoted(said: object) -> str:
    """What a token says of itself, for the log: without line ends, and no longer than can be read."""
    text = repr(said)
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."
