"""`smcp-agent watch` prints changes in the office as they come."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Final

import typer

from smcp_agent import events
from smcp_agent.cli.output import plain, print_hint
from smcp_agent.cli.run_command import Options
from smcp_proto.printable import printable_json

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
"""The sentence for an event, `{0}`."""


async def follow(
    options: Options, computer: str | None, uris: Sequence[str], count: int | None, seconds: float | None
) -> bool:
    """Print changes until there were `count` or the time is up; False where the time was up before.

    Only changes of `computer` are shown, if it is named; its `uris` are subscribed to. A line on standard error says
    when the watch has begun.
    """
    async with options.agent() as agent:
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_TOOLS_S):
                await asyncio.gather(*map(agent.tools, agent.computers()), return_exceptions=True)
        stream = agent.events()
        if computer is not None:
            for uri in uris:
                await agent.subscribe_resource(computer, uri)
        there = ", ".join(agent.computers()) or "no Computer"
        print_hint(f"Watching the office {options.office!r} ({there}); ctrl-C ends it.")
        if computer is not None and computer not in agent.computers():
            print_hint(f"There is no Computer {computer!r} in the office yet: what it does is shown once it came.")
        shown = 0
        try:
            async with asyncio.timeout(seconds):
                async for event in stream:
                    if computer is not None and getattr(event, "computer", computer) != computer:
                        continue
                    _show(event, as_object=options.json)
                    shown += 1
                    if shown == count:
                        break
        except TimeoutError:
            return count is None
    return True


def _show(event: events.Event, *, as_object: bool) -> None:
    now = datetime.now(UTC)
    if as_object:
        typer.echo(printable_json({"at": now.isoformat(timespec="milliseconds"), **as_json(event)}, indent=None))
    else:
        said = plain(sentence(event)).replace("\n", " ")  # one line each, whatever stands in a name
        typer.echo(f"{now.astimezone():%H:%M:%S}  {said}")


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
            return f"{name} {printable_json(dict(data), indent=None)}"
        case _:
            return SENTENCES[type(event)].format(event)
