"""Native Computers, a few to a process: ours, each with a credential and an MCP server of its own."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop

from smcp_bus.nats.bus import open_bus
from smcp_bus.nats.config import BusConfig, load_credentials
from smcp_computer.app import open_computer
from smcp_computer.config.file import ComputerConfig, parse_config
from smcp_computer.settings import ComputerSettings
from tests.e2e.restarts.orders import Work, config, follow
from tests.e2e.restarts.together import idle


@asynccontextmanager
async def computers(told: dict[str, Any]) -> AsyncIterator[Work]:
    async with AsyncExitStack() as stack:
        opened = []
        for member in told["members"]:
            settings = ComputerSettings(
                nats_url=told["nats_url"],
                config=Path("unused"),
                office=member["office"],
                name=member["name"],
                lease_s=told["lease_s"],
            )
            credentials = load_credentials(Path(member["credentials"]))
            bus = await stack.enter_async_context(open_bus(BusConfig(url=told["nats_url"], credentials=credentials)))
            opened.append(
                await stack.enter_async_context(
                    open_computer(settings, bus, config=_configuration(told["runs"]), environ={})
                )
            )
        for computer in opened:
            await computer.wait_ready()
        yield idle


def _configuration(runs: str) -> ComputerConfig:
    parameters = {"command": sys.executable, "args": ["-m", "tests.e2e.restarts.tool_server", runs]}
    return parse_config(json.dumps({"servers": {"work": {"type": "stdio", "server_parameters": parameters}}}))


if __name__ == "__main__":
    uvloop.run(follow(computers(config())))
