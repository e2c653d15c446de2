"""Who this process is to nats-server."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

_PREFIX = re.compile(r"_INBOX(\.[A-Za-z0-9_=-]+)+")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A credential as `smcp nats-config` wrote it."""

    name: str
    """The NATS user; stands in the process's subjects, bound there by nats-server's permissions."""
    secret: str = field(repr=False)
    inbox_prefix: str
    """Where answers to this credential arrive; nobody else may listen there."""


class BadCredentials(ValueError):
    """The file does not hold a credential. The message names the file and the field, never the secret."""


def load_credentials(path: Path) -> Credentials:
    """Read the JSON object `{"name", "secret", "inbox_prefix"}`; further fields are ignored.

    Raises:
        BadCredentials: the file cannot be read, is not such an object, or a field is missing or mistyped.
    """
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise BadCredentials(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadCredentials(f"{path}: is not JSON") from error
    if not isinstance(data, dict):
        raise BadCredentials(f"{path}: is not a JSON object")
    values: dict[str, str] = {}
    for name in ("name", "secret", "inbox_prefix"):
        value = data.get(name)
        if not isinstance(value, str) or not value:
            raise BadCredentials(f"{path}: field {name!r} has to be a string that is not empty")
        values[name] = value
    if not _PREFIX.fullmatch(values["inbox_prefix"]):
        raise BadCredentials(f"{path}: field 'inbox_prefix' has to be a NATS subject under _INBOX, without wildcards")
    return Credentials(values["name"], values["secret"], values["inbox_prefix"])


def configured_credentials(path: Path | None, wrong: Callable[[str], Exception]) -> Credentials | None:
    """The credential in the file that the setting `SMCP_NATS_CREDS` names; None where it names none.

    Raises:
        `wrong`, made of a sentence that names the setting: the file cannot be used.
    """
    if path is None:
        return None
    try:
        return load_credentials(path)
    except BadCredentials as error:
        raise wrong(f"SMCP_NATS_CREDS: {error}") from None
