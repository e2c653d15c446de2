"""Reads the windows of one MCP server, some at a time, until a deadline."""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from smcp_computer.mcp.errors import AnswerTooLarge, ServerError, ServerTimedOut
from smcp_computer.mcp.resources import Json, Resources
from smcp_computer.resources.routing import window_uri
from smcp_proto.desktop import Window
from smcp_proto.uris import WINDOW, WindowUri
from smcp_proto.uris.identity import scheme_of

AT_ONCE: Final = 16
"""Windows that one server is asked for at a time."""


@dataclass(frozen=True, slots=True)
class Unread:
    """A window that could not be read."""

    uri: str
    why: ServerError


async def read_windows(
    resources: Resources, listed: Iterable[Json], *, deadline: float, max_bytes: int
) -> tuple[list[Window], list[Unread]]:
    """The windows in the order in which they are listed, and those that are left out.

    Args:
        deadline: loop time (seconds).
        max_bytes: of the texts of one window; a larger one is left out. What is never shown does not count.
    """
    found: dict[int, Window] = {}
    unread: list[Unread] = []
    wanted = list(listed)
    left = iter(enumerate(wanted))

    async def some() -> None:
        for number, resource in left:
            try:
                found[number] = await _read(resources, resource, deadline, max_bytes)
            except ServerError as error:
                unread.append(Unread(resource["uri"], error))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(AT_ONCE, len(wanted))):
            tasks.create_task(some())
    return [found[number] for number in sorted(found)], unread


def windows_of(listed: Iterable[Json], only: WindowUri | None) -> Iterator[Json]:
    """The resources that say that they are windows; with `only` those that are this one."""
    for resource in listed:
        uri = resource["uri"]
        if scheme_of(uri) == WINDOW and (only is None or window_uri(uri) == only):
            yield resource


async def _read(resources: Resources, resource: Json, deadline: float, max_bytes: int) -> Window:
    uri = resource["uri"]
    rest = deadline - asyncio.get_running_loop().time()
    if rest <= 0:
        raise ServerTimedOut(resources.server, "did not answer in time")
    contents = (await resources.read(uri, timeout=rest))["contents"]
    if (size := _size(contents)) > max_bytes:
        raise AnswerTooLarge(resources.server, limit=max_bytes, size=size)
    return Window(resources.server, resource, contents)


def _size(contents: list[Any]) -> int:
    """Of what is shown: a bound from below, in bytes, that costs nothing."""
    return sum(
        len(text) for content in contents if isinstance(content, dict) and isinstance(text := content.get("text"), str)
    )
