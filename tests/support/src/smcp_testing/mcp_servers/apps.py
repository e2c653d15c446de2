"""An MCP server with a tool that has a page to be shown (MCP Apps), and all that a tool may say of itself.

python -m smcp_testing.mcp_servers.apps
"""

from typing import Annotated, Final

from mcp.server.apps import Apps, ResourceCsp
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult, Icon, TextContent, ToolAnnotations
from pydantic import BaseModel

PAGE: Final = "ui://clock/face.html"
PIXEL: Final = Icon(src="data:image/png;base64,iVBORw0KGgo=", mime_type="image/png", sizes=["16x16"], theme="dark")


class Time(BaseModel):
    zone: str
    hour: int


apps = Apps()


@apps.tool(
    resource_uri=PAGE,
    visibility=["model", "app"],
    meta={"owner": "clocks", "levels": [1, {"deep": None}]},
    title="Show the time",
    description="The time in a zone.",
    annotations=ToolAnnotations(title="Clock", read_only_hint=True, destructive_hint=False, open_world_hint=False),
    icons=[PIXEL],
)
def show_time(zone: str) -> Annotated[CallToolResult, Time]:
    return CallToolResult(
        content=[TextContent(type="text", text=f"12:00 in {zone}")],
        structured_content={"zone": zone, "hour": 12},
        _meta={"ui": {"theme": "dark"}},
    )


apps.add_html_resource(
    PAGE,
    "<!doctype html><title>clock</title>",
    title="The face of the clock",
    description="Shows the time.",
    csp=ResourceCsp(connect_domains=["https://time.example"]),
    prefers_border=True,
)
server = MCPServer("apps", extensions=[apps])

if __name__ == "__main__":
    server.run("stdio")
