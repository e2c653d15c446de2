"""Which handler is behind which event."""

from collections.abc import Mapping

from smcp_bus.dispatch import Door, Observe
from smcp_bus.dispatch_types import Handler
from smcp_bus.tracing import Tracing
from smcp_proto.catalog import CATALOG
from smcp_proto.catalog_row import Row


class Doors:
    """The door for the events of the catalog, and one for each event that it does not know and that is passed on.

    Args:
        rooms: handlers of the events that the gateway itself understands, by event.
        relay: for every other `client:*`.
        update: for every other `server:update_*`.
    """

    def __init__(
        self, rooms: Mapping[str, Handler], *, relay: Handler, update: Handler, tracing: Tracing, observe: Observe
    ) -> None:
        self._relay = relay
        self._update = update
        self._tracing = tracing
        self._observe = observe
        known = {event: handler for event in CATALOG if (handler := self._passing_on(event)) is not None}
        self._catalog = Door(known | dict(rooms), tracing=tracing, observe=observe)

    def door_for(self, row: Row) -> Door:
        if row.event in CATALOG:
            return self._catalog
        handler = self._passing_on(row.event)
        handlers = {} if handler is None else {row.event: handler}
        return Door(handlers, tracing=self._tracing, observe=self._observe)

    def _passing_on(self, event: str) -> Handler | None:
        if event.startswith("client:"):
            return self._relay
        return self._update if event.startswith("server:update_") else None
