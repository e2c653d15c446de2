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
    """The holder of a key or token, and what ends its sessions."""

    subject: str
    """Of the token (`sub`), or of the key's entry."""
    grants: Grants
    issuer: str | None = None
    """Of the token (`iss`); subjects of two issuers are two holders."""
    expires_at: float | None = None
    """Unix seconds; None: never."""
    key: KeyEntry | None = None
    """As the entry was when it was accepted; None: it was a JWT."""

    @property
    def identity(self) -> str:
        """By which the registry tells whose place it is: of the subject alone, so that a new token of the same holder
        takes up its place, and nobody else's does."""
        kind = "jwt" if self.key is None else "key"
        return blake2b(json.dumps([kind, self.issuer, self.subject]).encode(), digest_size=16).hexdigest()


NOT_ACCEPTED: Final = "the token is not accepted"


class NotAccepted(NotAuthenticated):
    """The 401 for a token that cannot be verified. It reveals no reason.

    Attributes:
        why: for the log of the gateway alone: it would help whoever guesses.
    """

    def __init__(self, why: str) -> None:
        super().__init__(NOT_ACCEPTED)
        self.why = why
