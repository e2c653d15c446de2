"""Finds out when the desktop or the finder changed (desktop.txt and finder.txt, 变化检测), and has it told.

A changed list counts where the set of its `window://` (or `dpe://`) URIs is another one than before; a changed
resource counts at once. A subscription counts as a change of its resource: what changed before it was told by nobody.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from smcp_computer.mcp.events import ResourcesSubscribed, ResourceUpdated, ServerEvent, ServerEvents
from smcp_computer.resources.conflicts import HostConflicts
from smcp_computer.resources.index import ResourceIndex
from smcp_computer.resources.interests import DESKTOP, FINDER, Interests
from smcp_computer.resources.routing import scheme_of
from smcp_proto.uris import DPE, WINDOW

_log = logging.getLogger("smcp_computer.resources")

HOLDERS: Final[Mapping[str, str]] = {WINDOW: DESKTOP, DPE: FINDER}
"""Schemes, and who is interested in them."""
NONE: Final[frozenset[str]] = frozenset()


@dataclass
class _Scheme:
    """What is known of the URIs of one scheme."""

    tell: Callable[[], None]
    uris: dict[str, frozenset[str]] = field(default_factory=dict)
    """By server, as they were compared last."""


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
        *,
        desktop_changed: Callable[[], None],
        finder_changed: Callable[[], None],
    ) -> None:
        self._index = index
        self._interests = interests
        self._conflicts = HostConflicts()
        self._schemes = {WINDOW: _Scheme(desktop_changed), DPE: _Scheme(finder_changed)}
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
            if now == state.uris.get(server, NONE):
                _log.debug("MCP server %r: the same %s:// resources as before", server, scheme)
                continue
            state.uris[server] = now
            state.tell()

    def _on_event(self, event: ServerEvent) -> None:
        match event:
            case ResourceUpdated(server, uri):
                schemes = {scheme_of(uri)}
            case ResourcesSubscribed(server, before):
                schemes = {
                    scheme for scheme, holder in HOLDERS.items() if any(holder in each for each in before.values())
                }
            case _:
                return
        features = self._index.features(server)
        if features is not None and features.subscribe:
            for scheme in schemes & self._schemes.keys():
                self._schemes[scheme].tell()
