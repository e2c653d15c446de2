"""Tells the office of changes of resources: `server:resources/updated`, `server:resources/list_changed`."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from smcp_bus import exact_json
from smcp_computer.office_client import OfficeClient
from smcp_computer.outbox import Key, Outbox
from smcp_computer.resources.agents import Agent

_log = logging.getLogger("smcp_computer.resources")

UPDATED: Final = "resources_updated"
LIST_CHANGED: Final = "resources_list_changed"

MOST_UNTOLD: Final = 1000
"""Updates of one server that are kept: it may name what nobody ever listed. Above it, an Agent is told that the whole
changed that it subscribed to, and not which part."""
MAX_TITLE: Final = 1000
"""Characters of a title that are told."""


class Notices:
    """`run` must be running. What a server tells holds up no other server's.

    Args:
        may_tell: whether this Computer is a member now.
        gather_s: changes of one resource that come within so many seconds are told as one.
    """

    def __init__(
        self, registry: OfficeClient, office: str, name: str, *, may_tell: Callable[[], bool], gather_s: float
    ) -> None:
        self._office = office
        self._name = name
        self._outbox = Outbox(registry, office, name, may_tell=may_tell, gather_s=gather_s, log=_log)
        self._crowded: set[str] = set()
        """Servers that had too much to tell, and have not come to an end since."""

    @property
    def untold(self) -> int:
        """How many are still to be told."""
        return len(self._outbox)

    def updated(self, agent: Agent, server: str, uri: str, title: str | None, *, whole: str) -> None:
        """A resource changed.

        Args:
            title: as the server's list has it.
            whole: the resource that the Agent subscribed to: this one, or one above it.
        """
        key = Key(UPDATED, server, uri, agent)
        count = self._outbox.count(UPDATED, server)
        if not count:
            self._crowded.discard(server)
        if count >= MOST_UNTOLD and key not in self._outbox:
            if server not in self._crowded:
                self._crowded.add(server)
                _log.warning("MCP server %r tells of more changes than can be passed on one by one", server)
            key, title = key._replace(uri=whole), None
        params = {"uri": key.uri} | ({} if title is None else {"title": _bounded(title)})
        payload = {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": params}
        self._add(key, payload, {} if agent is None else {"agent": agent})

    def list_changed(self, server: str) -> None:
        """The list of a server changed."""
        payload = {"jsonrpc": "2.0", "method": "notifications/resources/list_changed"}
        self._add(Key(LIST_CHANGED, server), payload, {})

    def forget(self, wanted: Callable[[Agent, str, str], bool]) -> None:
        """Only updates are told that are wanted still.

        Args:
            wanted: given the Agent, the server and the resource.
        """
        self._outbox.drop(lambda key: key.verb == UPDATED and not wanted(key.agent, key.server, key.uri))

    def clear(self) -> None:
        """Nothing that is still to be told is of use to anybody."""
        self._outbox.drop(lambda _: True)

    def resume(self) -> None:
        """This Computer is a member (again): tell what was left."""
        self._outbox.resume()

    async def run(self) -> None:
        """Tell until cancelled."""
        await self._outbox.run()

    def _add(self, key: Key, payload: Mapping[str, Any], whom: Mapping[str, str]) -> None:
        envelope = {"roomId": self._office, "computerId": self._name, "serverId": key.server, **whom}
        self._outbox.add(key, partial(exact_json.written, {**envelope, "payload": payload}))


def _bounded(title: str) -> str:
    """As much of a title as is told, of what the wire carries."""
    return title[:MAX_TITLE].encode(errors="ignore").decode()
