"""The whole system in one process: nats-server as a child, and a registry, a gateway and a Computer beside it.

Each has its own credential and connection, with the permissions that it would have on a machine of its own.
"""

import fcntl
import json
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from smcp_agent.connecting.options import shared_key
from smcp_auth import api_keys
from smcp_auth.settings import check_auth
from smcp_bus.audit_sinks import open_trail
from smcp_bus.bus import BusError
from smcp_bus.log_level import serve_log_level
from smcp_bus.nats.bus import NatsBus, open_bus
from smcp_bus.nats.config import BusConfig, load_credentials
from smcp_computer.app import open_approvals, open_computer
from smcp_computer.config.file import ComputerConfig, load_config
from smcp_computer.config.lint import ConfigError
from smcp_computer.confirmation import AtTerminal
from smcp_computer.control import open_control
from smcp_computer.settings import ComputerSettings
from smcp_computer.terminal import open_terminal
from smcp_gateway import app as gateway_app
from smcp_gateway.http_server import HttpServer, open_http_server
from smcp_gateway.settings import GatewaySettings
from smcp_registry import app as registry_app
from smcp_registry.settings import RegistrySettings
from smcp_service.health import Readiness
from smcp_service.lifecycle import Failure, background
from smcp_service.logging import LEVEL
from smcp_service.settings import ServiceSettings, SettingsError, load_settings, variables
from smcp_service.telemetry import wrong_endpoints
from smcp_standalone.nats_config_file import NatsConfigError, NatsModel, model_of
from smcp_standalone.nats_server import NatsServer, find_command, open_nats_server
from smcp_standalone.nats_server_conf import read_model
from smcp_standalone.operator_connection import advertise_run

SAMPLE: Final = "computer.json"
"""The configuration in the directory of a run to which none was given."""
KEYS: Final = "key-of-this-run.json"
"""The file of the key that is made for a run (`with_key`)."""
_ALONE: Final = "smcp-registry, smcp-gateway and smcp-computer, since `smcp up` runs a nats-server of its own"
OPTIONS: Final[Mapping[str, str]] = {
    "SMCP_CONFIG": "--config",
    "SMCP_OFFICE": "--office",
    "SMCP_NAME": "--name",
    "SMCP_NATS_URL": _ALONE,
    "SMCP_NATS_CREDS": _ALONE,
    "SMCP_NATS_CA": _ALONE,
    "SMCP_GATEWAY_URL": "smcp-computer, since the Computer of `smcp up` needs no gateway",
}
"""What its parts read from the environment where they run alone, and what is to be used instead."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The options of `smcp up`."""

    office: str
    name: str
    port: int | None = None
    """The gateway's; 0 any free one, None as `SMCP_GATEWAY_PORT` says."""
    config: Path | None = None
    """The Computer's; None runs the sample."""
    data: Path | None = None
    """The directory of rooms and credentials; None: they are deleted at the end."""
    hosts: Path | None = None
    """The file of hosts that may connect, as for `smcp nats-config`."""
    insecure: bool | None = None
    """Whether anybody may connect from elsewhere; None as `SMCP_INSECURE` says."""


@dataclass(frozen=True, slots=True)
class UpSettings:
    registry: RegistrySettings
    gateway: GatewaySettings
    computer: ComputerSettings
    configuration: ComputerConfig
    key: str | None = field(default=None, repr=False)
    """See `with_key`: neither a web page nor another user of this machine can join without it."""


def without_data(options: UpOptions) -> UpOptions:
    """The same for a run that leaves no trace: the configuration in `options.data` counts, nothing is written there."""
    kept = None if options.data is None else options.data / SAMPLE
    config = kept if options.config is None and kept is not None and kept.exists() else options.config
    return replace(options, data=None, config=config)


def load_up_settings(options: UpOptions, directory: Path) -> UpSettings:
    """Read the environment and the options, and write the sample configuration where there is none.

    Raises `SettingsError` with all that is wrong with them and with the Computer's configuration.
    """
    config = options.config
    if config is None:
        config = directory / SAMPLE
        if not config.exists():
            config.write_text(json.dumps(_sample(), indent=2), encoding="utf-8")
    refused: list[SettingsError] = []
    configuration = _read(refused, partial(_configuration, config))
    gateway = _read(refused, partial(_gateway_settings, options))
    registry = _read(refused, partial(load_settings, RegistrySettings, audit=_audit_default()))
    chosen = {"config": config, "office": options.office, "name": options.name, "audit": _audit_default()}
    computer = _read(refused, partial(load_settings, ComputerSettings, **chosen))
    problems = [*wrong_endpoints(os.environ), *(problem for each in refused for problem in each.problems)]
    if problems or configuration is None or gateway is None or registry is None or computer is None:
        raise SettingsError(
            *dict.fromkeys(problems), warnings=[warning for each in refused for warning in each.warnings]
        )
    return UpSettings(registry, gateway, computer, configuration)


def with_key(settings: UpSettings, directory: Path) -> UpSettings:
    """The settings with a key that is made for this run, unless they say who may connect, or let everybody in."""
    if settings.gateway.auth_configured or settings.gateway.insecure:
        return settings
    path = directory / KEYS
    path.unlink(missing_ok=True)  # the key of an earlier run is worth nothing
    key, entry = api_keys.new_key(subject="smcp up", offices=["*"], roles=["agent", "computer"], names=["*"])
    api_keys.add(path, entry)
    hosts = settings.gateway.allowed_hosts or "localhost"  # nobody has given this run another name
    return replace(
        settings, gateway=settings.gateway.model_copy(update={"auth_keys": path, "allowed_hosts": hosts}), key=key
    )


def _audit_default() -> str | None:
    """It is on unless the environment says something."""
    return None if os.environ.get("SMCP_AUDIT") else "on"


def _read(refused: list[SettingsError], read: Callable[[], T]) -> T | None:
    try:
        return read()
    except SettingsError as error:
        refused.append(error)
        return None


def _configuration(path: Path) -> ComputerConfig:
    try:
        return load_config(path)
    except ConfigError as error:
        told, doubts = ([f"--config: {each}" for each in said] for said in (error.problems, error.warnings))
        raise SettingsError(*told, warnings=doubts) from None


def _gateway_settings(options: UpOptions) -> GatewaySettings:
    gateway = load_settings(
        GatewaySettings, gateway_port=options.port, insecure=options.insecure, audit=_audit_default()
    )
    check_auth(gateway, "SMCP_GATEWAY_HOST", gateway.gateway_host)
    return gateway


def read_variables() -> frozenset[str]:
    return (variables(RegistrySettings) | variables(GatewaySettings) | variables(ComputerSettings)) - OPTIONS.keys()


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


def _sample() -> dict[str, Any]:
    """A configuration with `mcp-server-time`, or without servers where there is no uvx."""
    uvx = find_command("uvx")
    return {"servers": {} if uvx is None else {"time": uvx_server(uvx, "mcp-server-time")}}


REGISTRY: Final = "up-registry"
GATEWAY: Final = "up-gateway"
COMPUTER: Final = "up-computer"
OPERATOR: Final = "up-operator"
"""The credentials of the parts in this process."""
_OWN: Final = frozenset({REGISTRY, GATEWAY, COMPUTER, OPERATOR})

_log = logging.getLogger("smcp_standalone.app")


@dataclass(frozen=True, slots=True)
class System:
    url: str
    """Where Agents connect."""
    office: str
    computer: str
    nats: NatsServer
    servers: tuple[str, ...]
    """The MCP servers that the Computer runs, by name."""
    failed: Mapping[str, str]
    """Those of them that did not start, and why."""
    confirmation: str
    """What becomes of tool calls, and why."""
    warnings: tuple[str, ...]
    """About the MCP servers' configuration: tools that they do not have."""


@contextmanager
def up_directory(options: UpOptions) -> Iterator[Path]:
    """The directory of this run: `options.data`, held by this process alone, or a temporary one."""
    if options.data is None:
        with tempfile.TemporaryDirectory(prefix="smcp-up-", ignore_cleanup_errors=True) as directory:
            yield Path(directory)
        return
    try:
        options.data.mkdir(parents=True, exist_ok=True)
        lock = (options.data / "lock").open("w")
    except OSError as error:
        raise Failure(f"--data: {options.data} cannot be used: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Failure(f"--data: another smcp up runs in {options.data}") from error
        yield options.data


def up_model(options: UpOptions) -> NatsModel:
    """The permissions of this run's nats-server: for its own parts and the hosts that `--hosts` names."""
    model = NatsModel(offices=[options.office], registries=[], gateways=[], listen="127.0.0.1:-1")
    if options.hosts is not None:
        model = read_model(options.hosts)
    given = [*model.registries, *model.gateways, *model.operators, *(host.credential for host in model.computers)]
    if taken := [name for name in given if name.casefold() in _OWN]:
        raise NatsConfigError(
            *(f"{options.hosts}: {name!r} is a credential of smcp up itself: choose another name" for name in taken)
        )
    local = {"credential": COMPUTER, "office": options.office, "names": [options.name]}
    return model_of(
        {
            **model.model_dump(),
            "offices": list(dict.fromkeys([options.office, *model.offices])),
            "registries": [REGISTRY, *model.registries],
            "gateways": [GATEWAY, *model.gateways],
            "operators": [OPERATOR, *model.operators],
            "computers": [local, *(host.model_dump() for host in model.computers)],
        }
    )


@asynccontextmanager
async def open_system(
    options: UpOptions, settings: UpSettings, directory: Path, environ: Mapping[str, str] = os.environ
) -> AsyncIterator[System]:
    """Run everything while the body runs; leaving it drains the Computer first and stops nats-server last.

    Args:
        environ: what the placeholders of the Computer's configuration are taken from.

    Raises `Failure` where a part did not start; or, in the body, where nats-server ended by itself.
    """
    async with open_nats_server(up_model(options), directory / "nats") as nats, background() as tasks:
        tasks.start(nats.wait_for_end(), name="nats-server")
        ready = Readiness()
        async with (
            AsyncExitStack() as stack,
            _connected(nats, REGISTRY, settings.registry) as registry_bus,
            open_trail(registry_app.EVENTS, settings.registry, registry_bus) as registry_trail,
            registry_app.open_registry(settings.registry, registry_bus, trail=registry_trail),
            _connected(nats, GATEWAY, settings.gateway) as gateway_bus,
            _http_server(settings.gateway, computer=ready) as front,
            serve_log_level(gateway_bus, "smcp up", LEVEL),
            open_trail(
                gateway_app.EVENTS,
                settings.gateway,
                gateway_bus,
                front.metrics,
                content=settings.gateway.audit_arguments,
            ) as trail,
            gateway_app.open_gateway(settings.gateway, gateway_bus, front=front, trail=trail) as gateway,
            _connected(nats, COMPUTER, settings.computer) as computer_bus,
            open_approvals(settings.computer, computer_bus) as computer_trail,
        ):
            if settings.key is not None:
                unshared = "the key file could not be written, so set SMCP_TOKEN for smcp-agent"
                _share(stack, shared_key(gateway.url, settings.key), unshared)
            access = advertise_run(nats.url, nats.credentials[OPERATOR], gateway.url)
            _share(stack, access, "smcp audit will not find this run by itself")
            terminal = stack.enter_context(open_terminal())
            asker = None if terminal is None else AtTerminal(terminal)
            front.stats.add("gateway", gateway.held)
            async with (
                open_computer(
                    settings.computer,
                    computer_bus,
                    config=settings.configuration,
                    environ=environ,
                    readiness=ready,
                    asker=asker,
                    terminal=terminal,
                    trail=computer_trail,
                ) as computer,
                open_control(settings.computer, computer),
            ):
                front.stats.add("computer", computer.calls.held)
                front.stats.add("updates", computer.outbox.held)
                gateway.readiness.note("configuration", lambda: computer.config_problem)
                gateway.readiness.note("pins", lambda: computer.pins.problem)
                computer.follow_file()
                await computer.wait_ready()
                yield System(
                    url=gateway.url,
                    office=options.office,
                    computer=options.name,
                    nats=nats,
                    servers=tuple(computer.fleet.supervisors),
                    failed={name: each.reason for name, each in computer.fleet.supervisors.items() if not each.ready},
                    confirmation=computer.confirmation.policy,
                    warnings=tuple(
                        f"{each.name}: {warning}"
                        for each in computer.fleet.statuses(usage=False)
                        for warning in (*each.warnings, *computer.pins.warnings(each.name))
                    ),
                )


def _share(stack: AsyncExitStack, file: AbstractContextManager[None], otherwise: str) -> None:
    """Leave a file for other commands while the system runs. One that cannot be written is no reason to end."""
    try:
        stack.enter_context(file)
    except OSError as error:
        _log.warning("%s: %s", otherwise, error.strerror)


@asynccontextmanager
async def _http_server(settings: GatewaySettings, *, computer: Readiness) -> AsyncIterator[HttpServer]:
    """The gateway's, which is ready when the Computer is, too: from the first request on, before there is one."""
    async with open_http_server(settings) as front:
        front.readiness.add("computer", lambda: "not ready" if computer.problems() else None)
        _log.info("metrics are at %s/metrics", front.health.url)
        yield front


@asynccontextmanager
async def _connected(nats: NatsServer, credential: str, settings: ServiceSettings) -> AsyncIterator[NatsBus]:
    config = BusConfig(
        url=nats.url,
        credentials=load_credentials(nats.credentials[credential]),
        max_payload=settings.max_payload,
        name=credential,
        drain_timeout=settings.drain_s,
    )
    async with AsyncExitStack() as stack:
        try:
            bus = await stack.enter_async_context(open_bus(config))
        except BusError as error:
            raise Failure(f"the embedded nats-server: {error}") from error
        yield bus
