"""The tools of `toolbox`, built when this module is imported: a fork server builds them once for all servers that it
forks. Building them takes 0.1 s of processor time."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult, TextContent, ToolAnnotations

_Function = TypeVar("_Function", bound=Callable[..., Any])

TOOLS: Final[list[Tool]] = []
_logs: Final[list[Path]] = []


def log_to(file: Path) -> None:
    """Each call of `append`, and each start and cancel of `sleep`, is a line of this file from now on."""
    _logs.append(file)


def _write(line: str) -> None:
    for log in _logs:
        with log.open("a") as file:
            file.write(line + "\n")


def _tool(**options: Any) -> Callable[[_Function], _Function]:
    def added(function: _Function) -> _Function:
        TOOLS.append(Tool.from_function(function, **options))
        return function

    return added


@_tool()
def echo(text: str) -> str:
    """Give the text back."""
    return text


@_tool(annotations=ToolAnnotations(read_only_hint=True, title="Adder"), meta={"owner": "math", "levels": [1]})
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@_tool()
async def sleep(seconds: float, mark: str = "", until: str = "") -> str:
    """Wait, at most until that file is there; a cancel is written to the log."""
    _write(f"sleep {mark}")
    try:
        with anyio.move_on_after(seconds):
            while not (until and await anyio.Path(until).exists()):  # noqa: ASYNC110 -- another process makes it
                await anyio.sleep(0.05 if until else seconds)
    except anyio.get_cancelled_exc_class():
        _write(f"cancelled {mark}")
        raise
    return f"slept {seconds}"


@_tool()
async def block(seconds: float) -> str:
    """Hold up the whole server: nothing is read or answered meanwhile."""
    time.sleep(seconds)  # noqa: ASYNC251 -- it is to hold the loop; the SDK runs other than async tools in threads
    return "back"


@_tool()
def fail(message: str = "it failed") -> str:
    """Raise."""
    raise RuntimeError(message)


@_tool()
def die() -> str:
    """End the process in the middle of the call."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


@_tool(structured_output=False)
def big(size: int) -> str:
    """A text of `size` bytes."""
    return "x" * size


@_tool()
def append(mark: str) -> str:
    """Write a line to the log."""
    _write(mark)
    return mark


@_tool()
def pid() -> int:
    """The server's process id."""
    return os.getpid()


@_tool()
def spawn() -> int:
    """Start a grandchild that does not end by itself; gives its process id."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdin=subprocess.DEVNULL)
    return child.pid


@_tool()
def given(variable: str) -> str | None:
    """An environment variable of the server."""
    return os.environ.get(variable)


@_tool()
def keys(value: dict[str, Any]) -> dict[str, Any]:
    """The object as it arrived."""
    return value


@_tool()
def with_meta() -> CallToolResult:
    """A result with metadata of its own."""
    return CallToolResult(content=[TextContent(type="text", text="hi")], _meta={"mine": 1, "a2c_timeout": True})


@_tool()
async def trace(ctx: Context[Any, Any]) -> str | None:
    """The `traceparent` that came with the call."""
    meta = ctx.request_context.meta or {}
    found = meta.get("traceparent")
    return found if isinstance(found, str) else None


@_tool()
async def progress(steps: int, ctx: Context[Any, Any], until: str = "") -> str:
    """Report progress while it runs, and end when the file `until` is there."""
    for step in range(steps):
        await ctx.report_progress(step, steps)
    while until and not Path(until).exists():  # noqa: ASYNC110 -- of another process
        await anyio.sleep(0.01)
    return "done"


def extra() -> str:
    """A tool that comes and goes."""
    return "extra"


@_tool()
async def add_tool(name: str, ctx: Context[Any, Any]) -> str:
    """List one more tool from now on, and tell so."""
    ctx.mcp_server.add_tool(extra, name=name)
    await _tell(ctx)
    return name


@_tool()
async def remove_tool(name: str, ctx: Context[Any, Any]) -> str:
    """List a tool no more, and tell so."""
    ctx.mcp_server.remove_tool(name)
    await _tell(ctx)
    return name


async def _tell(ctx: Context[Any, Any]) -> None:
    await ctx.notify_tools_changed()
    if not (ctx.protocol_version or "").startswith("2026"):
        await ctx.session.send_tool_list_changed()
