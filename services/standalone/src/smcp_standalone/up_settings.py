"""What `smcp up` is told: by its command line, and by the environment for each of its parts."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from smcp_computer.config.file import ComputerConfig, load_config
from smcp_computer.config.lint import ConfigError
from smcp_computer.settings import ComputerSettings
from smcp_gateway.auth.settings import check_auth
from smcp_gateway.settings import GatewaySettings
from smcp_registry.settings import RegistrySettings
from smcp_service.otel_variables import wrong_endpoints
from smcp_service.settings import SettingsError, load_settings, variables
from smcp_standalone.sample_config import find_uvx, sample

SAMPLE: Final = "computer.json"
"""The configuration in the directory of a run to which none was given."""
_ALONE: Final = "smcp-registry, smcp-gateway and smcp-computer, since `smcp up` runs a nats-server of its own"
OPTIONS: Final[Mapping[str, str]] = {
    "SMCP_CONFIG": "--config",
    "SMCP_OFFICE": "--office",
    "SMCP_NAME": "--name",
    "SMCP_HEALTH_HOST": "SMCP_GATEWAY_HOST, where /livez is answered, too",
    "SMCP_HEALTH_PORT": "--port, where /livez is answered, too",
    "SMCP_NATS_URL": _ALONE,
    "SMCP_NATS_CREDS": _ALONE,
    "SMCP_NATS_CA": _ALONE,
    "SMCP_GATEWAY_URL": "smcp-computer, since the Computer of `smcp up` needs no gateway",
}
"""What its parts read from the environment where they run alone, and what is to be used instead."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What the command line of `smcp up` says."""

    office: str
    name: str
    port: int | None = None
    """The gateway's; 0 any free one, None as `SMCP_GATEWAY_PORT` says."""
    config: Path | None = None
    """The Computer's; None runs the sample."""
    data: Path | None = None
    """Where rooms and credentials are kept; None forgets them at the end."""
    hosts: Path | None = None
    """Who may connect from elsewhere, as for `smcp nats-config`."""
    insecure: bool | None = None
    """Whether anybody may connect from elsewhere; None as `SMCP_INSECURE` says."""


@dataclass(frozen=True, slots=True)
class UpSettings:
    """The settings of each part, read before anything starts."""

    registry: RegistrySettings
    gateway: GatewaySettings
    computer: ComputerSettings
    configuration: ComputerConfig


def without_data(options: UpOptions) -> UpOptions:
    """The same for a run that leaves no trace: the configuration in `options.data` counts, nothing is written there."""
    kept = None if options.data is None else options.data / SAMPLE
    config = kept if options.config is None and kept is not None and kept.exists() else options.config
    return replace(options, data=None, config=config)


def load_up_settings(options: UpOptions, directory: Path) -> UpSettings:
    """Read the environment and the options, and write the sample configuration where there is none.

    Raises:
        SettingsError: a variable, an option or the Computer's configuration is wrong.
    """
    config = options.config
    if config is None:
        config = directory / SAMPLE
        if not config.exists():
            config.write_text(json.dumps(sample(find_uvx()), indent=2), encoding="utf-8")
    problems = list(wrong_endpoints(os.environ))
    configuration = _read(problems, partial(_configuration, config))
    gateway = _read(problems, partial(_gateway_settings, options))
    registry = _read(problems, partial(load_settings, RegistrySettings))
    chosen = {"config": config, "office": options.office, "name": options.name}
    computer = _read(problems, partial(load_settings, ComputerSettings, **chosen))
    if problems or configuration is None or gateway is None or registry is None or computer is None:
        raise SettingsError(*dict.fromkeys(problems))
    return UpSettings(registry, gateway, computer, configuration)


def _read(problems: list[str], read: Callable[[], T]) -> T | None:
    """What was read; None: something is wrong with it, which is among the problems now."""
    try:
        return read()
    except SettingsError as error:
        problems += error.problems
        return None


def _configuration(path: Path) -> ComputerConfig:
    try:
        return load_config(path)
    except ConfigError as error:
        raise SettingsError(*(f"--config: {problem}" for problem in error.problems)) from None


def _gateway_settings(options: UpOptions) -> GatewaySettings:
    gateway = load_settings(GatewaySettings, gateway_port=options.port, insecure=options.insecure)
    check_auth(gateway, gateway.gateway_host)
    return gateway


def read_variables() -> frozenset[str]:
    """The variables that `smcp up` reads."""
    return (variables(RegistrySettings) | variables(GatewaySettings) | variables(ComputerSettings)) - OPTIONS.keys()
