"""Tells the office that this Computer changed: `server:update_*` and `server:resources/*`."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from smcp_bus import exact_json
from smcp_computer.office_client import OfficeClient
from smcp_computer.outbox import Key, Outbox
from smcp_proto.schemas.resources import MISSED

_log = logging.getLogger("smcp_computer.announcing")

TOOL_LIST: Final = "update_tool_list"
CONFIG: Final = "update_config"
DESKTOP: Final = "update_desktop"
FINDER: Final = "update_finder"
CAPABILITIES: Final = "update_capabilities"
UPDATED: Final = "resources_updated"
LIST_CHANGED: Final = "resources_list_changed"

MOST_UPDATES: Final = 1000
"""Updates of one MCP server that wait; above it Agents are told to subscribe again: it may name ever new URIs."""
MAX_TITLE: Final = 1000
"""Characters of a title that are told."""


class Announcer:
    """Keeps what is still to be told, until it was told (see `Outbox`). `run` must be running.

    Args:
        may_tell: whether this Computer is a member now.
        gather_s: changes of one kind, or of one resource, that come within so many seconds are told as one.
        content: what is told beside this Computer's name, by kind.
    """

    def __init__(
        self,
        registry: OfficeClient,
        office: str,
        name: str,
        *,
        may_tell: Callable[[], bool],
        gather_s: float,
        content: Mapping[str, Callable[[], Mapping[str, Any]]] = MappingProxyType({}),
    ) -> None:
        self._office = office
        self._name = name
        self._content = content
        self._outbox = Outbox(registry, office, name, may_tell=may_tell, gather_s=gather_s, log=_log)

    def __len__(self) -> int:
        return len(self._outbox)

    @property
    def untold(self) -> frozenset[str]:
        """Verbs of the updates that the registry has not taken yet."""
        return frozenset(key.verb for key in self._outbox)

    def held(self) -> dict[str, int]:
        """How many updates are still to be told."""
        return self._outbox.held()

    def changed(self, *verbs: str) -> None:
        """Tell `server:update_*` soon."""
        for verb in verbs:
            self._outbox.add(Key(verb), partial(self._update, verb))

    def resource_updated(self, agent: str | None, server: str, uri: str, title: str | None) -> None:
        """A resource changed that the Agent has subscribed to. `title`: as the server's list has it."""
        key = Key(UPDATED, server, uri, agent)
        if self._outbox.count(UPDATED, server) >= MOST_UPDATES and key not in self._outbox:
            _log.warning("MCP server %r tells of more changes than can be passed on one by one", server)
            self.missed(server)
            return
        params = {"uri": uri} | ({} if title is None else {"title": _bounded(title)})
        payload = {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": params}
        self._tell_of(key, payload, {} if agent is None else {"agent": agent})

    def list_changed(self, server: str) -> None:
        """The list of an MCP server changed."""
        self._tell_of(Key(LIST_CHANGED, server), _LIST_CHANGED, {})

    def missed(self, server: str | None) -> None:
        """Agents may have missed changes of a server, or of all, and are to subscribe again. Updates that wait are
        dropped: the Agent may be another one by now."""
        self._outbox.drop(lambda key: key.verb == UPDATED and server in (None, key.server))
        self._tell_of(Key(LIST_CHANGED, server or "", MISSED), _LIST_CHANGED, {MISSED: True})

    def forget(self) -> frozenset[str]:
        """Who enters an office is asked for everything anyway. Returns which `update_*` were to be told."""
        untold = frozenset(key.verb for key in self._outbox if not (key.server or key.uri))
        self._outbox.drop(lambda key: key.verb in untold)
        return untold

    def resume(self) -> None:
        """This Computer is a member (again): tell what was left."""
        self._outbox.resume()

    async def run(self) -> None:
        """Tell until cancelled."""
        await self._outbox.run()

    def _update(self, verb: str) -> bytes:
        more = self._content[verb]() if verb in self._content else {}
        return exact_json.written({"computer": self._name, **more})

    def _tell_of(self, key: Key, payload: Mapping[str, Any], more: Mapping[str, Any]) -> None:
        envelope = {"roomId": self._office, "computerId": self._name, **more}
        if key.server:
            envelope["serverId"] = key.server
        self._outbox.add(key, partial(exact_json.written, {**envelope, "payload": payload}))


_LIST_CHANGED: Final = {"jsonrpc": "2.0", "method": "notifications/resources/list_changed"}


def _bounded(title: str) -> str:
    """As much of a title as is told, of what the wire carries."""
    return title[:MAX_TITLE].encode(errors="ignore").decode()
