"""What this Computer keeps encrypted on its host: the values of inputs (`SecretStore`), and whole configuration files.

The key is a text of its own per state directory. It is in the file that SMCP_SECRET_KEY_FILE names, else in the keyring
of the system, else, where the system has none, in a file of mode 0600 beside what it encrypts.
"""

import hashlib
import json
import os
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_urlsafe
from typing import Final

from smcp_computer.config.lint import ConfigError
from smcp_computer.settings import states_directory
from smcp_service.files import locked, replace_files

SETTING: Final = "SMCP_SECRET_KEY_FILE"
SERVICE: Final = "a2c-smcp"
"""The name of our entries in a keyring; the user name is the state directory."""
MIN_KEY: Final = 32
"""Characters of a key. It is not stretched, so it has to be random."""
_MARK: Final = b"a2c-smcp-encrypted:"


class SecretsError(ConfigError):
    """Nothing can be encrypted or decrypted; the text is for the user of this host, and has no secret."""


class SecretStore:
    """Values by name (the ids of inputs), in one encrypted file of a state directory, and its key. Each use reads the
    file, as commands change it meanwhile, and may wait for the keyring of the system."""

    def __init__(self, directory: Path, key_file: Path | None = None) -> None:
        self._directory = directory
        self._given = key_file
        self._own = directory / "secrets.key"
        self._path = directory / "secrets"

    def read(self) -> dict[str, str]:
        """Raises SecretsError. Without a file no key is looked for."""
        try:
            sealed = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise SecretsError(f"{self._path}: cannot be read: {error.strerror}") from None
        try:
            values: dict[str, str] = json.loads(self.unseal(sealed))
        except SecretsError as error:
            raise SecretsError(f"{self._path}: {error}") from None
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
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(self._directory):  # the Computer and a command may write at the same time
                values = self.read()
                yield values
                write_private(self._path, self.seal(json.dumps(values).encode()))
        except OSError as error:
            raise SecretsError(f"{self._directory} cannot be made: {error.strerror}") from None

    def seal(self, plain: bytes) -> bytes:
        """Encrypt for a file anywhere: it says which state directory has the key. Raises SecretsError: there is no key,
        and none can be made."""
        from cryptography.fernet import Fernet  # noqa: PLC0415 -- takes megabytes, and most Computers keep nothing

        key = next(self._keys(), None) or self._new_key()
        return _MARK + Fernet(key).encrypt(plain) + os.fsencode(f"\n{self._directory.absolute()}\n")

    def unseal(self, sealed: bytes) -> bytes:
        """Raises SecretsError: there is no key, or another one; or it was changed."""
        from cryptography.fernet import Fernet, InvalidToken  # noqa: PLC0415 -- as above

        why = (
            f"{SETTING} does not say its key, the keyring of the system is locked, not there, or has no key for it, "
            f"and {self._own} does not exist"
        )
        token = sealed.partition(b"\n")[0].removeprefix(_MARK)
        for key in self._keys():  # one after the other: a keyring may ask its user to unlock it
            with suppress(InvalidToken):
                return Fernet(key).decrypt(token)
            why = "it is of another key, or was changed"
        raise SecretsError(f"cannot be decrypted: {why}")

    def _keys(self) -> Iterator[bytes]:
        """Those that there are; the first encrypts."""
        if self._given is not None:
            if (given := _from_file(self._given)) is None:
                raise SecretsError(f"{SETTING}: {self._given} does not exist")
            yield given
        if (key := _in_keyring(str(self._directory))) is not None:
            yield _fernet_key(key)
        if (own := _from_file(self._own, private=True)) is not None:
            yield own

    def _new_key(self) -> bytes:
        key = token_urlsafe(MIN_KEY)
        if _in_keyring(str(self._directory), key) != key:  # the null backend forgets
            write_private(self._own, f"{key}\n".encode())
        return _fernet_key(key)


def is_sealed(raw: bytes) -> bool:
    return raw.startswith(_MARK)


def seal_file(plain: bytes) -> bytes:
    """Encrypt a configuration. It belongs to no single Computer: the key is in the directory above their states.
    Raises SecretsError."""
    return _store_at(Path(os.environ.get("SMCP_STATE_DIR") or states_directory())).seal(plain)


def unseal_file(sealed: bytes) -> bytes:
    """What `SecretStore.seal` sealed; the environment may say where the key is now. Raises SecretsError."""
    directory = sealed.partition(b"\n")[2]
    return _store_at(Path(os.fsdecode(directory.strip()))).unseal(sealed)


def _store_at(directory: Path) -> SecretStore:
    given = os.environ.get(SETTING)
    return SecretStore(directory, Path(given) if given else None)


def write_private(path: Path, content: bytes) -> None:
    """Write or replace a file that its user alone can read, whole or not at all. Raises SecretsError."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_files({path: content})
    except OSError as error:
        raise SecretsError(f"{path}: cannot be written: {error.strerror}") from None


def _fernet_key(key: str) -> bytes:
    return urlsafe_b64encode(hashlib.sha256(key.encode()).digest())


def _from_file(path: Path, *, private: bool = False) -> bytes | None:
    try:
        mode = path.stat().st_mode
        key = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise SecretsError(f"{path}: cannot be read: {getattr(error, 'strerror', 'it is not UTF-8 text')}") from None
    if private and mode & 0o077:
        raise SecretsError(f"{path} can be read by others: chmod 600 it, and consider what it encrypts as known")
    if len(key) < MIN_KEY:
        raise SecretsError(f"{path} is not a key: it has to hold at least {MIN_KEY} random characters")
    return _fernet_key(key)


def _in_keyring(user: str, new: str | None = None) -> str | None:
    """The key, `new` if it is given and the keyring takes it. None: it has none, is locked, or there is no keyring."""
    import keyring  # noqa: PLC0415 -- looks for its backends, which takes a tenth of a second
    from keyring.errors import KeyringError  # noqa: PLC0415

    with suppress(KeyringError):
        if new is not None:
            keyring.set_password(SERVICE, user, new)
        return keyring.get_password(SERVICE, user)
    return None
