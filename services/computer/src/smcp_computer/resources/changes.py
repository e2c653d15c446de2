"""Finds out when the desktop or the finder changed (desktop.txt and finder.txt, 变化检测), and has it told.

A changed list counts where the set of its `window://` (or `dpe://`) URIs is another one than before; a window with
another query is the same window (desktop.txt, 校验规则). A changed resource counts at once. A subscription counts as a
change of its resource: what changed before it was told by nobody.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from smcp_computer.mcp.events import ResourcesSubscribed, ResourceUpdated, ServerEvent, ServerEvents
from smcp_computer.resources.conflicts import HostConflicts
from smcp_computer.resources.index import ResourceIndex
from smcp_computer.resources.interests import DESKTOP, FINDER, Interests
from smcp_proto.uris import DPE, WINDOW
from smcp_proto.uris.identity import scheme_of, without_query

_log = logging.getLogger("smcp_computer.resources")

HOLDERS: Final[Mapping[str, str]] = {WINDOW: DESKTOP, DPE: FINDER}
"""Schemes, and who is interested in them."""
NONE: Final[frozenset[str]] = frozenset()


@dataclass
class _Scheme:
    """What is known of the URIs of one scheme, by server."""

    tell: Callable[[], None]
    identity: Callable[[str], str]
    """Of a URI: what two URIs of the same resource share."""
    uris: dict[str, frozenset[str]] = field(default_factory=dict)
    """As they were listed last."""
    respelled: dict[str, frozenset[str]] = field(default_factory=dict)
    """Those of them that name what the list before named otherwise, and that are not subscribed to yet."""

    def is_changed(self, server: str, uris: frozenset[str]) -> bool:
        """Whether these are other resources than those known; they are known from now on."""
        before = self.uris.get(server, NONE)
        self.uris[server] = uris
        if frozenset(map(self.identity, uris)) != frozenset(map(self.identity, before)):
            self.respelled.pop(server, None)
            return True
        if uris != before:
            self.respelled[server] = (self.respelled.get(server, NONE) | (uris - before)) & uris
        return False

    def is_news(self, server: str, subscribed: frozenset[str]) -> bool:
        """Whether one of these is subscribed to for the first time, and not only under another URI than before."""
        respelled = self.respelled.get(server, NONE)
        if subscribed & respelled:
            self.respelled[server] = respelled - subscribed
        return bool(subscribed - respelled)


class ResourceChanges:
    """Only servers with `resources.subscribe` count.

    Args:
        desktop_changed, finder_changed: called for each change; they must not block.
    """

    def __init__(
        self,
        index: ResourceIndex,
        interests: Interests,
        events: ServerEvents,
        conflicts: HostConflicts,
        *,
        desktop_changed: Callable[[], None],
        finder_changed: Callable[[], None],
    ) -> None:
        self._index = index
        self._interests = interests
        self._conflicts = conflicts
        self._schemes = {WINDOW: _Scheme(desktop_changed, without_query), DPE: _Scheme(finder_changed, str)}
        index.listen(self._listed)
        events.listen(self._on_event)

    def _listed(self, server: str) -> None:
        """A server's list was taken anew, or it came or went."""
        features, known = self._index.features(server), self._index.known(server)
        self._conflicts.registered(server, known)
        if features is not None and not features.subscribe:
            return
        for scheme, state in self._schemes.items():
            now = frozenset(uri for uri in known if scheme_of(uri) == scheme)
            if features is not None and self._index.is_listed(server):
                self._interests.want(HOLDERS[scheme], server, now)
            if state.is_changed(server, now):
                state.tell()
            else:
                _log.debug("MCP server %r: the same %s:// resources as before", server, scheme)

    def _on_event(self, event: ServerEvent) -> None:
        match event:
            case ResourceUpdated(server, uri):
                schemes = {scheme_of(uri)}
            case ResourcesSubscribed(server, before):
                schemes = {
                    scheme
                    for scheme, holder in HOLDERS.items()
                    if self._schemes[scheme].is_news(server, frozenset(uri for uri in before if holder in before[uri]))
                }
            case _:
                return
        features = self._index.features(server)
        if features is not None and features.subscribe:
            for scheme in schemes & self._schemes.keys():
                self._schemes[scheme].tell()
