"""The MCP servers of this host: their processes, their sessions, and who keeps them running.

MCP 2025 means here the versions of MCP up to 2025-11-25, which begin with a handshake; MCP 2026 means 2026-07-28.

Before anything else imports the MCP SDK, its client is imported here without its server. The client imports the server,
which tests may run in the same process, and with it uvicorn, starlette and cryptography: 20 MB of each Computer's
memory. It depends on what 2.3 imports (hence `mcp<2.4`).

The models of each version of the protocol are built when one is used, which most never are: 3 MB less.
"""

import sys

import mcp_types  # its own models, of which it builds validators at once, before those of versions
from pydantic import BaseModel

from smcp_service.console_script import import_without

if "mcp" not in sys.modules:
    BaseModel.model_config["defer_build"] = True
    import mcp_types.methods  # noqa: F401

    del BaseModel.model_config["defer_build"]
    import_without("mcp.client", *(f"mcp.server{name}" for name in ("", ".mcpserver", ".runner", ".session", ".stdio")))
