"""What this Computer keeps encrypted on its host: the values of inputs (`SecretStore`), and whole configuration files.

The key is a text of its own per state directory. It is in the file that SMCP_SECRET_KEY_FILE names, else in the keyring
of the system, else, where the system has none, in a file of mode 0600 beside what it encrypts. What is encrypted says
where its key is, so that a keyring which is locked or missing is an error, and never a new key.
"""

import hashlib
import json
import os
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Final

from smcp_service.files import locked, replace_files
from smcp_service.lifecycle import Failure

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

SETTING: Final = "SMCP_SECRET_KEY_FILE"
SERVICE: Final = "a2c-smcp"
"""The name of our entries in a keyring; the user name is the state directory."""
MIN_KEY: Final = 32
"""Characters of a key. It is not stretched, so it has to be random."""
_MARK: Final = b"a2c-smcp-encrypted:"


class SecretsError(Failure):
    """Nothing can be encrypted or decrypted; the text is for the user of this host, and has no secret."""


class KeyPlace(StrEnum):
    """Where a key is; written in front of what it encrypts."""

    GIVEN = "given"
    KEYRING = "keyring"
    FILE = "file"


class Vault:
    """Encrypts and decrypts with the key of one state directory. It may wait for the keyring of the system."""

    def __init__(self, directory: Path, key_file: Path | None = None) -> None:
        self._directory = directory
        self._given = key_file
        self._own = directory / "secrets.key"

    def seal_file(self, plain: bytes) -> bytes:
        """For a file anywhere: it says which state directory has the key. Raises SecretsError."""
        return self.seal(plain) + os.fsencode(f"{self._directory.absolute()}\n")

    def seal(self, plain: bytes) -> bytes:
        """Raises SecretsError: there is no key, and none can be made."""
        place, key = self._current_key()
        return _MARK + place.encode() + b":" + _cipher(key).encrypt(plain) + b"\n"

    def unseal(self, sealed: bytes) -> bytes:
        """Raises SecretsError: the key is not where it was, or is another one; or it was changed."""
        name, _, token = sealed.removeprefix(_MARK).partition(b":")
        try:
            place = KeyPlace(name.decode())
        except ValueError:
            raise SecretsError("was encrypted by another version of this program, or changed since") from None
        key = self._key(place)
        if key is None:
            raise SecretsError(f"cannot be decrypted: {self._missing(place)}")
        from cryptography.fernet import InvalidToken  # noqa: PLC0415 -- see `_cipher`

        try:
            return _cipher(key).decrypt(token.strip())
        except InvalidToken:
            raise SecretsError("cannot be decrypted: it is of another key, or was changed") from None

    def _current_key(self) -> tuple[KeyPlace, str]:
        for place in KeyPlace if self._given is None else [KeyPlace.GIVEN]:
            if (key := self._key(place)) is not None:
                return place, key
        if self._given is not None:
            raise SecretsError(self._missing(KeyPlace.GIVEN))
        key = token_urlsafe(MIN_KEY)
        if _in_keyring(str(self._directory), key) == key:  # the null backend forgets
            return KeyPlace.KEYRING, key
        write_private(self._own, f"{key}\n".encode())
        return KeyPlace.FILE, key

    def _key(self, place: KeyPlace) -> str | None:
        if place is KeyPlace.KEYRING:
            return _in_keyring(str(self._directory))
        path = self._given if place is KeyPlace.GIVEN else self._own
        return None if path is None else _from_file(path, private=place is KeyPlace.FILE)

    def _missing(self, place: KeyPlace) -> str:
        match place:
            case KeyPlace.GIVEN:
                return f"{SETTING}: {self._given} does not exist" if self._given else f"{SETTING} does not say its key"
            case KeyPlace.KEYRING:
                return "the keyring of the system is locked, not there, or has no key for it"
            case KeyPlace.FILE:
                return f"{self._own} does not exist"


def is_sealed(raw: bytes) -> bool:
    return raw.startswith(_MARK)


def unseal_file(sealed: bytes) -> bytes:
    """What `Vault.seal_file` sealed; the environment may say where the key is now. Raises SecretsError."""
    token, _, directory = sealed.partition(b"\n")
    given = os.environ.get(SETTING)
    return Vault(Path(os.fsdecode(directory.strip())), Path(given) if given else None).unseal(token)


class SecretStore:
    """Values by name (the ids of inputs), in one encrypted file. Each use reads it: commands change it meanwhile."""

    def __init__(self, directory: Path, key_file: Path | None = None) -> None:
        self.vault = Vault(directory, key_file)
        self._path = directory / "secrets"

    def read(self) -> dict[str, str]:
        """Raises SecretsError. Without a file no key is looked for."""
        try:
            sealed = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise SecretsError(f"{self._path} cannot be read: {error.strerror}") from None
        try:
            values: dict[str, str] = json.loads(self.vault.unseal(sealed))
        except SecretsError as error:
            raise SecretsError(f"{self._path} {error}") from None
        return values

    def put(self, name: str, value: str) -> None:
        with self._changing() as values:
            values[name] = value

    def remove(self, name: str) -> bool:
        """Whether it was there."""
        with self._changing() as values:
            return values.pop(name, None) is not None

    @contextmanager
    def _changing(self) -> Iterator[dict[str, str]]:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(self._path.parent):  # the Computer and a command may write at the same time
                values = self.read()
                yield values
                write_private(self._path, self.vault.seal(json.dumps(values).encode()))
        except OSError as error:
            raise SecretsError(f"{self._path.parent} cannot be made: {error.strerror}") from None


def write_private(path: Path, content: bytes) -> None:
    """Write or replace a file that its user alone can read, whole or not at all. Raises SecretsError."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_files({path: content})
    except OSError as error:
        raise SecretsError(f"{path} cannot be written: {error.strerror}") from None


def _cipher(key: str) -> "Fernet":
    from cryptography.fernet import Fernet  # noqa: PLC0415 -- takes megabytes, and most Computers keep nothing

    return Fernet(urlsafe_b64encode(hashlib.sha256(key.encode()).digest()))


def _from_file(path: Path, *, private: bool) -> str | None:
    try:
        mode = path.stat().st_mode
        key = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise SecretsError(f"{path} cannot be read: {getattr(error, 'strerror', 'it is no text')}") from None
    if private and mode & 0o077:
        raise SecretsError(f"{path} can be read by others: chmod 600 it, and consider what it encrypts as known")
    if len(key) < MIN_KEY:
        raise SecretsError(f"{path} is no key: it has to hold at least {MIN_KEY} random characters")
    return key


def _in_keyring(user: str, new: str | None = None) -> str | None:
    """The key, `new` if it is given and the keyring takes it. None: it has none, is locked, or there is no keyring."""
    import keyring  # noqa: PLC0415 -- looks for its backends, which takes a tenth of a second
    from keyring.errors import KeyringError  # noqa: PLC0415

    try:
        if new is not None:
            keyring.set_password(SERVICE, user, new)
        return keyring.get_password(SERVICE, user)
    except KeyringError:
        return None
