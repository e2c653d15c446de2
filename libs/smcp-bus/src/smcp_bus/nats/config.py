"""How a process joins the bus, what it may hold there, and the credential that it shows to nats-server."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

MIB: Final = 1024 * 1024


_PREFIX = re.compile(r"_INBOX(\.[A-Za-z0-9_=-]+)+")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A credential as `smcp nats-config` wrote it."""

    name: str
    """Stands in the process's subjects, bound there by nats-server's permissions; the NATS user, mostly."""
    secret: str = field(repr=False)
    inbox_prefix: str
    """Where answers to this credential arrive; nobody else may listen there."""
    kind: str | None = None
    """Which service it is for: `registry`, `gateway`, `computer`; None in a file that does not say so."""
    office: str | None = None
    """The one office of a Computer's credential."""
    names: tuple[str, ...] | None = None
    """The Computers that its holder may be in that office."""
    file: Path | None = field(default=None, compare=False)
    """Where it was read."""
    user: str | None = None
    """The NATS user, where it is not called like the credential: nats-server may take two while a secret is renewed."""

    @property
    def login(self) -> str:
        return self.user or self.name

    def __str__(self) -> str:
        return f"the credential {self.name!r}" + (f" of {self.file}" if self.file is not None else "")


class BadCredentials(ValueError):
    """The file does not hold a credential. The message names the file and the field, never the secret."""


def load_credentials(path: Path) -> Credentials:
    """Read the JSON object `{"name", "secret", "inbox_prefix"}`; further fields are ignored.

    What it is for (`kind`, and `office` and `names` of a Computer's) may be missing: older files do not say it. So may
    `user`: it is `name` then.

    Raises:
        BadCredentials: the file cannot be read, is not such an object, or a field is missing or mistyped.
    """
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise BadCredentials(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
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
    names = data.get("names")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise BadCredentials(f"{path}: field 'names' has to be a list of strings")
    return Credentials(
        values["name"],
        values["secret"],
        values["inbox_prefix"],
        kind=_text(path, data, "kind"),
        office=_text(path, data, "office"),
        names=None if names is None else tuple(names),
        file=path,
        user=_text(path, data, "user"),
    )


def renewed(credentials: Credentials) -> Credentials:
    """What its file holds now, where that is still a credential of this name and inbox; else `credentials` as they are.

    So a secret that was replaced on both sides is taken up by processes that run.
    """
    if credentials.file is None:
        return credentials
    try:
        now = load_credentials(credentials.file)
    except BadCredentials:
        return credentials
    same = (now.name, now.inbox_prefix) == (credentials.name, credentials.inbox_prefix)
    return now if same else credentials


def _text(path: Path, data: dict[str, Any], name: str) -> str | None:
    value = data.get(name)
    if value is not None and not isinstance(value, str):
        raise BadCredentials(f"{path}: field {name!r} has to be a string")
    return value


def check_purpose(credentials: Credentials, kind: str, *, office: str | None = None, name: str | None = None) -> None:
    """Refuse a credential that says it is for something else; nats-server would refuse its subjects one by one.

    Args:
        kind: the service that wants to use it.
        office, name: the Computer that it wants to be.

    Raises:
        BadCredentials: it is for another service, office or Computer; the message names both sides.
    """
    if credentials.kind is not None and credentials.kind != kind:
        raise BadCredentials(f"{credentials.file}: is the credential of a {credentials.kind}, and this is a {kind}")
    if office is not None and credentials.office not in (None, office):
        raise BadCredentials(
            f"{credentials.file}: is for the office {credentials.office!r}, and this {kind} is to join {office!r}"
        )
    if name is not None and credentials.names is not None and name not in credentials.names:
        allowed = ", ".join(map(repr, credentials.names)) or "nobody"
        raise BadCredentials(f"{credentials.file}: is for the {kind} {allowed}, and this one is called {name!r}")


def configured_credentials(
    path: Path | None,
    wrong: Callable[[str], Exception],
    *,
    kind: str,
    office: str | None = None,
    name: str | None = None,
) -> Credentials | None:
    """The credential in the file that the setting `SMCP_NATS_CREDS` names; None where it names none.

    Args:
        kind, office, name: what it has to be for, see `check_purpose`.

    Raises:
        `wrong`, made of a sentence that names the setting: the file cannot be used, or is for something else.
    """
    if path is None:
        return None
    try:
        credentials = load_credentials(path)
        check_purpose(credentials, kind, office=office, name=name)
    except BadCredentials as error:
        raise wrong(f"SMCP_NATS_CREDS: {error}") from None
    return credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class BusConfig:
    url: str
    """`nats://host:port`, several with commas; a comma in a name or password is `%2C`, as in every URL.

    With `tls://` nothing is said to a server that has no TLS, or another's certificate.
    """
    credentials: Credentials | None = None
    ca: Path | None = None
    """The certificates (PEM) that a server's own is checked against; None: those of the system."""
    max_payload: int = 32 * MIB
    """Bytes of the largest body, in and out."""
    name: str = "smcp"
    """Shown by nats-server's monitoring."""
    budget_bytes: int | None = None
    """Of chunked bodies on their way in, together, and as many of answers that are kept until they were pulled; None is
    four times `max_payload` for the first and sixteen times for the second."""
    process: str | None = None
    """The process id; None makes one."""
    connect_timeout: float = 10.0
    """Seconds in which nats-server has to answer first. One that refuses the credential has answered, and is asked
    again. A connection that stood once comes back by itself, for ever."""
    drain_timeout: float = 5.0
    """Seconds that closing waits for handlers that still run."""
    ping_interval: float = 5.0
    """Seconds between pings; a connection that leaves two of them unanswered is broken."""
    backlog_messages: int = 65536
    backlog_bytes: int = 64 * MIB
    """What may wait for its turn in one subscription; more is dropped and told as `Connection.SLOW`."""

    @property
    def hosts(self) -> str:
        """The hosts of the URL, without what may be secret in it."""
        parts = [urlsplit(one if "//" in one else f"nats://{one}") for one in self.url.split(",")]
        return ", ".join(part.netloc.rpartition("@")[2] for part in parts)


@dataclass(frozen=True, slots=True)
class BusStats:
    pending: int
    """Places in the inbox: requests that wait for an answer, bodies on their way in and out."""
    running: int
    """Handlers that run."""
    waiting: int
    """Messages that wait for a handler."""
    outgoing_bytes: int
    """Of bodies that are kept until they are pulled."""
    budget_used: int
    """Bytes given out to bodies on their way in."""
    budget_waiting: int
    """Bodies that wait for a share of the budget."""
    subscriptions: int
    """Subjects that are served or listened to."""
