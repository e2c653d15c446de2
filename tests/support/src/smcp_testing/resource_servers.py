"""MCP servers with windows, supervised as a Computer does."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from smcp_computer.config.file import parse_config
from smcp_computer.config.inputs import InputResolver
from smcp_computer.mcp.events import (
    ServerEvent,
)
from smcp_computer.mcp.fleet import Fleet
from smcp_computer.mcp.resources import Resources
from smcp_computer.mcp.transports import Limits
from smcp_computer.resources.index import ResourceIndex
from smcp_computer.resources.subscriptions import Subscriptions
from smcp_service.lifecycle import background
from smcp_testing.waiting import eventually

ERAS = pytest.mark.parametrize("era", ["2025", "2026"])
WINDOW = "window://com.example.desk/0"
OTHER = "window://com.example.desk/1"


@dataclass
class Servers:
    """What runs, and what was heard of it."""

    fleet: Fleet
    index: ResourceIndex
    upstream: Subscriptions
    heard: list[ServerEvent] = field(default_factory=list)

    def resources(self, server: str = "desk") -> Resources:
        return self.index.connection(server)

    async def tell(self, tool: str, server: str = "desk", **arguments: Any) -> Any:
        """What a tool of a context server gives."""
        result = await self.fleet.supervisors[server].call(tool, arguments, timeout=30)
        assert not result.get("isError"), result
        return json.loads(result["content"][0]["text"])

    async def agreed(self, *uris: str) -> None:
        """Wait until the server `desk` tells of exactly these."""

        async def subscribed() -> bool:
            return bool(await self.tell("subscribed") == list(uris))

        await eventually(subscribed, timeout=30)

    async def heard_of(self, event: ServerEvent) -> None:
        await eventually(lambda: event in self.heard)


@asynccontextmanager
async def running(**servers: dict[str, Any]) -> AsyncIterator[Servers]:
    config = parse_config(json.dumps({"servers": servers}))
    fleet = Fleet(config, InputResolver(config.inputs, {}), limits=Limits(), on_change=lambda: None)
    async with background() as tasks:
        index = ResourceIndex(fleet.supervisors, fleet.events, tasks)
        upstream = Subscriptions(fleet.supervisors, fleet.events, tasks, lambda server: None)
        here = Servers(fleet, index, upstream)
        fleet.events.listen(here.heard.append)
        task = tasks.start(fleet.run(), name="fleet")
        await eventually(lambda: all(each.ready for each in fleet.supervisors.values()), timeout=60)
        try:
            yield here
        finally:
            fleet.stop()
            await asyncio.wait_for(task, 30)
