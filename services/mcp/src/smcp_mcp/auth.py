"""Who may use an office, and which of its tools. Without configured authentication: everybody."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from smcp_agent.llm import NamedTool
from smcp_agent.mcp.resources import Context
from smcp_mcp.settings import McpSettings
from smcp_service.settings import SettingsError


class Access:
    """Decides for each request, also for one that a peer passed on."""

    def __init__(self, settings: McpSettings) -> None:
        if settings.auth_configured:
            raise SettingsError("SMCP_AUTH_…: smcp-mcp does not know keys and tokens yet")
        self.routes: list[BaseRoute] = []
        """What is served beside `/mcp/{office}` for clients that look for the way to a token."""

    async def refusal(self, request: Request, office: str) -> Response | None:
        """The answer for a caller who may not use the office.

        Of one who may, `request.scope["user"]` is set: the MCP SDK binds a session to it, and `may` finds it in its
        context's request.
        """
        return None

    def may(self, context: Context, tool: NamedTool) -> bool:
        """Whether the caller of this MCP request may see and call the tool."""
        return True
