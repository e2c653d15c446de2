"""The MCP servers of this host: their processes, their sessions, and who keeps them running.

Before anything else imports the MCP SDK, its client is imported here without its server. The client imports that to run
one in the same process in tests, and with it uvicorn, starlette and cryptography: 20 MB of each Computer's memory.
Empty modules stand for those of the server while `mcp` is imported. Afterwards they are gone, and `import mcp.server`
gives the real one. It depends on what 2.3 imports (hence `mcp<2.4`).
"""

import sys
from types import ModuleType
from typing import NoReturn


class _LeftOut:
    def __init__(self, *_: object, **__: object) -> NoReturn:
        raise RuntimeError("the server of the MCP SDK was left out: import it from mcp.server")


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return _LeftOut


def _import_client() -> None:
    names = [f"mcp.server{name}" for name in ("", ".mcpserver", ".runner", ".session", ".stdio")]
    sys.modules.update({name: _StandIn(name) for name in names})
    try:
        import mcp.client  # noqa: F401, PLC0415
    finally:
        for name in names:
            del sys.modules[name]


if "mcp" not in sys.modules:
    _import_client()
