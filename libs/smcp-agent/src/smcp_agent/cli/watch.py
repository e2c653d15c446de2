"""`smcp-agent watch`: what changes in the office, as it comes."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Final

import typer

from smcp_agent import events
from smcp_agent.cli.output import json_text, plain, print_hint
from smcp_agent.cli.runner import Options, agent_for, knowing
from smcp_agent.client import SmcpAgent
from smcp_agent.errors import SmcpError

FIRST_TOOLS_S: Final = 5.0
"""The tools that there are already are no change: so long they are waited for."""

SENTENCES: Final[Mapping[type[events.Event], str]] = {
    events.ComputerEntered: "{0.computer} entered",
    events.ComputerLeft: "{0.computer} left",
    events.ConfigChanged: "{0.computer} has another configuration",
    events.DesktopChanged: "{0.computer} has another desktop",
    events.FinderChanged: "{0.computer} has other documents",
    events.ResourcesChanged: "{0.computer} has other resources",
    events.ResourceUpdated: "{0.computer} updated {0.uri}",
    events.SubscriptionRefused: "{0.computer} does not tell of {0.uri} any more: {0.error.message}",
    events.CapabilitiesChanged: "{0.computer} can do other things with resources",
    events.Disconnected: "the connection is lost: {0.reason}",
    events.RejoinRefused: "the office does not take us back yet: {0.why}",
    events.Reconnected: "connected again; what was not heard of meanwhile may have changed",
    events.EventsDropped: "{0.count} changes could not be shown",
}
"""What is said of an event, `{0}`."""


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


async def follow(options: Options, wanted: Watch) -> bool:
    """Print changes until there were enough or the time is up; False where the time was up before.

    That it watches is said on standard error: what changes after that is printed.
    """
    async with agent_for(options) as agent:
        await _know_tools(agent)
        stream = agent.events()
        if wanted.computer is not None:
            for uri in wanted.uris:
                with knowing(agent, wanted.computer):
                    await agent.subscribe_resource(wanted.computer, uri)
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


async def _follow(stream: events.EventStream, options: Options, wanted: Watch) -> None:
    shown = 0
    async for event in stream:
        about = getattr(event, "computer", None)
        if wanted.computer is not None and about not in (wanted.computer, None):
            continue
        now = datetime.now(UTC)
        if options.json:
            typer.echo(json_text({"at": now.isoformat(timespec="milliseconds"), **as_json(event)}, indent=None))
        else:
            said = plain(sentence(event)).replace("\n", " ")  # one line each, whatever stands in a name
            typer.echo(f"{now.astimezone():%H:%M:%S}  {said}")
        shown += 1
        if shown == wanted.count:
            return


def as_json(event: events.Event) -> dict[str, Any]:
    """An event for programs: its name as `event`, and its fields; tools by their names."""
    said = {field.name: getattr(event, field.name) for field in fields(event)}
    match event:
        case events.ToolsChanged(tools=tools):
            said["tools"] = [tool.name for tool in tools]
        case events.CapabilitiesChanged(capabilities=capabilities):
            said["capabilities"] = capabilities.model_dump(exclude_unset=True)
        case events.SubscriptionRefused(error=error):
            said["error"] = error.body().model_dump()
        case events.Notified(event=name, data=data):
            said = {"notification": name, "data": dict(data)}
    return {"event": type(event).__name__, **said}


def sentence(event: events.Event) -> str:
    """An event for people, in one line."""
    match event:
        case events.ToolsChanged(computer, tools):
            if not tools:
                return f"{computer} has no tools"
            many = "1 tool" if len(tools) == 1 else f"{len(tools)} tools"
            return f"{computer} has {many}: {', '.join(tool.name for tool in tools)}"
        case events.ResourcesChanged(server=str(server)):
            return f"{SENTENCES[type(event)].format(event)} of {server}"
        case events.Notified(name, data):
            return f"{name} {json_text(dict(data), indent=None)}"
        case _:
            return SENTENCES[type(event)].format(event)
