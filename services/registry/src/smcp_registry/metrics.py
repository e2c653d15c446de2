"""The registry's metrics."""

from smcp_registry.handlers.rooms import RoomRate
from smcp_registry.seats import Seats
from smcp_registry.sweeper import Sweeper
from smcp_service.metrics import Metrics


def measure(metrics: Metrics, sweeper: Sweeper, seats: Seats, rate: RoomRate) -> None:
    """Members, offices and leases are those of the whole system, as seen from here."""
    gauge, counter, view, leases = metrics.gauge, metrics.counter, sweeper.view, sweeper.owners.leases
    gauge("smcp_registry_members", "Members of all offices", view.by_role, label="role")
    gauge("smcp_registry_members_moving", "Members whose seat is kept for a move", lambda: len(view.moving()))
    gauge("smcp_registry_offices", "Offices that have members", lambda: len(view.offices))
    gauge("smcp_registry_tombstones", "Records of leaves that are not removed yet", lambda: len(view.tombstones))
    synced = "1 while both views follow their buckets, else 0"
    gauge("smcp_registry_views_synced", synced, lambda: view.synced.is_set() and leases.synced.is_set())
    gauge("smcp_registry_announcements_behind", "Records that are not announced yet", lambda: sweeper.announcer.behind)
    counter("smcp_registry_swept_members", "Members of dead processes that were removed", lambda: sweeper.swept)
    counter("smcp_registry_claims_refused", "Seats that were refused, by why", lambda: seats.refused, label="why")
    counter("smcp_registry_refusals", "Joins, updates and lists above an office's rate", lambda: rate.refused)
