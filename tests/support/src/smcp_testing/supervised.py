"""A supervised MCP server, called as a Computer does."""

import asyncio
import json
from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from smcp_computer.config.file import ComputerConfig, parse_config
from smcp_computer.config.inputs import InputResolver
from smcp_computer.mcp.fleet import Fleet
from smcp_computer.mcp.supervisor import Supervisor
from smcp_computer.mcp.transports import Limits
from smcp_service.lifecycle import background
from smcp_testing.waiting import eventually


def running(
    *,
    limits: Limits | None = None,
    environ: dict[str, str] | None = None,
    ready: Collection[str] | None = None,
    **servers: dict[str, Any],
) -> AbstractAsyncContextManager[dict[str, Supervisor]]:
    """See `running_all`."""
    return running_all(parse_config(json.dumps({"servers": servers})), limits=limits, environ=environ, ready=ready)


@asynccontextmanager
async def running_all(
    config: ComputerConfig,
    *,
    limits: Limits | None = None,
    environ: dict[str, str] | None = None,
    ready: Collection[str] | None = None,
) -> AsyncIterator[dict[str, Supervisor]]:
    """The servers of a configuration, by name. All are ready, or those of `ready`; the others are ready or have failed.

    A start that fails on a busy machine is tried again, as in a Computer.
    """
    fleet = Fleet(
        config,
        InputResolver(config.inputs, environ or {}),
        limits=limits or Limits(),
        on_change=lambda: None,
    )
    async with background() as tasks:
        task = tasks.start(fleet.run(), name="fleet")
        await asyncio.wait_for(fleet.wait_settled(), 35)
        wanted = fleet.supervisors if ready is None else ready
        try:
            await eventually(lambda: all(fleet.supervisors[name].ready for name in wanted))
            yield dict(fleet.supervisors)
        finally:
            fleet.stop()
            await asyncio.wait_for(task, 15)


async def call(supervisor: Supervisor, tool: str, timeout: float = 20.0, **arguments: Any) -> dict[str, Any]:
    return await supervisor.call(tool, arguments, timeout=timeout)


def text(result: dict[str, Any]) -> str:
    found: str = result["content"][0]["text"]
    return found


async def pid_of(supervisor: Supervisor) -> int:
    return int(text(await call(supervisor, "pid")))
