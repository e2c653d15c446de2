"""What the Computer of `smcp up` runs where the user has no configuration yet."""

import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_PASSED_ON = ("SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
"""What `uvx` needs of this environment to fetch a server, beside its own `UV_*`; MCP servers inherit nothing."""


def find_uvx() -> str | None:
    """The uvx of this environment, or the first in PATH; None where there is none."""
    beside = Path(sys.executable).parent / "uvx"
    return str(beside) if beside.is_file() else shutil.which("uvx")


def uvx_server(uvx: str, package: str, *arguments: str) -> dict[str, Any]:
    """The configuration of an MCP server from PyPI, run in an environment of its own."""
    passed_on = {name: f"${{env:{name}}}" for name in _present(os.environ)}
    parameters = {"command": uvx, "args": [package, *arguments], "env": passed_on or None}
    return {"type": "stdio", "server_parameters": parameters}


def sample(uvx: str | None) -> dict[str, Any]:
    """A configuration with `mcp-server-time`, or without servers where there is no uvx."""
    return {"servers": {} if uvx is None else {"time": uvx_server(uvx, "mcp-server-time")}}


def _present(environ: Mapping[str, str]) -> Iterable[str]:
    return sorted(name for name in environ if name.upper() in _PASSED_ON or name.startswith("UV_"))
