"""Tells the office that this Computer changed: `server:update_tool_list`, `server:update_config`."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import orjson

from smcp_bus.errors import BusError
from smcp_bus.registry_client import RegistryClient
from smcp_computer.mcp.backoff import Backoff
from smcp_proto.errors import SmcpError

_log = logging.getLogger("smcp_computer.announcing")

DEBOUNCE_S: Final = 0.1
"""Changes that come closer together are one."""
TOOL_LIST: Final = "update_tool_list"
CONFIG: Final = "update_config"


class Announcer:
    """Keeps what is still to be told, until it was told: over a broken connection, too.

    Args:
        may_tell: whether this Computer is a member now.
    """

    def __init__(self, registry: RegistryClient, office: str, name: str, *, may_tell: Callable[[], bool]) -> None:
        self._registry = registry
        self._office = office
        self._name = name
        self._may_tell = may_tell
        self._untold: set[str] = set()
        self._wake = asyncio.Event()

    @property
    def untold(self) -> frozenset[str]:
        return frozenset(self._untold)

    def changed(self, *verbs: str) -> None:
        """Tell it soon."""
        self._untold.update(verbs)
        self._wake.set()

    def forget(self) -> frozenset[str]:
        """Who enters an office is asked for everything anyway. Returns what was to be told."""
        untold = frozenset(self._untold)
        self._untold.clear()
        return untold

    def resume(self) -> None:
        """This Computer is a member (again): tell what was left."""
        self._wake.set()

    async def run(self) -> None:
        """Tell until cancelled."""
        backoff = Backoff(first_s=0.2, longest_s=5.0)
        while True:
            await self._wake.wait()
            await asyncio.sleep(DEBOUNCE_S)
            self._wake.clear()
            if not self._may_tell() or await self._told_all():
                backoff.reset()
            else:
                await asyncio.sleep(backoff.next())
                self._wake.set()

    async def _told_all(self) -> bool:
        body = orjson.dumps({"computer": self._name})
        for verb in sorted(self._untold):
            self._untold.discard(verb)  # a change while it is told is told again
            try:
                await self._registry.tell(self._office, "computer", self._name, verb, body)
            except (BusError, SmcpError) as error:
                self._untold.add(verb)
                _log.warning("%s could not be told: %s", verb, error)
                return False
        return True
