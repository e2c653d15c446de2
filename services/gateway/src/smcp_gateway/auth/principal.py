"""Who a client is, once its token was accepted."""

import json
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from smcp_gateway.auth.grants import Grants
from smcp_gateway.auth.keys import KeyEntry
from smcp_proto.errors import NotAuthenticated


@dataclass(frozen=True, slots=True)
class Principal:
    """The holder of a key or token. What ends its sessions is in it, too."""

    subject: str
    """Of the token (`sub`), or of the key's entry."""
    grants: Grants
    issuer: str | None = None
    """Of the token (`iss`), None where it says none; subjects of two issuers are two holders."""
    expires_at: float | None = None
    """Unix seconds; None: never."""
    key: KeyEntry | None = None
    """As the entry was when it was accepted; None: it was a JWT."""

    @property
    def identity(self) -> str:
        """By which the registry tells whose place it is (design, rooms): of the subject alone, so that a new token of
        the same holder takes up its place, and nobody else's does."""
        kind = "jwt" if self.key is None else "key"
        return blake2b(json.dumps([kind, self.issuer, self.subject]).encode(), digest_size=16).hexdigest()


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
