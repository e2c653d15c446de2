"""The way of one `client:tool_call` stays short enough to read: from the SDK to the MCP server and back."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from smcp_agent import SmcpAgent
from smcp_testing.computer_world import native_computer
from smcp_testing.gateway_world import gateway_world
from smcp_testing.mcp_servers.configs import stdio

ROOT: Final = Path(__file__).resolve().parents[2]
OFF_THE_WAY: Final = ("services/registry/",)
"""In the same process here, and not asked by a call."""
MOST_FILES: Final = 40
"""Two of them say what the caller may use (`smcp_computer.access`), and how much (`smcp_auth.quotas`)."""
CALLS: Final = 5
"""What is on the way of each of them counts: between two messages of one call others have their turn, too (a lease that
is renewed)."""


@contextmanager
def executed_code() -> Iterator[set[CodeType]]:
    """The code of every function of which this thread executes a line meanwhile."""
    executed: set[CodeType] = set()

    def trace(frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        if event == "line":
            executed.add(frame.f_code)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield executed
    finally:
        sys.settrace(before)


def project_file(code: CodeType) -> str | None:
    """The path of the production module that has the function; None: it is a library's, or a test's."""
    file = Path(code.co_filename)
    if not file.is_relative_to(ROOT) or "src" not in file.parts:
        return None
    path = str(file.relative_to(ROOT))
    return path if path.startswith(("libs/", "services/")) and not path.startswith(OFF_THE_WAY) else None


async def test_a_tool_call_passes_few_files(nats_url: str) -> None:
    calls: list[set[CodeType]] = []
    async with (
        gateway_world(nats_url) as world,
        native_computer(world, "kitchen", "pc", {"toolbox": stdio()}),
        SmcpAgent(world.url, office="kitchen", name="bot") as agent,
    ):
        await agent.call_tool("pc", "echo", {"text": "warm"})
        for _ in range(CALLS):
            with executed_code() as executed:
                assert (await agent.call_tool("pc", "echo", {"text": "x"})).text == "x"
            calls.append(executed)
    functions: dict[str, set[str]] = {}
    for code in set.intersection(*calls):
        if (file := project_file(code)) is not None:
            functions.setdefault(file, set()).add(code.co_qualname)
    way = "\n".join(f"{file}: {', '.join(sorted(names))}" for file, names in sorted(functions.items()))
    assert len(functions) <= MOST_FILES, f"a call passes {len(functions)} files:\n{way}"
