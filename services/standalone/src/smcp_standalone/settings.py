"""The options and settings of `smcp up`, and those of the parts that it runs."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr

from smcp_auth import api_keys
from smcp_auth.grants import UNLIMITED
from smcp_auth.settings import check_auth
from smcp_computer.config.file import ComputerConfig, load_config
from smcp_computer.settings import ComputerSettings
from smcp_gateway.settings import GatewaySettings
from smcp_mcp.settings import McpSettings, check_access
from smcp_registry.settings import RegistrySettings
from smcp_service.files import locked
from smcp_service.lifecycle import Failure
from smcp_service.settings import SettingsError, load_settings
from smcp_standalone.nats_config_file import NatsConfigError, NatsModel, model_of
from smcp_standalone.nats_server import find_command, read_model

REGISTRY: Final = "up-registry"
GATEWAY: Final = "up-gateway"
COMPUTER: Final = "up-computer"
OPERATOR: Final = "up-operator"
"""The NATS credentials of the services in this process."""

MCP_PORT: Final = "--mcp-port / SMCP_MCP_PORT, or start without MCP clients (--no-mcp)"

TEMPORARY: Final = "smcp-up-"
"""Begins the names of temporary directories."""
SAMPLE: Final = "computer.json"
"""The configuration in the directory of a run to which none was given."""
KEYS: Final = "key-of-this-run.json"
"""The file of the keys that are made for a run (`with_key`)."""
UNREAD: Final = tuple(
    f"SMCP_{name}" for name in ("CONFIG", "OFFICE", "NAME", "NATS_URL", "NATS_CREDS", "NATS_CA", "GATEWAY_URL")
)
"""What its parts read from the environment only where they run alone."""


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The options of `smcp up`. None: as the environment says, or as the help describes."""

    office: str
    name: str
    port: int | None = None
    config: Path | None = None
    data: Path | None = None
    hosts: Path | None = None
    insecure: bool | None = None
    mcp: bool = True
    mcp_port: int | None = None


@dataclass(frozen=True, slots=True)
class UpSettings:
    registry: RegistrySettings
    gateway: GatewaySettings
    computer: ComputerSettings
    configuration: ComputerConfig
    mcp: McpSettings | None = None
    key: str | None = field(default=None, repr=False)
    """See `with_key`: neither a web page nor another user of this machine can join without it."""


@contextmanager
def up_directory(data: Path | None) -> Iterator[Path]:
    """`data`, locked for this process, or a temporary one."""
    with ExitStack() as stack:
        if data is None:
            _remove_killed_runs()
            temporary = tempfile.TemporaryDirectory(prefix=TEMPORARY, ignore_cleanup_errors=True)
            data = Path(stack.enter_context(temporary))
        try:
            data.mkdir(parents=True, exist_ok=True)
            (data / "lock").touch()
            stack.enter_context(locked(data / "lock", wait=False))
        except BlockingIOError as error:
            raise Failure(f"--data: another smcp up runs in {data}") from error
        except OSError as error:
            raise SettingsError(f"--data: {data} cannot be used: {error.strerror}") from error
        yield data


def _remove_killed_runs() -> None:
    """Remove the temporary directories of this user's runs that were killed: they hold keys. One that runs is locked
    before it has a nats-server."""
    for directory in [each.parent for each in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*/nats")]:
        with suppress(OSError):
            if directory.lstat().st_uid == os.getuid():
                with locked(directory / "lock", wait=False):
                    shutil.rmtree(directory)


def load_up_settings(options: UpOptions, directory: Path) -> UpSettings:
    """Read the environment and the options, and write the sample configuration where there is none."""
    config = options.config
    if config is None:
        config = directory / SAMPLE
        if not config.exists():
            uvx = find_command("uvx")
            servers = {} if uvx is None else {"time": uvx_server(uvx, "mcp-server-time")}
            config.write_text(json.dumps({"servers": servers}, indent=2), encoding="utf-8")
    audit = None if os.environ.get("SMCP_AUDIT") else "on"
    gateway = load_settings(GatewaySettings, gateway_port=options.port, insecure=options.insecure, audit=audit)
    check_auth(gateway, "SMCP_GATEWAY_HOST", gateway.gateway_host)
    registry = load_settings(RegistrySettings, audit=audit)
    computer = load_settings(ComputerSettings, config=config, office=options.office, name=options.name, audit=audit)
    mcp = _mcp_settings(options, gateway, audit) if options.mcp else None
    return UpSettings(registry, gateway, computer, load_config(config), mcp)


def with_key(settings: UpSettings, directory: Path) -> UpSettings:
    """With keys of its user and of smcp-mcp for this run, unless the settings say who may connect, or let all in."""
    if settings.gateway.auth_configured or settings.gateway.insecure:
        return settings
    path = directory / KEYS
    path.unlink(missing_ok=True)  # the key of an earlier run is worth nothing
    key, entry = api_keys.new_key(subject="smcp up", offices=["*"], roles=["agent", "computer"], names=["*"])
    api_keys.add(path, entry)
    mcp_key, mcp_entry = api_keys.new_key(
        subject="smcp-mcp", offices=["*"], roles=["agent"], names=["*"], delegates=True, quota=UNLIMITED
    )
    api_keys.add(path, mcp_entry)  # nobody but smcp-mcp may speak for others, so it has a key that nobody is told
    hosts = settings.gateway.allowed_hosts or "localhost"  # nobody has given this run another name
    changed = {"auth_keys": path, "allowed_hosts": hosts}
    mcp = settings.mcp and settings.mcp.model_copy(update={**changed, "token": SecretStr(mcp_key)})
    return replace(settings, gateway=settings.gateway.model_copy(update=changed), mcp=mcp, key=key)


def up_model(options: UpOptions) -> NatsModel:
    """The permissions of this run's nats-server: for the services in this process and the hosts in `--hosts`."""
    model = NatsModel(offices=[options.office], registries=[], gateways=[], listen="127.0.0.1:-1")
    local = {"credential": COMPUTER, "office": options.office, "names": [options.name]}
    try:
        if options.hosts is not None:
            model = read_model(options.hosts)
        whole = {
            **model.model_dump(),
            "offices": list(dict.fromkeys([options.office, *model.offices])),
            "registries": [REGISTRY, *model.registries],
            "gateways": [GATEWAY, *model.gateways],
            "operators": [OPERATOR, *model.operators],
            "computers": [local, *(host.model_dump() for host in model.computers)],
        }
        return model_of(whole)  # a credential may be called like one of ours
    except NatsConfigError as error:
        raise error.at("--hosts") from None


def _mcp_settings(options: UpOptions, gateway: GatewaySettings, audit: str | None) -> McpSettings:
    port = options.mcp_port
    if port is None and not os.environ.get("SMCP_MCP_PORT"):
        port = gateway.gateway_port and gateway.gateway_port + 1
    chosen = {"url": McpSettings.model_fields["url"].default, "mcp_port": port}  # `SMCP_URL` is for smcp-agent
    mcp = load_settings(McpSettings, **chosen, insecure=options.insecure, audit=audit)
    check_access(mcp)
    return mcp


_PASSED_ON = ("SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
"""What `uvx` needs of this environment to fetch a server, beside its own `UV_*`; MCP servers inherit nothing."""


def uvx_server(uvx: str, package: str, *arguments: str) -> dict[str, Any]:
    """The configuration of an MCP server from PyPI, run in an environment of its own."""
    given = sorted(name for name in os.environ if name.upper() in _PASSED_ON or name.startswith("UV_"))
    parameters = {
        "command": uvx,
        "args": [package, *arguments],
        "env": {name: f"${{env:{name}}}" for name in given} or None,
    }
    return {"type": "stdio", "server_parameters": parameters}
