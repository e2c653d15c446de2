"""Events that the gateway passes on without understanding them, those of the catalog and those that come later."""

from smcp_bus.dispatch import Handler
from smcp_proto.catalog import Row, upstream


class PassingOn:
    """Chooses the handler of an event that the gateway has none of its own for.

    Args:
        relay: for `client:*`: to the Computer that it names.
        update: for `server:update_*`, and for the notifications that a Computer may say itself: to the registry, which
            tells the office.
    """

    def __init__(self, *, relay: Handler, update: Handler) -> None:
        self._relay = relay
        self._update = update

    def __call__(self, row: Row) -> Handler | None:
        """The handler of an event; None: it is not passed on."""
        if row.event.startswith("client:"):
            return self._relay
        said = row.event.startswith("server:update_") or upstream(row) is not None
        return self._update if said else None
