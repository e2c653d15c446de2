"""Tells the office that this Computer changed: `server:update_tool_list`, `server:update_desktop` and so on."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import orjson

from smcp_bus.errors import BusError
from smcp_bus.registry_client import RegistryClient
from smcp_computer.mcp.backoff import Backoff
from smcp_proto.errors import SmcpError

_log = logging.getLogger("smcp_computer.announcing")

TOOL_LIST: Final = "update_tool_list"
CONFIG: Final = "update_config"
DESKTOP: Final = "update_desktop"
FINDER: Final = "update_finder"
CAPABILITIES: Final = "update_capabilities"


class Announcer:
    """Keeps what is still to be told, until it was told: over a broken connection, too.

    Args:
        may_tell: whether this Computer is a member now.
        gather_s: changes of one kind that come within so many seconds are told as one.
        content: what is told beside this Computer's name, by kind.
    """

    def __init__(
        self,
        registry: RegistryClient,
        office: str,
        name: str,
        *,
        may_tell: Callable[[], bool],
        gather_s: float,
        content: Mapping[str, Callable[[], Mapping[str, Any]]] = MappingProxyType({}),
    ) -> None:
        self._registry = registry
        self._office = office
        self._name = name
        self._may_tell = may_tell
        self._gather_s = gather_s
        self._content = content
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
            await asyncio.sleep(self._gather_s)
            self._wake.clear()
            if not self._may_tell() or await self._told_all():
                backoff.reset()
            else:
                await asyncio.sleep(backoff.next())
                self._wake.set()

    async def _told_all(self) -> bool:
        told = True
        for verb in sorted(self._untold):
            self._untold.discard(verb)  # a change while it is told is told again
            more = self._content[verb]() if verb in self._content else {}
            body = orjson.dumps({"computer": self._name, **more})
            try:
                await self._registry.tell(self._office, "computer", self._name, verb, body)
            except (BusError, SmcpError) as error:
                self._untold.add(verb)
                _log.warning("%s could not be told: %s", verb, error)
                told = False
                if isinstance(error, BusError):
                    break
                # one kind may be refused for now (capabilities, without quorum) where the others are not
        return told
