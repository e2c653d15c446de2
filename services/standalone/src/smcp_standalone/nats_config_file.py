"""The schema of the file of `smcp nats-config`: offices, and who may connect. The package's README shows one. Pure."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from smcp_proto.member_names import Name, encode_name
from smcp_proto.printable import did_you_mean
from smcp_proto.validation import reason_of
from smcp_service.settings import SettingsError

_ADDRESS: Final = r"(?!\$)(?:[^\s:\[\]]+|\[[0-9A-Fa-f:]+\]):(?:-1|[0-9]{1,4}|[1-6][0-9]{4})"
_MAX_CREDENTIAL_TOKEN: Final = 120


def _credential(value: str) -> str:
    if "/" in value or value in (".", ".."):
        raise ValueError("a credential is a file of this name: without '/', and not '.' or '..'")
    if len(encode_name(value)) > _MAX_CREDENTIAL_TOKEN:  # it stands in subjects beside two names
        raise ValueError(f"a credential's name has at most {_MAX_CREDENTIAL_TOKEN} bytes, encoded")
    return value


def _of_form(pattern: str, said: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"has to be {said}")
        return value

    return AfterValidator(check)


Address = Annotated[str, _of_form(_ADDRESS, "HOST:PORT, such as 127.0.0.1:4222")]
Advertised = Annotated[str, _of_form(rf"{_ADDRESS}|\$[A-Za-z0-9_]{{1,64}}", "HOST:PORT, or a $VARIABLE alone")]
CredentialId = Annotated[Name, AfterValidator(_credential)]
Word = Annotated[str, _of_form("[A-Za-z0-9_-]{1,64}", "1 to 64 letters, digits, '_' or '-'")]
FilePath = Annotated[str, Field(min_length=1)]
Size = Annotated[str, _of_form("[0-9]+[KMGT]?B?", "a size, such as 1G or 512MB")]
ServerName = Annotated[str, _of_form(r"\$?[A-Za-z0-9_.-]{1,64}", "1 to 64 letters, digits or '_.-', or a $VARIABLE")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ComputerHost(_Model):
    credential: CredentialId
    office: Name
    names: list[Name] = Field(default_factory=list)

    @property
    def computers(self) -> list[str]:
        """Names that its Computers may have; without `names`, the credential's own."""
        return self.names or [self.credential]


class JetStream(_Model):
    """Where the registries' records are kept."""

    store_dir: str = "jetstream"
    """Relative to the written configuration."""
    max_file: Size | None = None


class Tls(_Model):
    """The certificate for clients and for the routes of a cluster. Paths are as nats-server is to see them."""

    cert: FilePath
    key: FilePath
    ca: FilePath
    """The certificates that those of the cluster's other nodes are checked against."""


class Cluster(_Model):
    """Each node of a cluster has the same file, and its own `server_name`."""

    name: Word
    listen: Address = "0.0.0.0:6222"
    """Routes come from other machines; they have to log in."""
    routes: list[Address] = Field(default_factory=list)


class NatsModel(_Model):
    """`server_name` and `client_advertise` may be `$VARIABLE`: nats-server reads it from its environment."""

    offices: list[Name] = Field(min_length=1)
    registries: list[CredentialId] = ["registry-1"]
    gateways: list[CredentialId] = ["gateway-1"]
    computers: list[ComputerHost] = Field(default_factory=list)
    operators: list[CredentialId] = []
    listen: Address = "127.0.0.1:4222"
    client_advertise: Advertised | None = None
    """The address of this node of a cluster for clients: a name, where addresses change."""
    http: Address | None = None
    server_name: ServerName | None = None
    jetstream: JetStream = JetStream()
    cluster: Cluster | None = None
    tls: Tls | None = None


def _conflicts(model: NatsModel) -> dict[str, str]:
    """Contradictions between valid fields: the reason by the path of a field."""
    found = {
        f"computers.{index}.office": f"{host.office!r} is not in offices{did_you_mean(host.office, model.offices)}"
        for index, host in enumerate(model.computers)
        if host.office not in model.offices
    }
    paths: dict[str, str] = {}
    for path, name in [
        *((f"registries.{index}", name) for index, name in enumerate(model.registries)),
        *((f"gateways.{index}", name) for index, name in enumerate(model.gateways)),
        *((f"operators.{index}", name) for index, name in enumerate(model.operators)),
        *((f"computers.{index}.credential", host.credential) for index, host in enumerate(model.computers)),
    ]:
        first = paths.setdefault(name.casefold(), path)  # some file systems take no notice of case
        if first is not path:
            found[path] = f"{name!r} is the name of another credential ({first}): each needs a file of its own"
    if model.cluster is not None and model.server_name is None:
        found["server_name"] = "each node of a cluster needs one of its own (e.g. $POD_NAME)"
    return found


class NatsConfigError(SettingsError):
    """The file cannot be used; the message has a line for each problem, which names the field."""

    def at(self, where: str) -> "NatsConfigError":
        return NatsConfigError(*(f"{where}: {problem}" for problem in self.problems))


def parse_model(text: str) -> NatsModel:
    """Read the YAML of `smcp nats-config`. Raises `NatsConfigError` with all that is wrong."""
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # the last: of what looks like a date and is none
        raise NatsConfigError(f"not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise NatsConfigError("not a YAML mapping with offices, registries, gateways, computers")
    return model_of(data)


def model_of(data: Mapping[Any, Any]) -> NatsModel:
    try:
        model = NatsModel.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        found = {".".join(map(str, item["loc"])): reason_of(item) for item in details}
    else:
        found = _conflicts(model)
        if not found:
            return model
    raise NatsConfigError(*(f"{path}: {why}" for path, why in found.items()))
