"""The small file of `smcp nats-config`: which offices there are, and who may connect.

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
"""

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Final

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from smcp_proto.names import Name, encode_name
from smcp_service.failure import Failure

_ADDRESS = re.compile(r"(?P<host>[^\s:\[\]]+|\[[0-9A-Fa-f:]+\]):(?P<port>-1|[0-9]{1,5})")
_MAX_CREDENTIAL_TOKEN = 120
_WANTED: Final[Mapping[str, str]] = {
    "missing": "is missing",
    "list_type": "has to be a list, such as [a, b]",
    "string_type": "has to be a text (in quotes, where it looks like a number)",
    "int_type": "has to be a whole number",
    "too_short": "has to name at least one",
    "model_type": "has to be a mapping, such as {key: value}",
}
"""What is said for the kinds of mistakes that pydantic words for programmers."""


class NatsConfigError(Failure):
    """The file cannot be used; the message names the field."""

    exit_code = 2


def check_address(value: str) -> str:
    """Return `value` if it is `HOST:PORT` (port -1: a free one). Raises ValueError otherwise."""
    match = _ADDRESS.fullmatch(value)
    if match is None or int(match["port"]) > 65535:
        raise ValueError("not HOST:PORT")
    return value


def check_credential(value: str) -> str:
    """Return `value` if it is no path, and its token short enough to be a file's name and to stand in subjects beside
    two names. Raises ValueError otherwise."""
    if "/" in value or value in (".", ".."):
        raise ValueError("a credential is a file of this name: without '/', and not '.' or '..'")
    if len(encode_name(value)) > _MAX_CREDENTIAL_TOKEN:
        raise ValueError(f"a credential's name has at most {_MAX_CREDENTIAL_TOKEN} bytes, encoded")
    return value


Address = Annotated[str, AfterValidator(check_address)]
CredentialId = Annotated[Name, AfterValidator(check_credential)]
Count = Annotated[int, Field(strict=True, ge=1, le=1000)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ComputerHost(_Model):
    """One host's credential: the office it serves and the Computers it may be there."""

    credential: CredentialId
    office: Name
    names: list[Name] = Field(default_factory=list)

    @property
    def computers(self) -> list[str]:
        return self.names or [self.credential]


class JetStream(_Model):
    """Where the registries' records are kept; `store_dir` is relative to the written configuration."""

    store_dir: str = "jetstream"
    domain: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None = None
    max_file: Annotated[str, Field(pattern=r"^[0-9]+[KMGT]?B?$")] | None = None


class Cluster(_Model):
    """This server's place in a cluster. Each node has the same file, and its own `server_name`."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    listen: Address = "0.0.0.0:6222"
    """Routes come from other machines; they have to log in."""
    routes: list[Address] = Field(default_factory=list)


class NatsModel(_Model):
    """See the head of this file. `server_name` may be `$VARIABLE`: nats-server reads it from its environment."""

    offices: list[Name] = Field(min_length=1)
    registries: Count | list[CredentialId] = 1
    gateways: Count | list[CredentialId] = 1
    computers: list[ComputerHost] = Field(default_factory=list)
    listen: Address = "127.0.0.1:4222"
    http: Address | None = None
    server_name: Annotated[str, Field(pattern=r"^\$?[A-Za-z0-9_.-]{1,64}$")] | None = None
    jetstream: JetStream = JetStream()
    cluster: Cluster | None = None

    @property
    def registry_credentials(self) -> list[str]:
        return _names("registry", self.registries)

    @property
    def gateway_credentials(self) -> list[str]:
        return _names("gateway", self.gateways)

    @model_validator(mode="after")
    def _check(self) -> "NatsModel":
        for index, host in enumerate(self.computers):
            if host.office not in self.offices:
                raise ValueError(f"computers.{index}.office: {host.office!r} is not in offices")
        seen: dict[str, str] = {}
        hosts = [host.credential for host in self.computers]
        for credential in [*self.registry_credentials, *self.gateway_credentials, *hosts]:
            other = seen.setdefault(credential.casefold(), credential)
            if other is not credential:
                raise ValueError(f"two credentials are named {credential!r}: each needs a name (and a file) of its own")
        if self.cluster is not None and self.server_name is None:
            raise ValueError("server_name: each node of a cluster needs one of its own (e.g. $POD_NAME)")
        return self


def parse_model(text: str) -> NatsModel:
    """Read the YAML of `smcp nats-config`.

    Raises:
        NatsConfigError: it is not YAML, or a field is missing, unknown or wrong; the message names the field.
    """
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise NatsConfigError(f"not YAML: {error}") from error
    if not isinstance(data, dict):
        raise NatsConfigError("not a YAML mapping with offices, registries, gateways, computers")
    try:
        return NatsModel.model_validate(data)
    except ValidationError as error:
        raise NatsConfigError("\n".join(_said(error))) from error


def _said(error: ValidationError) -> list[str]:
    """One line for each field that is wrong: its path and why."""
    lines: dict[str, str] = {}
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        # A union (a count or a list of names) reports each of its branches as a further step of the path.
        path = ".".join(str(part) for part in item["loc"] if isinstance(part, int) or re.fullmatch("[a-z_]+", part))
        path = path.removesuffix(".int")
        message = _WANTED.get(item["type"]) or item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = f"is no field of this file{_meant(item['loc'])}"
        lines[path] = f"{lines[path]}; or: {message}" if path in lines else message
    return [f"{path}: {message}" if path else message for path, message in lines.items()]


def _meant(path: tuple[int | str, ...]) -> str:
    """What was meant with the unknown field at `path`, as the end of a sentence."""
    *above, key = path
    inner: dict[str, type[_Model]] = {"computers": ComputerHost, "jetstream": JetStream, "cluster": Cluster}
    model = inner.get(str(above[0]), NatsModel) if above else NatsModel
    near = difflib.get_close_matches(str(key).lower(), model.model_fields, n=1, cutoff=0.65)
    return f"; did you mean {near[0]!r}?" if near else ""


def _names(kind: str, given: int | list[str]) -> list[str]:
    if isinstance(given, int):
        return [f"{kind}-{number}" for number in range(1, given + 1)]
    return given
