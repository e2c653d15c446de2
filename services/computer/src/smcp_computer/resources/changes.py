"""Turns events of MCP servers into notifications for the office (desktop.txt and finder.txt, 变化检测).

A changed list counts for the desktop (or the finder) where the set of its `window://` (or `dpe://`) URIs is another one
than before; a window with another query is the same window (desktop.txt, 校验规则). A changed resource counts at once.
So does a new subscription: changes before it were not announced.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from smcp_computer.mcp.events import (
    ResourcesSubscribed,
    ResourcesUnsubscribed,
    ResourceUpdated,
    ServerEvent,
    ServerEvents,
    ServerGone,
    ServerReady,
    ServerRemoved,
)
from smcp_computer.metadata_cache import MetadataCache
from smcp_computer.outbox import CAPABILITIES, DESKTOP, FINDER, ComputerOutbox
from smcp_computer.resources.index import NOTHING, Listing, ResourceIndex
from smcp_computer.resources.subscriptions import AgentSubscriptions, UpstreamSubscriptions
from smcp_proto.uris import DPE, HOSTED, WINDOW, host_conflicts, scheme_of, without_query

NONE: Final[frozenset[str]] = frozenset()


@dataclass
class _Scheme:
    update: str
    """The verb of the notification; also the holder of the subscriptions."""
    identity: Callable[[str], str]
    """The key of a URI: two URIs of the same resource share it."""
    listed: dict[str, frozenset[str]] = field(default_factory=dict)
    """Identities."""

    def is_changed(self, server: str, uris: Iterable[str]) -> bool:
        before = self.listed.get(server, NONE)
        now = self.listed[server] = frozenset(map(self.identity, uris))
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
        outbox: ComputerOutbox,
    ) -> None:
        self._index = index
        self._upstream = upstream
        self._agents = agents
        self._cache = cache
        self._outbox = outbox
        self._events = events
        self._hosts: dict[str, frozenset[str]] = {}
        """By server, as URIs that name nothing else."""
        self._schemes: Mapping[str, _Scheme] = {WINDOW: _Scheme(DESKTOP, without_query), DPE: _Scheme(FINDER, str)}
        self._entered = False
        self._capabilities = index.capabilities
        self._announced: dict[str, tuple[Listing, int]] = {}
        """The lists of the servers as the office knows them, and how often a server had announced another one."""
        events.listen(self._on_event)
        index.listen(self._on_list)

    def in_office(self) -> None:
        """This Computer is in its office. Agents that see it enter ask for all lists; later changes are announced."""
        self._entered = True

    def _on_event(self, event: ServerEvent) -> None:
        match event:
            case ResourceUpdated(server, uri):
                self._on_update(server, uri)
            case ResourcesSubscribed(server, uris, is_new):
                self._cache.subscribed(server, uris)
                for name, scheme in self._schemes.items():
                    if is_new and _of_scheme(name, uris):
                        self._tell(server, scheme)
            case ResourcesUnsubscribed(server, uris):
                self._agents.drop(server, uris)
            case ServerReady(server):
                self._cache.changed(server)
            case ServerGone(server):
                self._cache.changed(server)
                self._agents.drop(server)
            case ServerRemoved(server):
                self._on_removal(server)
            case _:
                pass

    def _on_update(self, server: str, uri: str) -> None:
        self._cache.changed(server, uri)
        if (scheme := self._schemes.get(scheme_of(uri))) is not None:
            self._tell(server, scheme)
        title = self._index.known(server).get(uri, {}).get("title")
        for agent in self._agents.concerned(server, uri):
            self._outbox.resource_updated(agent, server, uri, title if isinstance(title, str) else None)

    def _on_removal(self, server: str) -> None:
        self._cache.removed(server)
        self._hosts.pop(server, None)
        self._announced.pop(server, None)
        for scheme in self._schemes.values():
            scheme.listed.pop(server, None)

    def _tell(self, server: str, scheme: _Scheme) -> None:
        features = self._index.features(server)
        if features is not None and features.subscribe:
            self._outbox.changed(scheme.update)

    def _on_list(self, server: str) -> None:
        features, known = self._index.features(server), self._index.known(server)
        if self._index.capabilities != self._capabilities:
            self._capabilities = self._index.capabilities
            self._outbox.changed(CAPABILITIES, capabilities=self._capabilities)
        self._compare_hosts(server, known)
        self._announce(server, known)
        if features is not None and not features.subscribe:
            return
        for name, scheme in self._schemes.items():
            now = _of_scheme(name, known)
            if features is not None and self._index.is_listed(server):
                self._upstream.want(scheme.update, server, now)
            if scheme.is_changed(server, now):
                self._outbox.changed(scheme.update)

    def _announce(self, server: str, listing: Listing) -> None:
        now = (listing, self._index.announced(server))
        if now != self._announced.get(server, (NOTHING, 0)):
            self._announced[server] = now
            if self._entered:
                self._outbox.list_changed(server)

    def _compare_hosts(self, server: str, listing: Listing) -> None:
        # a host stands many times in a long list, and is parsed once
        hosts = frozenset("/".join(without_query(uri).split("/", 3)[:3]) for uri in listing if scheme_of(uri) in HOSTED)
        if self._hosts.get(server, NONE) == hosts:
            return
        self._hosts[server] = hosts
        for host, (first, *others) in host_conflicts(self._hosts):
            why = "give each its own: a dpe:// URI is routed by its host"
            self._events.warn(first, f"uses the same host {host!r} as {' and '.join(map(repr, others))}; {why}")


def _of_scheme(scheme: str, uris: Iterable[str]) -> list[str]:
    return [uri for uri in uris if scheme_of(uri) == scheme]
