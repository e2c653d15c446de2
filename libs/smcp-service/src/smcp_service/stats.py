"""How many of what a process holds now: for whoever looks for a leak, and for tests that nothing is left behind."""

import asyncio
from collections.abc import Callable, Mapping

Source = Callable[[], Mapping[str, int]]
"""Asked at every request, so cheap and without waiting: how many, by what they are."""


class Stats:
    """What a process holds, by who holds it. A service names its sources as it is put together."""

    def __init__(self) -> None:
        self._sources: dict[str, Source] = {}

    def add(self, name: str, source: Source) -> None:
        """Add a source. Raises ValueError if there is one of that name already."""
        if name in self._sources:
            raise ValueError(f"there is a source named {name} already")
        self._sources[name] = source

    def now(self) -> dict[str, dict[str, int]]:
        """The counts of all sources, and of the process itself."""
        return {
            "process": {"tasks": len(asyncio.all_tasks())},
            **{name: dict(source()) for name, source in self._sources.items()},
        }
