"""A native Computer beside a `gateway_world`: ours, with real MCP servers, on a bus that may be bad."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from smcp_computer.app import open_computer
from smcp_computer.computer import Computer
from smcp_computer.config.file import parse_config
from smcp_computer.settings import ComputerSettings
from smcp_computer.terminal import Terminal
from smcp_testing.gateway_world import World
from smcp_testing.waiting import eventually

START_S = 60.0


@asynccontextmanager
async def native_computer(
    world: World,
    office: str,
    name: str,
    servers: dict[str, Any],
    *,
    lease_s: float = 10.0,
    terminal: Terminal | None = None,
    **settings: Any,
) -> AsyncIterator[Computer]:
    """It is in its office, and its MCP servers are there. It keeps nothing for another one of its name, unless they
    share a `state_dir`."""
    config = parse_config(json.dumps({"servers": servers}))
    credentials = await world.host(office, name)
    with TemporaryDirectory(prefix="smcp-state-") as state:
        given = ComputerSettings(
            nats_url=world.nats_url,
            config=Path("unused"),
            office=office,
            name=name,
            drain_s=1.0,
            lease_s=lease_s,
            **{"state_dir": Path(state), **settings},
        )
        async with (
            world.bus(name, credentials=credentials) as bus,
            open_computer(given, bus, config=config, environ={}, terminal=terminal) as computer,
        ):
            await asyncio.wait_for(computer.wait_ready(), START_S)
            # it is ready, too, when the first start of a server has failed: on a busy machine it may be too slow
            enabled = [each for name, each in computer.fleet.supervisors.items() if not servers[name].get("disabled")]
            await eventually(lambda: all(each.ready for each in enabled), timeout=START_S)
            yield computer
