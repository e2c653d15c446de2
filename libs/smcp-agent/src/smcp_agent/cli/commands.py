"""What the commands of `smcp-agent` do, apart from how they are typed in."""

from collections.abc import Mapping
from typing import Any

from smcp_agent.cli.options import Options
from smcp_agent.cli.output import print_json, print_result, print_sessions, print_tools, working
from smcp_agent.client import SmcpAgent


async def list_room(options: Options) -> bool:
    """Print who is in the office."""
    with working(f"asking who is in {options.office}"):
        async with _agent(options) as agent:
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
        async with _agent(options) as agent:
            tools = await agent.get_tools(computer)
    if options.json:
        found = [tool.model_dump(exclude_unset=True) for tool in tools]
        print_json({"computer": computer, "tools": found})
    else:
        print_tools(tools)
    return True


async def call(options: Options, computer: str, tool: str, params: Mapping[str, Any], timeout: int) -> bool:
    """Call a tool and print its result; whether the tool succeeded."""
    with working(f"{tool} on {computer}"):
        async with _agent(options) as agent:
            result = await agent.call_tool(computer, tool, params, timeout=timeout)
    if options.json:
        print_json(result.raw)
    else:
        print_result(result)
    return not result.is_error


def _agent(options: Options) -> SmcpAgent:
    return SmcpAgent(options.url, office=options.office, name=options.name)
