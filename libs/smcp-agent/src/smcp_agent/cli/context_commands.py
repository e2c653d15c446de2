"""The commands of `smcp-agent` about desktops, documents and resources."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from smcp_agent.cli.commands import agent_for, asking, knowing
from smcp_agent.cli.context_output import print_contents, print_desktop, print_documents, print_resources
from smcp_agent.cli.options import Options
from smcp_agent.cli.output import print_failure, print_hint, print_json, working
from smcp_agent.context.contents import ResourceContents

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
