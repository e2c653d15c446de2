"""What the commands of `smcp-agent` do, apart from how they are typed in."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from difflib import get_close_matches
from shlex import quote
from typing import Any

from smcp_agent.cli.options import Options
from smcp_agent.cli.output import print_hint, print_json, print_result, print_sessions, print_tools, working
from smcp_agent.client import SmcpAgent
from smcp_agent.errors import NotFound, SmcpError


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
