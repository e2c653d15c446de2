"""API keys, `smcp_<id>_<secret>`, and the file of their entries. The secret has 256 random bits: SHA-256 is enough."""

import hmac
import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from smcp_auth.grants import Grants, Subject
from smcp_proto.validation import malformed
from smcp_service.files import UnusableFile, WatchedFile, locked, read_protected, replace_files

PREFIX: Final = "smcp_"
"""Distinguishes a key from a JWT."""
_NOBODY: Final = "sha256:" + "0" * 64
"""Compared with for an unknown id, so that it takes equally long."""


class KeyEntry(Grants):
    """A key's entry in the file: its grants and its hash, never the key."""

    id: str = Field(pattern=r"^[0-9a-z]{1,32}$")
    subject: Subject
    """The holder. Keys of one subject are one identity, so a new key takes up the seat of the old one."""
    hash: str = Field(pattern=r"^sha256:[0-9a-f]{64}$", repr=False)
    created: AwareDatetime
    expires: AwareDatetime | None = None

    @property
    def expires_at(self) -> float | None:
        """Unix seconds; None: never."""
        return None if self.expires is None else self.expires.timestamp()


class _KeyList(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    keys: tuple[KeyEntry, ...] = ()


def new_key(*, subject: str | None, expires: datetime | None = None, **grants: Any) -> tuple[str, KeyEntry]:
    """A new key and its entry, whose default subject is its id. Raises pydantic.ValidationError."""
    key_id = secrets.token_hex(6)
    key = f"{PREFIX}{key_id}_{secrets.token_urlsafe(32)}"
    entry = {
        **grants,
        "id": key_id,
        "subject": key_id if subject is None else subject,
        "hash": _hash(key),
        "created": datetime.now(UTC).replace(microsecond=0),
        "expires": expires,
    }
    return key, KeyEntry.model_validate(entry)


def _hash(key: str) -> str:
    return f"sha256:{sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"


def read(path: Path) -> tuple[KeyEntry, ...]:
    """The entries, in the file's order. Raises UnusableFile."""
    text = read_protected(path)
    try:
        entries = _KeyList.model_validate_json(text).keys
    except ValidationError as error:
        raise UnusableFile(f"{path}: {malformed(error).message}") from None
    seen: set[str] = set()
    for entry in entries:
        if entry.id in seen:
            raise UnusableFile(f"{path}: keys: the id {entry.id!r} is there twice")
        seen.add(entry.id)
    return entries


def add(path: Path, entry: KeyEntry) -> None:
    """Append an entry; creates the file if needed. Raises UnusableFile: nothing has changed then."""
    with _alone(path):
        entries = read(path) if path.exists() else ()
        _write(path, (*entries, entry))


def remove(path: Path, wanted: str) -> tuple[KeyEntry, ...]:
    """Remove the entry of that id, or all of that subject; returns the removed ones. Raises UnusableFile: as `add`."""
    with _alone(path):
        entries = read(path)
        removed = tuple(entry for entry in entries if entry.id == wanted)
        removed = removed or tuple(entry for entry in entries if entry.subject == wanted)
        if removed:
            _write(path, tuple(entry for entry in entries if entry not in removed))
        return removed


class WatchedKeys(WatchedFile[Mapping[str, KeyEntry]]):
    """The keys of a file that may change, by id. Raises UnusableFile: it cannot be read the first time."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, lambda path: {entry.id: entry for entry in read(path)})

    def find(self, key: str) -> KeyEntry | None:
        """The entry of this key, even if it has expired. Takes the same time for every wrong key."""
        key_id, _, _ = key.removeprefix(PREFIX).partition("_")
        entry = self.value.get(key_id)
        same = hmac.compare_digest(_hash(key), _NOBODY if entry is None else entry.hash)
        return entry if same else None


def _write(path: Path, entries: tuple[KeyEntry, ...]) -> None:
    """Raises OSError."""
    # without defaults: a gateway that does not know a field refuses the file
    text = json.dumps({"keys": [entry.model_dump(mode="json", exclude_defaults=True) for entry in entries]}, indent=2)
    replace_files({path: f"{text}\n".encode()}, keep_access=True)  # the gateway may run as another user


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    try:
        with locked(path.resolve().parent):
            yield
    except OSError as error:
        raise UnusableFile(f"{path}: cannot be written: {error.strerror or error}") from None
