"""The services on a real nats-server, so that each can be ended and begun again: the gateway as a process."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from smcp_bus.nats.bus import Bus, BusConfig, open_bus
from smcp_computer.app import open_computer
from smcp_computer.settings import ComputerSettings, Confirm
from smcp_registry.app import open_registry
from smcp_registry.settings import RegistrySettings
from smcp_testing.fork_server import COMMANDS, born
from smcp_testing.mcp_servers.configs import stdio
from smcp_testing.ports import Ports
from smcp_testing.service_process import service_process
from smcp_testing.tcp_proxy import Line, open_line

LEASE_S = 2.0
START_S = 60.0
"""At a load of 12 for two processors a gateway wrote its first line after more than 30 s."""
OFFICE = "厨房"
COMPUTER = "red.1"


@dataclass(slots=True)
class System:
    """A registry runs for as long as the system does; gateways and the Computer come and go."""

    nats_url: str
    directory: Path
    log: Path = field(init=False)
    """Where the toolbox writes which tools ran."""
    lease_s: float = LEASE_S
    url: str = ""
    _port: int = field(default_factory=lambda: Ports().take())
    _gateway: AsyncExitStack | None = None
    _computer: AsyncExitStack | None = None

    def __post_init__(self) -> None:
        self.log = self.directory / "ran"

    def ran(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    async def start_gateway(self) -> None:
        """As a process of its own, on the same port each time."""
        async with AsyncExitStack() as stack:
            self.url = await stack.enter_async_context(gateway_at(self.nats_url, self._port, self.lease_s))
            self._gateway = stack.pop_all()

    async def kill_gateway(self) -> None:
        """kill -9."""
        stack, self._gateway = self._gateway, None
        if stack is not None:
            await stack.aclose()

    def line(self) -> AbstractAsyncContextManager[Line]:
        """A line to the gateway that can be cut."""
        return open_line(self._port)

    async def start_computer(self) -> None:
        config = self.directory / "computer.json"
        config.write_text(json.dumps({"servers": {"toolbox": stdio(log=self.log)}}))
        settings = ComputerSettings(
            nats_url=self.nats_url,
            lease_s=self.lease_s,
            drain_s=1,
            config=config,
            office=OFFICE,
            name=COMPUTER,
            confirm=Confirm.ALLOW,
        )
        async with AsyncExitStack() as stack:
            bus = await stack.enter_async_context(self.bus("computer"))
            computer = await stack.enter_async_context(open_computer(settings, bus))
            await computer.wait_ready()
            self._computer = stack.pop_all()

    async def stop_computer(self) -> None:
        stack, self._computer = self._computer, None
        if stack is not None:
            await stack.aclose()

    @asynccontextmanager
    async def bus(self, name: str) -> AsyncIterator[Bus]:
        async with open_bus(BusConfig(url=self.nats_url, credentials=None, name=name)) as bus:
            yield bus


@asynccontextmanager
async def gateway_at(nats_url: str, port: int = 0, lease_s: float = LEASE_S) -> AsyncIterator[str]:
    """A gateway as a process of its own; gives its URL."""
    environment = {
        "SMCP_NATS_URL": nats_url,
        "SMCP_LEASE_S": str(lease_s),
        "SMCP_GATEWAY_PORT": str(port),
        "SMCP_LOG_FORMAT": "json",
    }
    command = born(Path(sys.executable).with_name("smcp-gateway"), knows=COMMANDS)
    async with service_process(*command, env=environment) as gateway:
        yield (await gateway.logged("ready", timeout=START_S))["url"]


@asynccontextmanager
async def open_system(nats_url: str, directory: Path, lease_s: float = LEASE_S) -> AsyncIterator[System]:
    system = System(nats_url, directory, lease_s)
    settings = RegistrySettings(nats_url=nats_url, lease_s=lease_s)
    async with system.bus("registry") as bus, open_registry(settings, bus):
        try:
            await system.start_gateway()
            await system.start_computer()
            yield system
        finally:
            await system.stop_computer()
            await system.kill_gateway()
