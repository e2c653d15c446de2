"""Tells the office of changes of resources: `server:resources/updated`, `server:resources/list_changed`.

What is to be told is kept until it was told, over a broken connection, too; what changes again before is told once.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import orjson

from smcp_bus.errors import BusError
from smcp_bus.registry_client import RegistryClient
from smcp_computer.mcp.backoff import Backoff
from smcp_computer.resources.agents import Agent
from smcp_proto.errors import SmcpError

_log = logging.getLogger("smcp_computer.resources")

UPDATED: Final = "resources_updated"
LIST_CHANGED: Final = "resources_list_changed"

MOST_UNTOLD: Final = 10_000
"""What a server tells beyond it while nobody can be told is lost: it may name what nobody ever listed."""

Key = tuple[str, str, str, Agent]
"""Verb, server, URI, Agent."""


class Notices:
    """`run` must be running.

    Args:
        may_tell: whether this Computer is a member now.
        gather_s: changes that come closer together are told together, in seconds.
    """

    def __init__(
        self, registry: RegistryClient, office: str, name: str, *, may_tell: Callable[[], bool], gather_s: float
    ) -> None:
        self._registry = registry
        self._office = office
        self._name = name
        self._may_tell = may_tell
        self._gather_s = gather_s
        self._untold: dict[Key, bytes] = {}
        self._wake = asyncio.Event()

    @property
    def untold(self) -> int:
        """How many are still to be told."""
        return len(self._untold)

    def updated(self, agent: Agent, server: str, uri: str, title: str | None) -> None:
        """A resource changed that an Agent subscribed to."""
        params = {"uri": uri} | ({} if title is None else {"title": title})
        payload = {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": params}
        self._add((UPDATED, server, uri, agent), payload, {} if agent is None else {"agent": agent})

    def list_changed(self, server: str) -> None:
        """The list of a server changed."""
        payload = {"jsonrpc": "2.0", "method": "notifications/resources/list_changed"}
        self._add((LIST_CHANGED, server, "", None), payload, {})

    def forget(self, but: Collection[Agent]) -> None:
        """Updates are told to these Agents only: the others have left."""
        for key in [key for key in self._untold if key[0] == UPDATED and key[3] not in but]:
            del self._untold[key]

    def clear(self) -> None:
        """Nothing that is still to be told is of use to anybody."""
        self._untold.clear()

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
        for key in list(self._untold):
            body = self._untold.pop(key, None)  # a change while it is told is told again
            if body is None:
                continue
            try:
                await self._registry.tell(self._office, "computer", self._name, key[0], body)
            except (BusError, SmcpError) as error:
                self._untold.setdefault(key, body)
                _log.warning("%s could not be told: %s", key[0], error)
                return False
        return True

    def _add(self, key: Key, payload: Mapping[str, Any], whom: Mapping[str, str]) -> None:
        if key not in self._untold and len(self._untold) >= MOST_UNTOLD:
            _log.debug("too much is still to be told: %s of MCP server %r is not", key[0], key[1])
            return
        envelope = {"roomId": self._office, "computerId": self._name, "serverId": key[1], **whom, "payload": payload}
        self._untold[key] = orjson.dumps(envelope)
        self._wake.set()
