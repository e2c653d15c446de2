"""`smcp-agent watch`: what changes in the office, as it comes."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Final

import typer

from smcp_agent.cli.commands import agent_for, knowing
from smcp_agent.cli.options import Options
from smcp_agent.cli.output import plain, print_hint
from smcp_agent.client import SmcpAgent
from smcp_agent.errors import SmcpError
from smcp_agent.events import (
    CapabilitiesChanged,
    ComputerEntered,
    ComputerLeft,
    ConfigChanged,
    DesktopChanged,
    Disconnected,
    Event,
    EventsDropped,
    EventStream,
    FinderChanged,
    Notified,
    Reconnected,
    RejoinRefused,
    ResourcesChanged,
    ResourceUpdated,
    SubscriptionRefused,
    ToolsChanged,
)

FIRST_TOOLS_S: Final = 5.0
"""The tools that there are already are no change: so long they are waited for."""


@dataclass(frozen=True, slots=True)
class Watch:
    """What is to be watched, and for how long."""

    computer: str | None = None
    """Only this one."""
    uris: Sequence[str] = ()
    """Resources of it to subscribe to."""
    count: int | None = None
    """So many changes are enough."""
    seconds: float | None = None


async def watch(options: Options, wanted: Watch) -> bool:
    """Print changes until there were enough or the time is up; False where the time was up before."""
    async with agent_for(options) as agent:
        await _know_tools(agent)
        stream = agent.events()
        if wanted.computer is not None:
            for uri in wanted.uris:
                with knowing(agent, wanted.computer):
                    await agent.subscribe_resource(wanted.computer, uri)
        if not options.json:
            there = ", ".join(agent.computers()) or "no Computer"
            print_hint(f"Watching the office {options.office!r} ({there}); ctrl-C ends it.")
        if wanted.computer is not None and wanted.computer not in agent.computers():
            print_hint(
                f"There is no Computer {wanted.computer!r} in the office yet: what it does is shown once it came."
            )
        try:
            async with asyncio.timeout(wanted.seconds):
                await _follow(stream, options, wanted)
        except TimeoutError:
            return wanted.count is None
    return True


async def _know_tools(agent: SmcpAgent) -> None:
    async def known(computer: str) -> None:
        with suppress(SmcpError):
            await agent.tools(computer)

    with suppress(TimeoutError):
        async with asyncio.timeout(FIRST_TOOLS_S):
            await asyncio.gather(*map(known, agent.computers()))


async def _follow(stream: EventStream, options: Options, wanted: Watch) -> None:
    shown = 0
    async for event in stream:
        about = getattr(event, "computer", None)
        if wanted.computer is not None and about not in (wanted.computer, None):
            continue
        now = datetime.now(UTC)
        if options.json:
            typer.echo(json.dumps({"at": now.isoformat(timespec="milliseconds"), **as_json(event)}, ensure_ascii=False))
        else:
            typer.echo(plain(f"{now.astimezone():%H:%M:%S}  {sentence(event)}"))
        shown += 1
        if shown == wanted.count:
            return


def as_json(event: Event) -> dict[str, Any]:
    """An event for programs: its name as `event`, and its fields; tools by their names."""
    said = {field.name: getattr(event, field.name) for field in fields(event)}
    match event:
        case ToolsChanged(tools=tools):
            said["tools"] = [tool.name for tool in tools]
        case CapabilitiesChanged(capabilities=capabilities):
            said["capabilities"] = capabilities.model_dump(exclude_unset=True)
        case SubscriptionRefused(error=error):
            said["error"] = error.body().model_dump()
        case Notified(event=name, data=data):
            said = {"notification": name, "data": dict(data)}
    return {"event": type(event).__name__, **said}


def sentence(event: Event) -> str:  # noqa: C901, PLR0912 -- one line for each kind of event
    """An event for people, in one line."""
    match event:
        case ComputerEntered(computer):
            return f"{computer} entered"
        case ComputerLeft(computer):
            return f"{computer} left"
        case ToolsChanged(computer, tools):
            return f"{computer} has {len(tools)} tools: {', '.join(tool.name for tool in tools)}"
        case ConfigChanged(computer):
            return f"{computer} has another configuration"
        case DesktopChanged(computer):
            return f"{computer} has another desktop"
        case FinderChanged(computer):
            return f"{computer} has other documents"
        case ResourcesChanged(computer, server):
            return f"{computer} has other resources" + (f" of {server}" if server else "")
        case ResourceUpdated(computer, uri):
            return f"{computer} updated {uri}"
        case SubscriptionRefused(computer, uri, _, error):
            return f"{computer} does not tell of {uri} any more: {error.message}"
        case CapabilitiesChanged(computer):
            return f"{computer} can do other things with resources"
        case Notified(name, data):
            return f"{name} {json.dumps(dict(data), ensure_ascii=False)}"
        case Disconnected(reason):
            return f"the connection is lost: {reason}"
        case RejoinRefused(why):
            return f"the office does not take us back yet: {why}"
        case Reconnected():
            return "connected again; what was not heard of meanwhile may have changed"
        case EventsDropped(count):
            return f"{count} changes could not be shown"
