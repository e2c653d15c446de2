"""The MCP servers of this host: their processes, their sessions, and who keeps them running.

MCP 2025 means here the versions of MCP up to 2025-11-25, which begin with a handshake; MCP 2026 means 2026-07-28.

Before anything else imports the MCP SDK, its client is imported here without its server. The client imports that to run
one in the same process in tests, and with it uvicorn, starlette and cryptography: 20 MB of each Computer's memory.
Empty modules stand for those of the server while `mcp` is imported. Afterwards they are gone, and `import mcp.server`
gives the real one. It depends on what 2.3 imports (hence `mcp<2.4`).

The models of each version of the protocol are built when one is used, which most never are: 3 MB less.
"""

import sys
from types import ModuleType

import mcp_types  # noqa: F401 -- its own models, of which it builds validators at once, before those of versions
from pydantic import BaseModel


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def _import_client() -> None:
    names = [f"mcp.server{name}" for name in ("", ".mcpserver", ".runner", ".session", ".stdio")]
    sys.modules.update({name: _StandIn(name) for name in names})
    BaseModel.model_config["defer_build"] = True
    try:
        import mcp_types.methods  # noqa: F401, PLC0415

        del BaseModel.model_config["defer_build"]
        import mcp.client  # noqa: F401, PLC0415
    finally:
        for name in names:
            del sys.modules[name]


if "mcp" not in sys.modules:
    _import_client()
