"""Public MCP servers of npm and PyPI, as users run them, behind one Computer."""

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from smcp_agent import CallResult, SmcpAgent, ToolProgress
from smcp_agent.errors import Malformed
from smcp_standalone.nats_server import find_command
from smcp_standalone.settings import uvx_server
from smcp_testing.waiting import OWNER_FIRST_S, eventually
from tests.e2e.actors.bystanders import undisturbed
from tests.e2e.worlds.layout import Place
from tests.e2e.worlds.world import World

ROOT: Final = Path(__file__).resolve().parents[3]
NPM: Final = ROOT / "tests" / "e2e" / "npm"
PYPI: Final = ("mcp-server-time", "mcp-server-git")
OFFICE: Final = "workshop"
NAME: Final = "bench 1"
START_S: Final = 240.0
"""In which `uvx` and `npx` have started their servers on a machine that has a lot to do."""
CALL_S: Final = 120
LEGAL: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def uvx() -> str:
    """Where uvx is: it comes with the environment. Raises AssertionError where it does not."""
    found = find_command("uvx")
    assert found is not None, "uvx belongs to the environment (make setup)"
    return found


def place(directory: Path, *, node: bool) -> Place:
    """The Computer: servers from PyPI, and with Node.js those from npm.

    Args:
        directory: what server-filesystem may see.
    """
    servers: dict[str, Any] = {
        "time": uvx_server(uvx(), "mcp-server-time"),
        "git": {
            **uvx_server(uvx(), "mcp-server-git", "--repository", str(ROOT)),
            "forbidden_tools": ["git_commit", "git_reset", "git_checkout"],
            "tool_meta": {"git_log": {"alias": "history", "tags": ["read"]}},
        },
    }
    if node:
        servers |= {
            "everything": _npx("mcp-server-everything"),
            "files": {
                **_npx("mcp-server-filesystem", str(directory)),
                "forbidden_tools": ["write_file", "remove"],
                "tool_meta": {"move_file": {"alias": "remove"}, "list_directory": {"alias": "ls"}},
            },
        }
    return Place("host-workshop", OFFICE, NAME, servers)


def _npx(package: str, *arguments: str) -> dict[str, Any]:
    return {
        "type": "stdio",
        "server_parameters": {"command": "npx", "args": ["--no", "--", package, *arguments], "cwd": str(NPM)},
    }


async def _ready(agent: SmcpAgent, *tools: str) -> None:
    """Until the Computer lists these: what it starts last is announced."""

    async def listed() -> bool:
        return set(tools) <= {tool.name for tool in await agent.tools(NAME)}

    await eventually(listed, timeout=START_S, message=f"not listed: {tools}")


def _open(world: World) -> SmcpAgent:
    return SmcpAgent(world.url(0), office=OFFICE, name="caller")


async def time_and_git_are_listed_and_called(world: World) -> None:
    async with undisturbed(world), _open(world) as agent:
        await _ready(agent, "convert_time", "history")
        when = {"source_timezone": "Asia/Shanghai", "time": "16:30", "target_timezone": "Asia/Tokyo"}
        converted = json.loads(_good(await agent.call_tool(NAME, "convert_time", when, timeout=CALL_S)).text)
        assert converted["target"]["datetime"].endswith("T17:30:00+09:00")
        log = await agent.call_tool(NAME, "history", {"repo_path": str(ROOT), "max_count": 2}, timeout=CALL_S)
        assert "Commit" in _good(log).text
        status = await agent.call_tool(NAME, "git_status", {"repo_path": str(ROOT)}, timeout=CALL_S)
        assert "branch" in _good(status).text or "HEAD" in status.text
        wrong = await agent.call_tool(NAME, "convert_time", {**when, "time": "25 o'clock"}, timeout=CALL_S)
        assert wrong.is_error


async def everything_is_listed_and_called(world: World) -> None:
    async with undisturbed(world), _open(world) as agent:
        await _ready(agent, "everything__echo", "get-sum", "get-structured-content", "get-tiny-image")
        said = "你好, everything"
        assert said in _good(await agent.call_tool(NAME, "everything__echo", {"message": said}, timeout=CALL_S)).text
        assert "42" in _good(await agent.call_tool(NAME, "get-sum", {"a": 20, "b": 22}, timeout=CALL_S)).text
        heard: list[ToolProgress] = []
        params, tool = {"duration": 2, "steps": 4}, "trigger-long-running-operation"
        _good(await agent.call_tool(NAME, tool, params, timeout=CALL_S, on_progress=heard.append))
        assert heard, "it reports each of its steps"
        assert all(note.total == 4 for note in heard)
        assert [note.progress for note in heard] == sorted({note.progress for note in heard} & {1, 2, 3, 4})
        weather = await agent.call_tool(NAME, "get-structured-content", {"location": "New York"}, timeout=CALL_S)
        assert isinstance(weather.structured_content, dict)
        image = await agent.call_tool(NAME, "get-tiny-image", timeout=CALL_S)
        pictures = [block for block in image.raw["content"] if block["type"] == "image"]
        assert [block["mimeType"] for block in pictures] == ["image/png"]
        steps = {"duration": 1, "steps": 2}
        assert _good(await agent.call_tool(NAME, "trigger-long-running-operation", steps, timeout=CALL_S)).text
        steps = {"duration": 60, "steps": 2}
        stopped = await agent.call_tool(NAME, "trigger-long-running-operation", steps, timeout=OWNER_FIRST_S)
        assert stopped.timed_out
        with pytest.raises(Malformed, match=r"params\.a"):
            await agent.call_tool(NAME, "get-sum", {"a": "no number", "b": 22}, timeout=CALL_S)
        environment = _good(await agent.call_tool(NAME, "get-env", timeout=CALL_S)).text
        assert "PATH" in environment
        assert "SMCP_" not in environment  # credentials among them


async def files_are_read_and_forbidden_tools_are_refused(world: World, directory: Path) -> None:
    (directory / "注 1.txt").write_text("first\nsecond\n", encoding="utf-8")
    async with undisturbed(world), _open(world) as agent:
        await _ready(agent, "read_text_file", "ls")
        assert "注 1.txt" in _good(await agent.call_tool(NAME, "ls", {"path": str(directory)}, timeout=CALL_S)).text
        file = {"path": str(directory / "注 1.txt")}
        assert _good(await agent.call_tool(NAME, "read_text_file", file, timeout=CALL_S)).text == "first\nsecond\n"
        outside = await agent.call_tool(NAME, "read_text_file", {"path": "/etc/passwd"}, timeout=CALL_S)
        assert outside.is_error
        assert "root:" not in outside.text
        listed = {tool.name for tool in await agent.get_tools(NAME)}
        content = {"path": str(directory / "forbidden.txt"), "content": "written"}
        moved = {"source": file["path"], "destination": str(directory / "moved.txt")}
        for tool, params in (
            ("write_file", content),
            ("files__write_file", content),
            ("move_file", moved),
            ("remove", moved),
            ("list_directory", {"path": str(directory)}),
        ):
            assert tool not in listed
            refused = await agent.call_tool(NAME, tool, params, timeout=CALL_S)
            assert refused.is_error
            assert ("ls" if tool == "list_directory" else "forbidden") in refused.text
        assert {path.name for path in directory.iterdir()} == {"注 1.txt"}


async def listed_names_are_legal_unique_and_callable_by_a_model(world: World, *servers: str) -> None:
    async with undisturbed(world), _open(world) as agent:
        await _ready(agent, *servers)
        names = [tool.name for tool in await agent.get_tools(NAME)]
        assert len(names) == len(set(names))
        for name in names:
            assert LEGAL.fullmatch(name), name
        functions = {tool["function"]["name"]: tool["function"] for tool in await agent.openai_tools()}
        assert functions.keys() == {tool["name"] for tool in await agent.anthropic_tools()}
        assert len(functions) == len(names)
        for name, function in functions.items():
            assert LEGAL.fullmatch(name), name
            assert function["parameters"]["type"] == "object"
        arguments = json.dumps({"timezone": "UTC"})
        chosen = {"id": "c", "type": "function", "function": {"name": "get_current_time", "arguments": arguments}}
        assert "UTC" in ((await agent.run_openai_tool_calls([chosen], timeout=CALL_S))[0])["content"]


def _good(result: CallResult) -> CallResult:
    assert not result.is_error, result.text
    return result
