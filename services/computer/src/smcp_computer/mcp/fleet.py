"""All MCP servers of the Computer: started side by side, stopped side by side."""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from smcp_computer.config.inputs import InputResolver
from smcp_computer.mcp.events import ServerEvents
from smcp_computer.mcp.supervisor import Limits, Supervisor
from smcp_proto.schemas.config import MCPServerConfig


class Fleet:
    """Args:
    servers: the configurations; those that are disabled are left out.
    on_change: called whenever the tools that can be called may have changed.

    Attributes:
        events: what happens at the servers.
    """

    def __init__(
        self,
        servers: Iterable[MCPServerConfig],
        inputs: InputResolver,
        *,
        limits: Limits,
        on_change: Callable[[], None],
    ) -> None:
        self.events = ServerEvents()
        self.supervisors: Mapping[str, Supervisor] = {
            config.name: Supervisor(config, inputs, limits=limits, on_change=on_change, events=self.events)
            for config in servers
            if not config.disabled
        }

    @property
    def settled(self) -> bool:
        """Whether each server is ready or has failed its first start."""
        return not self.starting

    @property
    def starting(self) -> list[str]:
        """The names of the servers that are neither."""
        return [name for name, supervisor in self.supervisors.items() if not supervisor.settled.is_set()]

    async def wait_settled(self) -> None:
        """Return when each server is ready or has failed its first start."""
        for supervisor in self.supervisors.values():
            await supervisor.settled.wait()

    def stop(self) -> None:
        """Make `run` end once every server has been stopped."""
        for supervisor in self.supervisors.values():
            supervisor.stop()

    async def run(self) -> None:
        """Keep all servers running until `stop`."""
        async with asyncio.TaskGroup() as owners:
            for name, supervisor in self.supervisors.items():
                owners.create_task(supervisor.run(), name=f"mcp:{name}")
