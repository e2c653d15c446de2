"""A window of a server made with the MCP SDK announces its changes, inside and outside of a request."""

import sys
from pathlib import Path

import pytest

from smcp_testing.computer_office import world
from smcp_testing.waiting import eventually

WINDOW = "window://com.example.clock/now"
SERVER = f"""
import asyncio
from contextlib import asynccontextmanager

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.subscriptions import InMemorySubscriptionBus, ResourceUpdated

bus = InMemorySubscriptionBus()
note = "nothing"


@asynccontextmanager
async def tick(server):
    async def ticking():
        while await asyncio.sleep(PAUSE, True):
            await bus.publish(ResourceUpdated(uri="{WINDOW}"))

    task = asyncio.create_task(ticking())
    yield
    task.cancel()


server = MCPServer("clock", lifespan=tick, subscriptions=bus)


@server.resource("{WINDOW}")
def now() -> str:
    return note


@server.tool()
async def remember(text: str, ctx: Context) -> str:
    global note
    note = text
    await ctx.notify_resource_updated("{WINDOW}")
    return "shown"


server.run()
"""


@pytest.mark.parametrize("inside", [True, False])
async def test_a_window_announces_a_change_inside_and_outside_of_a_request(
    nats_url: str, tmp_path: Path, inside: bool
) -> None:
    program = tmp_path / "clock.py"
    program.write_text(SERVER.replace("PAUSE", "600" if inside else "0.3"))
    parameters = {"command": sys.executable, "args": [str(program)]}
    async with world(nats_url, clock={"type": "stdio", "server_parameters": parameters}) as here:
        assert (await here.ask("get_desktop"))["desktops"] == [f"{WINDOW}\n\nnothing"]
        # a change before that reaches nobody
        await eventually(lambda: here.computer.resources.subscriptions.subscribed("clock") == {WINDOW}, timeout=30)
        before = len(here.told("update_desktop"))
        if inside:
            await here.call("remember", text="water the plants")
        await eventually(lambda: len(here.told("update_desktop")) > before, timeout=30)
        if inside:
            assert (await here.ask("get_desktop"))["desktops"] == [f"{WINDOW}\n\nwater the plants"]
