"""The whole system in one process: nats-server as a child, and a registry, a gateway and a Computer beside it.

Each of the three has its own credential and its own connection, with the permissions that it would have on a
machine of its own; so what works here works spread out.
"""

import asyncio
import fcntl
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from smcp_bus.errors import BusError
from smcp_bus.nats.bus import NatsBus, open_bus
from smcp_bus.nats.config import BusConfig, load_credentials
from smcp_computer.app import open_computer
from smcp_computer.confirmation import Confirm, terminal
from smcp_computer.core import Computer
from smcp_gateway.app import open_gateway
from smcp_registry.app import open_registry
from smcp_service.health import Readiness
from smcp_service.lifecycle import Failure, background
from smcp_service.settings import ServiceSettings
from smcp_standalone.nats_files import read_model
from smcp_standalone.nats_model import ComputerHost, NatsModel
from smcp_standalone.nats_server import NatsServer, open_nats_server
from smcp_standalone.nats_yaml import NatsConfigError
from smcp_standalone.run_directory import run_directory
from smcp_standalone.up_settings import UpOptions, UpSettings

REGISTRY: Final = "up-registry"
GATEWAY: Final = "up-gateway"
COMPUTER: Final = "up-computer"
"""The credentials of the parts in this process."""
_OWN: Final = frozenset({REGISTRY, GATEWAY, COMPUTER})
STILL_S: Final = 5.0
"""After how many seconds it is said which MCP servers are waited for."""

_log = logging.getLogger("smcp_standalone.up")


@dataclass(frozen=True, slots=True)
class System:
    """A system that runs."""

    url: str
    """Where Agents connect."""
    office: str
    computer: str
    nats: NatsServer
    servers: tuple[str, ...]
    """The MCP servers that the Computer runs, by name."""
    failed: tuple[str, ...]
    """Those of them that did not start."""
    asks: bool
    """Whether tool calls are confirmed at this terminal."""


@contextmanager
def up_directory(options: UpOptions) -> Iterator[Path]:
    """The directory of this run: `options.data`, held by this process alone, or a temporary one.

    Raises:
        Failure: another `smcp up` uses it, or it cannot be written.
    """
    if options.data is None:
        with run_directory("smcp-up-") as directory:
            yield directory
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


def with_local_parts(model: NatsModel, office: str, name: str) -> NatsModel:
    """`model`, and in it the credentials of the parts that run in this process."""
    local = ComputerHost(credential=COMPUTER, office=office, names=[name])
    return NatsModel.model_validate(
        {
            **model.model_dump(),
            "offices": list(dict.fromkeys([office, *model.offices])),
            "registries": [REGISTRY, *model.registry_credentials],
            "gateways": [GATEWAY, *model.gateway_credentials],
            "computers": [local.model_dump(), *(host.model_dump() for host in model.computers)],
        }
    )


def up_model(options: UpOptions) -> NatsModel:
    """Who may connect to this run's nats-server: its own parts, and whom `--hosts` names.

    Raises:
        NatsConfigError: the file of hosts is wrong.
    """
    if options.hosts is not None:
        model = read_model(options.hosts)
        given = [
            *model.registry_credentials,
            *model.gateway_credentials,
            *(host.credential for host in model.computers),
        ]
        if taken := [name for name in given if name.casefold() in _OWN]:
            raise NatsConfigError(
                *(f"{options.hosts}: {name!r} is a credential of smcp up itself: choose another name" for name in taken)
            )
        return with_local_parts(model, options.office, options.name)
    nobody = NatsModel(offices=[options.office], registries=[], gateways=[], listen="127.0.0.1:-1")
    return with_local_parts(nobody, options.office, options.name)


@asynccontextmanager
async def open_system(options: UpOptions, settings: UpSettings, directory: Path) -> AsyncIterator[System]:
    """Run everything while the body runs; leaving it drains the Computer first and stops nats-server last.

    Raises:
        Failure: a part did not start; or, in the body, nats-server ended by itself.
    """
    async with (
        open_nats_server(up_model(options), directory / "nats") as nats,
        background() as tasks,
    ):
        tasks.start(nats.wait_for_end(), name="nats-server")
        async with (
            _connected(nats, REGISTRY, settings.registry) as registry_bus,
            open_registry(settings.registry, registry_bus),
            _connected(nats, GATEWAY, settings.gateway) as gateway_bus,
            open_gateway(settings.gateway, gateway_bus) as gateway,
            _connected(nats, COMPUTER, settings.computer) as computer_bus,
        ):
            ready, asker = Readiness(), terminal()
            gateway.front.stats.add("gateway", gateway.held)
            gateway.readiness.add("computer", lambda: "not ready" if ready.problems() else None)
            async with open_computer(
                settings.computer, computer_bus, config=settings.configuration, readiness=ready, asker=asker
            ) as computer:
                gateway.front.stats.add("computer", computer.calls.held)
                gateway.front.stats.add("updates", computer.announcer.held)
                await _ready(computer)
                yield System(
                    url=gateway.url,
                    office=options.office,
                    computer=options.name,
                    nats=nats,
                    servers=tuple(computer.fleet.supervisors),
                    failed=tuple(name for name, server in computer.fleet.supervisors.items() if not server.ready),
                    asks=settings.computer.confirm in (Confirm.ASK, None) and asker is not None,
                )


async def _ready(computer: Computer) -> None:
    """Wait until it is ready; say once which of its MCP servers take long."""

    def say() -> None:
        if computer.fleet.starting:
            _log.info("still waiting for: %s", ", ".join(computer.fleet.starting))

    later = asyncio.get_running_loop().call_later(STILL_S, say)
    try:
        await computer.wait_ready()
    finally:
        later.cancel()


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
