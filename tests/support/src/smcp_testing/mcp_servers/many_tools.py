"""An MCP server with many tools of like names, over stdio.

    python -m smcp_testing.mcp_servers.many_tools [--tools N]

`<verb>_<noun>_<number>` gives its own name and its arguments back.
"""

import argparse
import asyncio
import json
from itertools import islice, product
from typing import Any, Final

import mcp_types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server

VERBS: Final = ("archive", "copy", "create", "delete", "export", "import", "list", "merge", "read", "rename")
NOUNS: Final = ("branch", "calendar", "comment", "document", "invoice", "issue", "mailbox", "page", "row", "sheet")


def _tools(count: int) -> list[types.Tool]:
    schema = {
        "type": "object",
        "properties": {
            "id": {"type": "string", "description": "The identifier, as a list of them gives it."},
            "dry_run": {"type": "boolean", "description": "Say what would be done, and do nothing."},
        },
        "required": ["id"],
    }
    return [
        types.Tool(
            name=f"{verb}_{noun}_{number}",
            description=f"The tool to {verb} one {noun} of tenant number {number}, with all that belongs to it.",
            input_schema=schema,
        )
        for number, verb, noun in islice(product(range(count), VERBS, NOUNS), count)
    ]


async def _serve(count: int) -> None:
    tools = _tools(count)

    async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=tools)

    async def call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        given = {"tool": params.name, "arguments": params.arguments}
        text = types.TextContent(type="text", text=json.dumps(given))
        return types.CallToolResult(content=[text], structured_content=given)

    server: Server[Any] = Server("many-tools", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", type=int, default=1000)
    asyncio.run(_serve(parser.parse_args().tools))


if __name__ == "__main__":
    main()
