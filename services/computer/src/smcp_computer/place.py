"""A Computer's place in its office, whichever way it is connected."""

import asyncio
from typing import Protocol


class Place(Protocol):
    """Had by `run`, which must be running, and given up by `leave`."""

    @property
    def joined(self) -> asyncio.Event:
        """Set once the place was had for the first time."""

    @property
    def problem(self) -> str | None:
        """Why this Computer is not in its office now; None while it is."""

    async def run(self) -> None:
        """Have the place, and have it again whenever it was lost, until cancelled."""

    async def leave(self) -> None:
        """Give the place up; `run` must have ended. It is bounded, and does not raise what the office says."""
