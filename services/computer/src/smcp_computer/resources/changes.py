"""From what MCP servers announce to what the office is told (desktop.txt and finder.txt, 变化检测).

A changed list counts for the desktop (or the finder) where the set of its `window://` (or `dpe://`) URIs is another one
than before; a window with another query is the same window (desktop.txt, 校验规则). A changed resource counts at once.
So does a resource whose updates are subscribed to: nobody was told what changed before.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from smcp_computer.finder.metadata_cache import MetadataCache
from smcp_computer.mcp.events import (
    ResourcesSubscribed,
    ResourcesUnsubscribed,
    ResourceUpdated,
    ServerEvent,
    ServerEvents,
    ServerGone,
    ServerReady,
)
from smcp_computer.outbox import DESKTOP, FINDER, Outbox
from smcp_computer.resources.index import NOTHING, Listing, ResourceIndex
from smcp_computer.resources.subscriptions import AgentSubscriptions, UpstreamSubscriptions
from smcp_proto.uris import DPE, HOSTED, WINDOW, host_conflicts, scheme_of, without_query

_log = logging.getLogger("smcp_computer.resources")

NONE: Final[frozenset[str]] = frozenset()


@dataclass
class _Scheme:
    update: str
    """What the office is told; also the holder of the subscriptions."""
    identity: Callable[[str], str]
    """Of a URI: what two URIs of the same resource share."""
    listed: dict[str, frozenset[str]] = field(default_factory=dict)
    """Identities."""
    subscribed: dict[str, frozenset[str]] = field(default_factory=dict)
    """Identities, in the present life of the server."""

    def is_changed(self, server: str, uris: frozenset[str]) -> bool:
        before = self.listed.get(server, NONE)
        now = self.listed[server] = frozenset(map(self.identity, uris))
        self.subscribed[server] = self.subscribed.get(server, NONE) & now
        return now != before

    def is_news(self, server: str, uris: frozenset[str]) -> bool:
        """Whether one of these is subscribed to for the first time."""
        before = self.subscribed.get(server, NONE)
        now = self.subscribed[server] = before | frozenset(map(self.identity, uris))
        return now != before


class ResourceChanges:
    """Listens for as long as the events last. Only servers with `resources.subscribe` count for desktop and finder."""

    def __init__(
        self,
        index: ResourceIndex,
        upstream: UpstreamSubscriptions,
        agents: AgentSubscriptions,
        events: ServerEvents,
        cache: MetadataCache,
        outbox: Outbox,
    ) -> None:
        self._index = index
        self._upstream = upstream
        self._agents = agents
        self._cache = cache
        self._outbox = outbox
        self._conflicts = HostConflicts()
        self._schemes: Mapping[str, _Scheme] = {
            WINDOW: _Scheme(DESKTOP, without_query),
            DPE: _Scheme(FINDER, str),
        }
        self._entered = False
        self._announced: dict[str, tuple[Listing, int]] = {}
        """The lists of the servers as the office knows them, and how often their templates were outdated."""
        events.listen(self._on_event)
        index.listen(self._on_list)

    def in_office(self) -> None:
        """This Computer is in its office. Whoever hears of it asks for all lists: changes are told from here on."""
        self._entered = True

    def _on_event(self, event: ServerEvent) -> None:
        match event:
            case ResourceUpdated(server, uri):
                self._cache.changed(server, uri)
                self._tell_schemes(server, {scheme_of(uri)})
                title = self._index.known(server).get(uri, {}).get("title")
                for agent in self._agents.concerned(server, uri):
                    self._outbox.resource_updated(agent, server, uri, title if isinstance(title, str) else None)
            case ResourcesSubscribed(server, uris):
                self._cache.subscribed(server, uris)
                self._tell_schemes(
                    server,
                    {
                        name
                        for name, scheme in self._schemes.items()
                        if scheme.is_news(server, frozenset(uri for uri in uris if scheme_of(uri) == name))
                    },
                )
            case ResourcesUnsubscribed(server, uris):
                self._agents.drop(server, uris)
            case ServerReady(server):
                self._cache.changed(server)
            case ServerGone(server):
                self._cache.changed(server)
                self._agents.drop(server)
                for scheme in self._schemes.values():
                    scheme.subscribed.pop(server, None)
            case _:
                pass

    def _tell_schemes(self, server: str, schemes: set[str]) -> None:
        features = self._index.features(server)
        if features is not None and features.subscribe:
            for scheme in schemes & self._schemes.keys():
                self._outbox.changed(self._schemes[scheme].update)

    def _on_list(self, server: str) -> None:
        features, known = self._index.features(server), self._index.known(server)
        self._conflicts.registered(server, known)
        self._announce(server, known)
        if features is not None and not features.subscribe:
            return
        for name, scheme in self._schemes.items():
            now = frozenset(uri for uri in known if scheme_of(uri) == name)
            if features is not None and self._index.is_listed(server):
                self._upstream.want(scheme.update, server, now)
            if scheme.is_changed(server, now):
                self._outbox.changed(scheme.update)
            else:
                _log.debug("MCP server %r: the same %s:// resources as before", server, name)

    def _announce(self, server: str, listing: Listing) -> None:
        outdated = self._index.templates_outdated(server)
        announced, before = self._announced.get(server, (NOTHING, 0))
        # nobody knows whether the templates are others before they are asked for; who has them is told that they may be
        if outdated != before or dict(listing) != dict(announced):
            self._announced[server] = (listing, outdated)
            if self._entered:
                self._outbox.list_changed(server)


_log = logging.getLogger("smcp_computer.resources")

MOST: Final = 200
"""Conflicts that are warned about: servers may list ever new hosts."""


class HostConflicts:
    """Kept per server, so that a change of one list costs that list only. Nothing is blocked."""

    def __init__(self) -> None:
        self._hosts: dict[str, frozenset[str]] = {}
        """By server: its hosts, as URIs that name nothing else."""
        self._warned: set[tuple[str, tuple[str, ...]]] = set()

    def registered(self, server: str, uris: Iterable[str]) -> None:
        # a host stands many times in a long list, and is parsed once
        found = frozenset(_host_alone(uri) for uri in uris if scheme_of(uri) in HOSTED)
        if self._hosts.get(server, NONE) == found:
            return
        self._hosts[server] = found
        for host, servers in host_conflicts(self._hosts):
            if (host, servers) not in self._warned and len(self._warned) < MOST:
                self._warned.add((host, servers))
                _log.warning(
                    "the MCP servers %s use the same host %r; give each its own: a dpe:// URI is routed by its host",
                    " and ".join(map(repr, servers)),
                    host,
                )


def _host_alone(uri: str) -> str:
    return "/".join(uri.split("?", maxsplit=1)[0].split("/", 3)[:3])
