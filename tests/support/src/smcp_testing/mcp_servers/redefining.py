"""An MCP server whose tools are what a file says at the time, over stdio.

    python -m smcp_testing.mcp_servers.redefining --era 2025|2026 --tools FILE [--log FILE]

The file is a JSON array of tools as in `tools/list`. A call of `announce`, which need not be listed, tells the client
that the list changed. With `--log` each call of another tool is a line of that file.
"""

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged


class Redefining:
    def __init__(self, tools: Path, log: Path | None) -> None:
        self._tools = tools
        self._log = log
        self._bus = InMemorySubscriptionBus()
        self.server: Server[Any] = Server("redefining", version="1", on_list_tools=self._list, on_call_tool=self._call)

    async def _list(self, ctx: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult.model_validate({"tools": json.loads(self._tools.read_text())})

    async def _call(self, ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        if params.name != "announce":
            if self._log is not None:
                with self._log.open("a") as file:
                    file.write(f"{params.name}\n")
        elif ctx.protocol_version.startswith("2026"):
            await self._bus.publish(ToolsListChanged())
        else:
            await ctx.session.send_tool_list_changed()
        return types.CallToolResult(content=[types.TextContent(type="text", text='"done"')])

    async def serve(self, era: str) -> None:
        options = self.server.create_initialization_options(NotificationOptions(tools_changed=True))
        async with stdio_server() as (read, write):
            if era == "2025":
                await serve_loop(self.server, read, write, lifespan_state={}, init_options=options)
            else:
                self.server.add_request_handler(
                    "subscriptions/listen", types.SubscriptionsListenRequestParams, ListenHandler(self._bus)
                )
                await self.server.run(read, write, options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--era", choices=["2025", "2026"], required=True)
    parser.add_argument("--tools", type=Path, required=True)
    parser.add_argument("--log", type=Path)
    chosen = parser.parse_args()
    asyncio.run(Redefining(chosen.tools, chosen.log).serve(chosen.era))
