"""The settings of a process: read once from `SMCP_*` and the command line, refused when wrong."""

import ipaddress
import os
import re
import ssl
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, get_args
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FilePath,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from smcp_service.lifecycle import Failure

PREFIX: Final = "SMCP_"
KIB: Final = 1024
MIB: Final = 1024 * KIB

LogLevel = Literal["debug", "info", "warning", "error", "critical"]
LogFormat = Literal["auto", "json", "console"]
AuditMode = Literal["off", "on", "required"]

_NATS_SCHEMES: Final = ("nats", "tls")
_USER_INFO: Final = re.compile(r"(?<=://)[^/@\s]+(?=@)")


class SettingsError(Failure):
    """The message names each variable (or option) and what is wrong with it; `warnings` are printed with it."""

    exit_code = 2

    def __init__(self, *problems: str, warnings: Sequence[str] = ()) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
        self.warnings = warnings


def _nats_url(value: str) -> str:
    urls = [url.strip() for url in value.split(",")]
    each = "each server " if len(urls) > 1 else ""
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in _NATS_SCHEMES:
            raise ValueError(f"{each}must begin with one of {', '.join(f'{scheme}://' for scheme in _NATS_SCHEMES)}")
        if not parts.hostname:
            raise ValueError("names no host")
        _ = parts.port  # raises a ValueError of its own when it is not a port
    return ",".join(urls)


def folded(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


def _bind_host(value: str) -> str:
    if not value or any(character.isspace() or character == "/" for character in value):
        raise ValueError("must be a host name or an IP address to listen on")
    return value


@lru_cache(maxsize=64)  # of the header `Host` of each request
def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


Seconds = Annotated[float, Field(allow_inf_nan=False)]
Port = Annotated[int, Field(ge=0, le=65535)]
BindHost = Annotated[str, AfterValidator(_bind_host)]


def _file_to_write(path: Path) -> Path:
    if path.is_dir():
        raise ValueError(f"{path} is a directory")
    if not path.parent.is_dir():
        raise ValueError(f"the directory {path.parent} does not exist")
    return path


class ServiceSettings(BaseModel):
    """The settings that every process of the system has. Times are in seconds, sizes in bytes."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True, validate_default=True)

    nats_url: Annotated[str, AfterValidator(_nats_url)] = Field(
        default="nats://127.0.0.1:4222",
        description="where NATS listens; several comma-separated, a comma in a password as %2C",
    )
    nats_creds: FilePath | None = Field(
        default=None, description="file with the credential for NATS; without it, connect without credentials"
    )
    nats_ca: FilePath | None = Field(
        default=None,
        description="file with the certificates (PEM) that NATS's is checked against; without it the system's",
    )
    lease_s: Annotated[Seconds, Field(ge=0.5, le=3600)] = Field(
        default=10.0, description="how long a process may be silent before it counts as dead"
    )
    drain_s: Annotated[Seconds, Field(ge=0, le=3600)] = Field(
        default=60.0, description="how long a stopping process may take to finish what it has begun"
    )
    move_s: Annotated[Seconds, Field(ge=0, le=3600)] = Field(
        default=30.0, description="how long the members of a stopping process may take to come back elsewhere"
    )
    max_payload: Annotated[int, Field(ge=64 * KIB, le=1024 * MIB)] = Field(
        default=32 * MIB,
        description="maximum size of a result in bytes; a request may have a quarter of it, but at least 1 MiB (or all "
        "of it if it is smaller)",
    )
    max_values: Annotated[int, Field(ge=KIB, le=100_000_000)] = Field(
        default=200_000, description="how many values (items of lists and objects) a request or reply may hold"
    )
    health_host: BindHost = Field(default="127.0.0.1", description="where /livez, /readyz and /metrics are answered")
    health_port: Port = Field(default=0, description="port of /livez, /readyz and /metrics; 0 takes any free one")
    stats: bool = Field(default=False, description="also serve /statz: sizes of internal tables")
    log_level: Annotated[LogLevel, BeforeValidator(folded)] = Field(
        default="info", description=f"one of {', '.join(get_args(LogLevel))}"
    )
    log_format: Annotated[LogFormat, BeforeValidator(folded)] = Field(
        default="auto", description="json, console, or auto: console on a terminal, json elsewhere"
    )
    audit: Annotated[AuditMode, BeforeValidator(folded)] = Field(
        default="off",
        description="on: record who did what; required: and refuse what cannot be recorded; the same everywhere",
    )
    audit_file: Annotated[Path, AfterValidator(_file_to_write)] | None = Field(
        default=None, description="file for the records of this machine's processes, in place of NATS's stream"
    )

    traces_per_s: Annotated[float, Field(ge=0, le=1_000_000)] = Field(
        default=0.0, description="how many traces that begin here are kept in a second; 0: unlimited"
    )
    trace_slow_s: Annotated[float, Field(ge=0.001, le=3600)] = Field(
        default=10.0, description="a request that takes longer is traced although it was not sampled"
    )

    @field_validator("nats_ca")
    @classmethod
    def _check_nats_ca(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if value is None:
            return None
        url = info.data.get("nats_url")  # not there where it is wrong itself: that is said then
        if url is not None and any(urlsplit(one).scheme != "tls" for one in url.split(",")):
            raise ValueError("is for NATS with TLS: each server of SMCP_NATS_URL has to begin with tls:// then")
        try:
            ssl.create_default_context(cafile=value)
        except (ssl.SSLError, OSError):
            raise ValueError("holds no certificates that can be read (PEM)") from None
        return value


S = TypeVar("S", bound=ServiceSettings)


def load_settings(settings_class: type[S], **options: Any) -> S:
    """The settings from the environment: an empty variable counts as absent, and the case of its name does not matter.
    `options` (from the command line) win over it; `None` is an absent option."""
    environ = {variable.upper(): value for variable, value in os.environ.items() if value}
    read = {name: environ[variable] for name in settings_class.model_fields if (variable := _variable(name)) in environ}
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return settings_class(**{**read, **given})
    except ValidationError as error:
        raise SettingsError(*_problems(error, given)) from None


def variables(settings_class: type[ServiceSettings]) -> frozenset[str]:
    return frozenset(_variable(name) for name in settings_class.model_fields)


def misspelt_variables(settings_classes: Iterable[type[ServiceSettings]], environ: Iterable[str]) -> dict[str, str]:
    """The variables that are nearly called like a setting of those, each with that setting."""
    known = frozenset[str]().union(*map(variables, settings_classes))
    unknown = (variable for variable in sorted(environ) if variable.upper() not in known)
    # less alike are names of settings of other commands, which may share an environment
    near = {variable: get_close_matches(variable.upper(), known, 1, cutoff=0.91) for variable in unknown}
    return {variable: found[0] for variable, found in near.items() if found}


def shown(settings: ServiceSettings) -> dict[str, str]:
    """The settings in force, by variable, as text that may be printed: secrets and passwords in URLs are masked."""
    values = {}
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, SecretStr):
            text = "<hidden>" if value.get_secret_value() else ""
        elif isinstance(value, Path):
            text = str(value)
        else:
            text = "" if value is None else str(value)
        values[_variable(name)] = _USER_INFO.sub("<hidden>", text)
    return values


def _variable(field: str) -> str:
    return f"{PREFIX}{field}".upper()


def _problems(error: ValidationError, given: Mapping[str, Any]) -> list[str]:
    problems = []
    for detail in error.errors(include_url=False, include_context=False, include_input=False):
        name = str(detail["loc"][0]) if detail["loc"] else ""
        where = f"--{name.replace('_', '-')}" if name in given else _variable(name) if name else "the settings"
        reason = detail["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
        reason = reason[:1].lower() + reason[1:]
        if detail["type"] == "missing":
            reason = f"is missing: set it, or give --{name.replace('_', '-')}"
        if detail["type"] == "path_not_file":
            reason = "there is no such file"
        problems.append(f"{where}: {reason}")
    return problems
