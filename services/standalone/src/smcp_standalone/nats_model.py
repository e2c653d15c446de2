"""What the file of `smcp nats-config` may say: which offices there are, and who may connect. Pure.

offices: [lab, 北京 3]
registries: 2                     # or their credentials' names
gateways: [gateway-a, gateway-b]  # or how many
computers:
  - credential: rack-1
    office: lab
    names: [rack 1, rack 2]       # the Computers this host may be; the credential's name if absent
listen: 127.0.0.1:4222
http: 127.0.0.1:8222              # nats-server's monitoring; off if absent
jetstream: {store_dir: ./jetstream}
tls: {cert: server.crt, key: server.key, ca: ca.crt}   # off if absent

Whatever a validator says here is said to the user beside the field's path (`nats_yaml`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from smcp_proto.names import Name, check_name, encode_name
from smcp_service.settings import did_you_mean

_ADDRESS: Final = re.compile(r"(?P<host>[^\s:\[\]]+|\[[0-9A-Fa-f:]+\]):(?P<port>-1|[0-9]{1,5})")
_MAX_CREDENTIAL_TOKEN: Final = 120
_MOST: Final = 1000
COUNT: Final = "count"
NAMES: Final = "names"
"""The tags of the two forms that `registries` and `gateways` have; pydantic puts them into its paths."""


def check_address(value: str) -> str:
    """Return `value` if it is `HOST:PORT` (port -1: a free one). Raises ValueError otherwise."""
    match = _ADDRESS.fullmatch(value)
    if match is None or int(match["port"]) > 65535:
        raise ValueError("has to be HOST:PORT, such as 127.0.0.1:4222")
    return value


def check_advertised(value: str) -> str:
    """Return `value` if it is `HOST:PORT` or a $VARIABLE. Raises ValueError otherwise."""
    if not value.startswith("$"):
        return check_address(value)
    if not re.fullmatch(r"\$[A-Za-z0-9_]{1,64}", value):
        raise ValueError("a $VARIABLE stands alone, and has HOST:PORT as a whole")  # nats-server puts none into a text
    return value


def check_credential(value: str) -> str:
    """Return `value` if it is no path, and its token short enough to be a file's name and to stand in subjects beside
    two names. Raises ValueError otherwise."""
    if "/" in value or value in (".", ".."):
        raise ValueError("a credential is a file of this name: without '/', and not '.' or '..'")
    if len(encode_name(value)) > _MAX_CREDENTIAL_TOKEN:
        raise ValueError(f"a credential's name has at most {_MAX_CREDENTIAL_TOKEN} bytes, encoded")
    return value


def check_count(value: object) -> object:
    """Return `value` if it is a number of processes. Raises ValueError otherwise."""
    if type(value) is not int or not 1 <= value <= _MOST:
        raise ValueError(f"has to be a whole number from 1 to {_MOST}, or a list of names, such as [a, b]")
    return value


def _of_form(pattern: str, said: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"has to be {said}")
        return value

    return AfterValidator(check)


def _form(value: object) -> str:
    return NAMES if isinstance(value, list) else COUNT


Address = Annotated[str, AfterValidator(check_address)]
Advertised = Annotated[str, AfterValidator(check_advertised)]
CredentialId = Annotated[Name, AfterValidator(check_credential)]
Credentials = Annotated[
    Annotated[int, BeforeValidator(check_count), Tag(COUNT)] | Annotated[list[CredentialId], Tag(NAMES)],
    Discriminator(_form),
]
Word = Annotated[str, _of_form("[A-Za-z0-9_-]{1,64}", "1 to 64 letters, digits, '_' or '-'")]
FilePath = Annotated[str, _of_form(r"[^\x00-\x1f\x7f]+", "the path of a file")]
Size = Annotated[str, _of_form("[0-9]+[KMGT]?B?", "a size, such as 1G or 512MB")]
ServerName = Annotated[
    str, _of_form(r"\$?[A-Za-z0-9_.-]{1,64}", "1 to 64 letters, digits, '_', '.' or '-', or a $VARIABLE")
]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ComputerHost(_Model):
    """One host's credential: the office it serves and the Computers it may be there."""

    credential: CredentialId
    office: Name
    names: list[Name] = Field(default_factory=list)

    @property
    def computers(self) -> list[str]:
        """Names that its Computers may have; without `names`, the credential's own."""
        return self.names or [self.credential]


class JetStream(_Model):
    """Where the registries' records are kept; `store_dir` is relative to the written configuration."""

    store_dir: str = "jetstream"
    domain: Word | None = None
    max_file: Size | None = None


class Tls(_Model):
    """Its certificate, for clients and for the routes of a cluster. Paths are as nats-server is to see them."""

    cert: FilePath
    key: FilePath
    ca: FilePath
    """The certificates that those of the cluster's other nodes are checked against."""


class Cluster(_Model):
    """This server's place in a cluster. Each node has the same file, and its own `server_name`."""

    name: Word
    listen: Address = "0.0.0.0:6222"
    """Routes come from other machines; they have to log in."""
    routes: list[Address] = Field(default_factory=list)
    advertise: bool = True
    """Whether clients are told where the other nodes are, and that one left."""


class NatsModel(_Model):
    """See the head of this file. `server_name` and `client_advertise` may be `$VARIABLE`: nats-server reads it from its
    environment."""

    offices: list[Name] = Field(min_length=1)
    registries: Credentials = 1
    gateways: Credentials = 1
    computers: list[ComputerHost] = Field(default_factory=list)
    listen: Address = "127.0.0.1:4222"
    client_advertise: Advertised | None = None
    """What clients are told as the address of this node of a cluster: a name, where addresses change."""
    http: Address | None = None
    server_name: ServerName | None = None
    jetstream: JetStream = JetStream()
    cluster: Cluster | None = None
    tls: Tls | None = None

    @property
    def registry_credentials(self) -> list[str]:
        """Names of the registries' credentials: as listed, or numbered."""
        return _names("registry", self.registries)

    @property
    def gateway_credentials(self) -> list[str]:
        """Names of the gateways' credentials: as listed, or numbered."""
        return _names("gateway", self.gateways)

    @model_validator(mode="after")
    def _check(self) -> "NatsModel":
        if found := [f"{path}: {why}" for path, why in conflicts(self.model_dump())]:
            raise ValueError("; ".join(found))
        return self


def conflicts(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What does not fit together, though each field may be right by itself: the path of a field, and why.

    Fields of the wrong kind are passed over: what is wrong with them is said of themselves.
    """
    offices = [_normal(office) for office in _list(data.get("offices")) if isinstance(office, str)]
    hosts = [host if isinstance(host, dict) else {} for host in _list(data.get("computers"))]
    for index, host in enumerate(hosts):
        office = host.get("office")
        if isinstance(office, str) and _normal(office) not in offices:
            yield f"computers.{index}.office", f"{office!r} is not in offices{did_you_mean(office, offices)}"
    yield from _twice(
        [
            *_given("registry", "registries", data.get("registries", 1)),
            *_given("gateway", "gateways", data.get("gateways", 1)),
            *((f"computers.{index}.credential", host.get("credential")) for index, host in enumerate(hosts)),
        ]
    )
    if data.get("cluster") is not None and data.get("server_name") is None:
        yield "server_name", "each node of a cluster needs one of its own (e.g. $POD_NAME)"


def _twice(credentials: Sequence[tuple[str, Any]]) -> Iterator[tuple[str, str]]:
    places: dict[str, str] = {}
    for path, name in credentials:
        if not isinstance(name, str):
            continue
        first = places.setdefault(_normal(name).casefold(), path)  # some file systems take no notice of case
        if first is not path:
            yield path, f"{name!r} is the name of another credential ({first}): each needs a file of its own"


def _given(kind: str, field: str, value: Any) -> list[tuple[str, Any]]:
    """The credentials of a field that has a number or names, each with its path."""
    if isinstance(value, list):
        return [(f"{field}.{index}", name) for index, name in enumerate(value)]
    count = value if type(value) is int and 1 <= value <= _MOST else 0
    return [(field, name) for name in _names(kind, count)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _normal(name: str) -> str:
    try:
        return check_name(name)
    except ValueError:
        return name


def _names(kind: str, given: int | list[str]) -> list[str]:
    if isinstance(given, int):
        return [f"{kind}-{number}" for number in range(1, given + 1)]
    return given
