"""What the commands of `smcp-agent` do, apart from how they are typed in."""

import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from difflib import get_close_matches
from pathlib import Path
from shlex import quote
from typing import Any, Final

from smcp_agent.cli.output import (
    print_contents,
    print_desktop,
    print_documents,
    print_failure,
    print_hint,
    print_json,
    print_resources,
    print_result,
    print_sessions,
    print_tools,
    working,
)
from smcp_agent.cli.runner import Options
from smcp_agent.client import SmcpAgent
from smcp_agent.errors import NotFound, SmcpError
from smcp_agent.results import ResourceContents


async def list_room(options: Options) -> bool:
    """Print who is in the office."""
    with working(f"asking who is in {options.office}"):
        async with agent_for(options) as agent:
            sessions = await agent.list_room()
    if options.json:
        found = [session.model_dump(exclude_unset=True) for session in sessions]
        print_json({"office_id": options.office, "sessions": found})
    else:
        print_sessions(sessions)
    return True


async def list_tools(options: Options, computer: str) -> bool:
    """Print a Computer's tools."""
    with working(f"asking {computer} for its tools"):
        async with agent_for(options) as agent:
            with knowing(agent, computer):
                tools = await agent.get_tools(computer)
    if options.json:
        found = [tool.model_dump(exclude_unset=True) for tool in tools]
        print_json({"computer": computer, "tools": found})
    else:
        print_tools(tools)
    return True


async def call(
    options: Options, computer: str, tool: str, params: Mapping[str, Any], timeout: int, req_id: str
) -> bool:
    """Call a tool and print its result; whether the tool succeeded."""
    unknown = ""
    with working(f"{tool} on {computer}"):
        async with agent_for(options) as agent:
            with knowing(agent, computer):
                result = await agent.call_tool(computer, tool, params, timeout=timeout, req_id=req_id)
                if result.is_error and not result.forbidden:
                    unknown = await _unknown_tool(agent, computer, tool)
    if options.json:
        print_json({**result.raw, "req_id": result.req_id, "trace_id": result.trace_id})
    else:
        print_result(result)
    if unknown:
        print_hint(unknown)
    return not result.is_error


def agent_for(options: Options) -> SmcpAgent:
    """The Agent that runs a command."""
    return SmcpAgent(
        options.url, office=options.office, name=options.name, token=options.token, max_message=options.max_message
    )


@contextmanager
def knowing(agent: SmcpAgent, computer: str) -> Iterator[None]:
    """Say of a Computer that is not there which ones are."""
    try:
        yield
    except NotFound as error:
        others = agent.computers()
        if computer in others:
            raise
        there = f"There are: {', '.join(others)}." if others else "There is none at all."
        message = f"there is no Computer {computer!r} in the office {agent.office!r}."
        raise NotFound(f"{message}{_nearest(computer, others)} {there}", details=error.details) from error


@asynccontextmanager
async def asking(agent: SmcpAgent, computer: str, server: str | None) -> AsyncIterator[None]:
    """As `knowing`, and say of an MCP server that is not there which ones the Computer has."""
    with knowing(agent, computer):
        try:
            yield
        except NotFound as error:
            names = [] if server is None or computer not in agent.computers() else await _servers(agent, computer)
            if server is None or not names or server in names:
                raise
            message = f"the Computer {computer!r} has no MCP server {server!r}."
            there = f"It has: {', '.join(names)}."
            raise NotFound(f"{message}{_nearest(server, names)} {there}", details=error.details) from error


async def _servers(agent: SmcpAgent, computer: str) -> list[str]:
    try:
        return sorted((await agent.get_config(computer)).servers)
    except SmcpError:
        return []  # then what was said before has to do


async def _unknown_tool(agent: SmcpAgent, computer: str, tool: str) -> str:
    """What to say where a call failed because the Computer lists no such tool; else nothing."""
    try:
        names = [each.name for each in await agent.tools(computer)]
    except SmcpError:
        return ""
    if tool in names:
        return ""
    said = f"The Computer {computer!r} is there, and lists no tool {tool!r}."
    return f"{said}{_nearest(tool, names)} `smcp-agent tools {quote(computer)}` lists them."


def _nearest(name: str, names: Sequence[str]) -> str:
    near = [repr(each) for each in get_close_matches(name, names, n=3)]
    return f" Did you mean {' or '.join(near)}?" if near else ""


WINDOW: Final = "window://"


async def show_desktop(options: Options, computer: str, size: int | None, window: str | None) -> bool:
    """Print a Computer's desktop."""
    with working(f"asking {computer} for its desktop"):
        async with agent_for(options) as agent:
            with knowing(agent, computer):
                desktop = await agent.get_desktop(computer, size=size, window=window)
    if options.json:
        print_json({"computer": computer, "desktops": desktop["desktops"]})
    else:
        print_desktop(desktop, _why_empty(size, window))
    return True


async def list_documents(
    options: Options, computer: str, keywords: Sequence[str], file_type: str | None, offset: int, limit: int
) -> bool:
    """Print a part of a Computer's documents."""
    with working(f"asking {computer} for its documents"):
        async with agent_for(options) as agent:
            with knowing(agent, computer):
                finder = await agent.get_finder(
                    computer, keywords=keywords or None, file_type=file_type, offset=offset, limit=limit
                )
    as_listed = finder.get("a2c_as_listed", 0)
    if options.json:
        said: dict[str, object] = {"documents": finder["documents"], "total_count": finder["total_count"]}
        print_json({"computer": computer, **said} | ({"a2c_as_listed": as_listed} if as_listed else {}))
    else:
        print_documents(finder["documents"])
        if (shown := len(finder["documents"])) < finder["total_count"]:
            print_hint(f"{shown} of {finder['total_count']}, from {offset} on: --offset and --limit choose others.")
        if as_listed:
            of = "1 document is" if as_listed == 1 else f"{as_listed} documents are"
            print_hint(f"The metadata of {of} not known now: some may be missing or stand elsewhere.")
    return True


async def list_resources(options: Options, computer: str, server: str | None) -> bool:
    """Print a Computer's resources."""
    with working(f"asking {computer} for its resources"):
        async with agent_for(options) as agent, asking(agent, computer, server):
            resources = [each async for each in agent.iter_resources(computer, server=server)]
    if options.json:
        print_json({"computer": computer, "resources": resources})
    else:
        print_resources(resources)
    return True


async def read(options: Options, computer: str, uri: str, server: str | None, output: Path | None) -> bool:
    """Print a resource, or write it into a file; whether that could be done."""
    with working(f"reading {uri} of {computer}"):
        async with agent_for(options) as agent, asking(agent, computer, server):
            contents = await agent.read_contents(computer, uri, server=server)
    if output is not None:
        return _write(contents, output)
    if options.json:
        print_json({"computer": computer, "uri": uri, **contents.raw})
        return True
    if not contents.binary:
        print_contents(contents)
        _tell_left_out(contents)
        return True
    data = contents.blob()
    if sys.stdout.isatty():
        print_failure(f"{uri} is binary ({len(data)} bytes), and not for a terminal: --output FILE writes it to a file")
        return False
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
    return True


def _why_empty(size: int | None, window: str | None) -> str:
    """What to say of a desktop without windows."""
    if size is not None and size <= 0:
        return f"No window is shown: --size {size} asks for none."
    if window is None:
        return "No window is open."
    known = f"There is no window {window!r}."
    return known if window.lower().startswith(WINDOW) else f"{known} The URI of a window begins with {WINDOW}"


def _write(contents: ResourceContents, output: Path) -> bool:
    data = contents.blob() if contents.binary else contents.text.encode(errors="replace")
    try:
        output.write_bytes(data)
    except OSError as error:
        print_failure(f"{output} cannot be written: {error.strerror}")
        return False
    _tell_left_out(contents)
    return True


def _tell_left_out(contents: ResourceContents) -> None:
    """Say of bytes beside a text that they were not printed or written."""
    left_out = 0 if contents.binary else sum(each.blob is not None for each in contents.contents)
    if left_out:
        print_hint(f"{left_out} of its {len(contents.contents)} contents are binary, and left out: --json prints all.")
