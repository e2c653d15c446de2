"""The notifications of a Computer: of changes of itself, and of its MCP servers' resources."""

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import orjson

from smcp_bus.outbox import LIST_CHANGED, RESOURCES, UPDATED, Key, Notification, Outbox, resources_body
from smcp_computer.finder import MetadataCache
from smcp_computer.mcp import events
from smcp_computer.mcp.fleet import Fleet
from smcp_computer.resources.index import ResourceIndex
from smcp_computer.resources.subscriptions import Subscriptions
from smcp_computer.tools import History
from smcp_proto.uris import DPE, WINDOW, host_conflicts, scheme_of, without_query
from smcp_service.lifecycle import Background

TOOL_LIST: Final = "update_tool_list"
CONFIG: Final = "update_config"
DESKTOP: Final = "update_desktop"
FINDER: Final = "update_finder"
CAPABILITIES: Final = "update_capabilities"

MAX_TITLE: Final = 1000
"""Characters of a title in a notification."""


@dataclass(eq=False, repr=False)
class ComputerOutbox(Outbox):
    _holding: int = field(default=0, init=False)
    _held: dict[str, bytes] = field(default_factory=dict, init=False)

    def held(self) -> dict[str, int]:
        """How many notifications wait, or are being sent, and how often `release` is still to be called."""
        return {"pending": len(self.waiting) + self._holding}

    def state(self) -> frozenset[Notification]:
        """The waiting updates of this Computer itself. Agents that see it enter ask for everything, and need none."""
        return frozenset(each for each in self.waiting if each.key.verb not in RESOURCES)

    def changed(self, verb: str, **content: Any) -> None:
        """An `update_*` of this Computer itself, with `content` beside its name."""
        body = orjson.dumps({"computer": self.computer, **content})
        if self._holding and verb != CONFIG:
            self._held[verb] = body
        else:
            self.put(Key(verb), body)

    def hold(self) -> None:
        """Keep `changed` back, except for the configuration, until `release` was called as often: of each verb there is
        one then."""
        self._holding += 1

    def release(self, *, without: Collection[str] = ()) -> None:
        """`without`: verbs of what is as it was before."""
        self._holding -= 1
        for verb in without:
            self._held.pop(verb, None)
        if not self._holding:
            held, self._held = self._held, {}
            for verb, body in held.items():
                self.put(Key(verb), body)

    def resource_updated(self, agent: str | None, server: str, uri: str, title: str | None) -> None:
        """A resource changed that the Agent has subscribed to. `title`: as the server's list has it."""
        params = {"uri": uri}
        if title is not None:
            params["title"] = title[:MAX_TITLE].encode(errors="ignore").decode()
        named = {"serverId": server} if agent is None else {"serverId": server, "agent": agent}
        body = resources_body(self.office, self.computer, "updated", named, params)
        self.put(Key(UPDATED, server, uri, agent), body)

    def list_changed(self, server: str, *, named: bool) -> None:
        body = resources_body(self.office, self.computer, "list_changed", {"serverId": server} if named else {})
        self.put(Key(LIST_CHANGED, server), body)


SCHEMES: Final = {WINDOW: DESKTOP, DPE: FINDER}
"""The update event of each URI scheme."""


class OfferedResources:
    """What the office may know of the resources of all MCP servers: lists, subscriptions, metadata of documents. Turns
    events of the servers into notifications (desktop.txt and finder.txt, 变化检测).

    Listens for as long as the events last; `history` must hear of each call of a tool.
    Only servers with `resources.subscribe` count for desktop and finder. A changed list counts where the set of its
    `window://` (or `dpe://`) URIs is another one than before; a window with another query is the same window
    (desktop.txt, 校验规则). A changed resource counts at once.
    """

    def __init__(self, fleet: Fleet, outbox: ComputerOutbox, tasks: Background) -> None:
        self.events, self.outbox = fleet.events, outbox
        self.history = History()
        self.index = ResourceIndex(fleet.supervisors, self.events, tasks)
        self.subscriptions = Subscriptions(fleet.supervisors, self.events, tasks, outbox.missed)

        async def read(server: str, uri: str, timeout: float) -> Mapping[str, Any]:
            return await self.index.connection(server).read(uri, timeout=timeout)

        self.cache = MetadataCache(read, tasks, self.subscriptions.subscribed, self.events)
        self._hosts: dict[str, Set[str]] = {}
        """By server."""
        self._listed: dict[tuple[str, str], set[str]] = {}
        """URIs by server and scheme; windows without their queries."""
        self._entered = False
        self._having: set[str] = set()
        """The servers with resources, when one started or ended last."""
        self._capabilities = self.index.capabilities
        self.events.listen(self._on_event)

    def in_office(self) -> None:
        """This Computer is in its office (again). Agents that see it enter ask for all lists; later changes are
        announced. Leaves of Agents, and changes, may have been missed."""
        self._entered = True
        self.subscriptions.drop()

    def changed_all(self) -> None:
        """Another process was this Computer before, or its rights changed: announce everything anew."""
        for verb in (CONFIG, TOOL_LIST, DESKTOP, FINDER):
            self.outbox.changed(verb)
        self.outbox.changed(CAPABILITIES, capabilities=self.index.capabilities)
        self.outbox.missed()

    def _on_event(self, event: events.ServerEvent) -> None:
        match event:
            case events.ResourceUpdated(server, uri):
                self._on_update(server, uri)
            case events.ResourceSubscribed(server, uri):
                self.cache.changed(server, uri)
            case events.ResourcesUnsubscribed(server, uris):
                self.subscriptions.drop(server, uris)
            case events.ServerReady(server):
                self._on_start_or_end(server)
            case events.ServerGone(server):
                self.subscriptions.drop(server)
                self._on_start_or_end(server)
            case events.ResourcesChanged(server):
                self._list_changed(server)
            case events.ResourcesListed(server):
                self._on_list(server)
            case events.ServerRemoved(server):
                self.cache.changed(server)
                self._hosts.pop(server, None)
                for scheme in SCHEMES:
                    self._listed.pop((server, scheme), None)

    def _on_update(self, server: str, uri: str) -> None:
        self.cache.changed(server, uri)
        features, update = self.index.features(server), SCHEMES.get(scheme_of(uri))
        if update is not None and features is not None and features.subscribe:
            self.outbox.changed(update)
        title = self.index.known(server).get(uri, {}).get("title")
        for agent in self.subscriptions.concerned(server, uri):
            self.outbox.resource_updated(agent, server, uri, title if isinstance(title, str) else None)

    def _on_start_or_end(self, server: str) -> None:
        self.cache.changed(server)
        had_resources, self._having = server in self._having, set(self.index.servers())
        self._on_list(server)
        if had_resources or server in self._having:
            self._list_changed(server)

    def _on_list(self, server: str) -> None:
        features, known = self.index.features(server), self.index.known(server)
        if self.index.capabilities != self._capabilities:
            self._capabilities = self.index.capabilities
            self.outbox.changed(CAPABILITIES, capabilities=self._capabilities)
        if self._hosts.get(server, frozenset()) != known.hosts:
            self._hosts[server] = known.hosts
            for host, (first, *others) in islice(host_conflicts(self._hosts), events.MOST_WARNINGS):
                why = "give each its own: a dpe:// URI is routed by its host"
                self.events.warn(first, f"uses the same host {host!r} as {' and '.join(map(repr, others))}; {why}")
        if features is not None and not features.subscribe:
            return
        if features is not None and self.index.is_listed(server):
            self.subscriptions.want(server, [uri for uri in known if scheme_of(uri) in SCHEMES])
        for scheme, update in SCHEMES.items():
            uris = [uri for uri in known if scheme_of(uri) == scheme]
            now = set(map(without_query, uris) if scheme == WINDOW else uris)
            if now != self._listed.get((server, scheme), set()):
                self.outbox.changed(update)
            self._listed[server, scheme] = now

    def _list_changed(self, server: str) -> None:
        if self._entered:
            self.outbox.list_changed(server, named=self.index.is_for_all(server))
