"""Tells the office of changes of resources: `server:resources/updated`, `server:resources/list_changed`."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from smcp_bus import exact_json
from smcp_computer.office_client import OfficeClient
from smcp_computer.outbox import Key, Outbox
from smcp_computer.resources.subscriptions import Agent
from smcp_proto.schemas.resources import MISSED

_log = logging.getLogger("smcp_computer.resources")

UPDATED: Final = "resources_updated"
LIST_CHANGED: Final = "resources_list_changed"

MOST_UNTOLD: Final = 1000
"""Updates of one server that wait: it may name what nobody ever listed. Above it Agents are told to subscribe again."""
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

    @property
    def untold(self) -> int:
        """How many wait."""
        return len(self._outbox)

    def updated(self, agent: Agent, server: str, uri: str, title: str | None) -> None:
        """A resource changed that the Agent has subscribed to. `title`: as the server's list has it."""
        key = Key(UPDATED, server, uri, agent)
        if self._outbox.count(UPDATED, server) >= MOST_UNTOLD and key not in self._outbox:
            _log.warning("MCP server %r tells of more changes than can be passed on one by one", server)
            self.drop_updates(server)
            self.missed(server)
            return
        params = {"uri": uri} | ({} if title is None else {"title": _bounded(title)})
        payload = {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": params}
        self._add(key, payload, {} if agent is None else {"agent": agent})

    def list_changed(self, server: str) -> None:
        """The list of a server changed."""
        self._add(Key(LIST_CHANGED, server), _LIST_CHANGED, {})

    def missed(self, server: str | None) -> None:
        """Agents may have missed changes of a server, or of all, and are to subscribe again."""
        self._add(Key(LIST_CHANGED, server or "", MISSED), _LIST_CHANGED, {MISSED: True})

    def drop_updates(self, server: str | None) -> None:
        """Subscriptions at a server, or at all, have ended: the Agent may be another one by now."""
        self._outbox.drop(lambda key: key.verb == UPDATED and server in (None, key.server))

    def resume(self) -> None:
        """This Computer is a member (again): tell what was left."""
        self._outbox.resume()

    async def run(self) -> None:
        """Tell until cancelled."""
        await self._outbox.run()

    def _add(self, key: Key, payload: Mapping[str, Any], more: Mapping[str, Any]) -> None:
        envelope = {"roomId": self._office, "computerId": self._name, **more}
        if key.server:
            envelope["serverId"] = key.server
        self._outbox.add(key, partial(exact_json.written, {**envelope, "payload": payload}))


_LIST_CHANGED: Final = {"jsonrpc": "2.0", "method": "notifications/resources/list_changed"}


def _bounded(title: str) -> str:
    """As much of a title as is told, of what the wire carries."""
    return title[:MAX_TITLE].encode(errors="ignore").decode()
