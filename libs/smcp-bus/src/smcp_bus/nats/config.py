"""The configuration of a bus, and the credential that a process shows to nats-server."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as validated

from smcp_service.files import UnusableFile
from smcp_service.settings import MIB, SettingsError

_Text = Annotated[str, Field(min_length=1)]
_Inbox = Annotated[str, Field(pattern=r"^_INBOX(\.[A-Za-z0-9_=-]+)+$")]


@validated(frozen=True, slots=True, config=ConfigDict(strict=True, hide_input_in_errors=True))
class Credentials:
    """A credential as `smcp nats-config` wrote it."""

    name: _Text
    """Stands in the process's subjects, bound there by nats-server's permissions; the NATS user, mostly."""
    secret: _Text = field(repr=False)
    inbox_prefix: _Inbox
    """Where answers to this credential arrive; nobody else may listen there."""
    user: str | None = None
    """The NATS user, where it is not called like the credential: nats-server may take two while a secret is renewed."""
    file: Path | None = field(default=None, compare=False)

    @property
    def login(self) -> str:
        return self.user or self.name

    def __str__(self) -> str:
        return f"the credential {self.name!r}" + (f" of {self.file}" if self.file is not None else "")


_CREDENTIALS: Final = TypeAdapter(Credentials)


def load_credentials(path: Path) -> Credentials:
    """Read the JSON object of a credential; further fields are ignored.

    Raises UnusableFile: it cannot be read, is not such an object, or a field is missing or mistyped.
    """
    try:
        return replace(_CREDENTIALS.validate_json(path.read_bytes()), file=path)
    except OSError as error:
        raise UnusableFile(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = f"field {first['loc'][0]!r}: {first['msg']}" if first["loc"] else "is not a JSON object"
        raise UnusableFile(f"{path}: {where}") from None  # the cause might show the secret


def renewed(credentials: Credentials) -> Credentials:
    """What its file holds now (a secret may be renewed), if that is a credential of this name and inbox."""
    if credentials.file is None:
        return credentials
    try:
        now = load_credentials(credentials.file)
    except UnusableFile:
        return credentials
    same = (now.name, now.inbox_prefix) == (credentials.name, credentials.inbox_prefix)
    return now if same else credentials


def configured_credentials(path: Path | None) -> Credentials | None:
    """The credential in the file that the setting `SMCP_NATS_CREDS` names; None where it names none.

    Raises SettingsError: the file cannot be used.
    """
    try:
        return None if path is None else load_credentials(path)
    except UnusableFile as error:
        raise SettingsError(f"SMCP_NATS_CREDS: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class BusConfig:
    url: str
    """`nats://host:port` or `tls://host:port`, several with commas; a comma in a name or password is `%2C`."""
    credentials: Credentials | None = None
    ca: Path | None = None
    """The certificates (PEM) that a server's own is checked against; None: those of the system."""
    max_payload: int = 32 * MIB
    """Bytes of the largest body, in and out."""
    name: str = "smcp"
    budget_bytes: int | None = None
    """Bytes of all incoming chunked bodies, and of all answers kept for pulling; None is
    four times `max_payload` for the first and sixteen times for the second."""
    process: str | None = None
    connect_timeout: float = 10.0
    """Seconds in which nats-server has to answer first, if only by refusing the credential."""
    patient: bool = True
    """Whether a refused credential is tried again until it is taken, as services do; a command gives up."""
    drain_timeout: float = 5.0
    """Seconds that closing waits for handlers that still run."""
    ping_interval: float = 5.0
    """Seconds between pings; a connection that leaves two of them unanswered is broken."""
    backlog_messages: int = 65536
    backlog_bytes: int = 64 * MIB
    """The longest backlog of one subscription; what exceeds it is dropped and reported as `ConnectionState.SLOW`."""

    @property
    def hosts(self) -> str:
        """The hosts of the URL, without what may be secret in it."""
        parts = [urlsplit(one if "//" in one else f"nats://{one}") for one in self.url.split(",")]
        return ", ".join(part.netloc.rpartition("@")[2] for part in parts)
