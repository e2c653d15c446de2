"""API keys: what one looks like, and the entries against which it is held.

A key is `smcp_<id>_<secret>`: the id says which entry, the secret has 256 random bits. So a single round of SHA-256
is hash enough: what nobody can guess need not be made slow to guess, and a fleet that connects anew costs nothing.
"""

import hmac
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import sha256
from typing import Annotated, Final, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from smcp_gateway.auth.grants import Grants
from smcp_gateway.auth.subjects import check_subject

PREFIX: Final = "smcp_"
"""By which a key is told from a JWT."""
_NOBODY: Final = "sha256:" + "0" * 64
"""Compared with where there is no such entry, so that it takes as long."""


class KeyEntry(Grants):
    """A key as the file has it: what it allows, and its hash; never the key."""

    id: str = Field(pattern=r"^[0-9a-z]{1,32}$")
    subject: Annotated[str, AfterValidator(check_subject)]
    """Who holds it: keys of one subject are one identity, so a new one takes up the place of the old one."""
    hash: str = Field(pattern=r"^sha256:[0-9a-f]{64}$", repr=False)
    created: AwareDatetime
    expires: AwareDatetime | None = None

    @property
    def expires_at(self) -> float | None:
        """Unix seconds; None: never."""
        return None if self.expires is None else self.expires.timestamp()


class KeyList(BaseModel):
    """What the key file holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    keys: tuple[KeyEntry, ...] = ()

    @model_validator(mode="after")
    def _one_each(self) -> Self:
        seen: set[str] = set()
        for key in self.keys:
            if key.id in seen:
                raise ValueError(f"keys: the id {key.id!r} is there twice")
            seen.add(key.id)
        return self


class KeyRing:
    """The entries, to hold a key against."""

    def __init__(self, entries: Iterable[KeyEntry]) -> None:
        self._entries = {entry.id: entry for entry in entries}

    def get(self, key_id: str) -> KeyEntry | None:
        """The entry of this id; None where there is none (any more)."""
        return self._entries.get(key_id)

    def find(self, key: str) -> KeyEntry | None:
        """The entry of this key, also where it has expired; None where there is none.

        How long it takes says nothing of what is right in a wrong key.
        """
        key_id, _, _ = key.removeprefix(PREFIX).partition("_")
        entry = self._entries.get(key_id)
        known = _NOBODY if entry is None else entry.hash
        same = hmac.compare_digest(hash_of(key).encode(), known.encode())
        return entry if same else None


def new_key(
    *,
    subject: str | None,
    offices: Iterable[str],
    roles: Iterable[str],
    names: Iterable[str],
    expires: datetime | None = None,
) -> tuple[str, KeyEntry]:
    """A key, and its entry. Without a subject, its id is the subject.

    Raises:
        pydantic.ValidationError: a pattern is none, a role is unknown, …
    """
    key_id = secrets.token_hex(6)
    key = f"{PREFIX}{key_id}_{secrets.token_urlsafe(32)}"
    entry = KeyEntry.model_validate(
        {
            "id": key_id,
            "subject": key_id if subject is None else subject,
            "hash": hash_of(key),
            "offices": tuple(offices),
            "roles": tuple(roles),
            "names": tuple(names),
            "created": datetime.now(UTC).replace(microsecond=0),
            "expires": expires,
        }
    )
    return key, entry


def hash_of(key: str) -> str:
    """As it stands in the file."""
    return f"sha256:{sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"
