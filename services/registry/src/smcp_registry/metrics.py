"""The registry's metrics."""

from smcp_bus.dispatch import Ended
from smcp_bus.tracing import counted
from smcp_registry.announcer import Announcer
from smcp_registry.handlers.rooms import RoomRate
from smcp_registry.leases import Leases
from smcp_registry.members_view import MembersView
from smcp_registry.seats import Seats
from smcp_registry.sweeper import Sweeper
from smcp_service.metrics import Metrics


def requests_timed(metrics: Metrics) -> Ended:
    durations = metrics.durations(
        "smcp_registry_request_duration", "Requests over the bus, until they are answered", "event", "outcome"
    )
    return counted(durations.add)


def measure(
    metrics: Metrics,
    view: MembersView,
    leases: Leases,
    seats: Seats,
    sweeper: Sweeper,
    announcer: Announcer,
    rate: RoomRate,
) -> None:
    """Members, offices and leases are those of the whole system, as seen from here."""
    gauge, counter = metrics.gauge, metrics.counter
    gauge("smcp_registry_members", "Members of all offices", view.by_role, label="role")
    gauge("smcp_registry_members_moving", "Members whose seat is kept for a move", lambda: len(view.moving()))
    gauge("smcp_registry_offices", "Offices that have members", lambda: len(view.offices))
    gauge("smcp_registry_owners", "Processes that hold members", lambda: len(view.owners()))
    gauge("smcp_registry_tombstones", "Records of leaves that are not removed yet", lambda: len(view.tombstones()))
    gauge("smcp_registry_leases", "Leases that live", lambda: len(leases))
    gauge(
        "smcp_registry_views_synced",
        "1 while both views follow their buckets, else 0",
        lambda: view.synced and leases.synced,
    )
    gauge("smcp_registry_announcements_behind", "Records that are not announced yet", lambda: announcer.behind)
    counter("smcp_registry_announcements", "Records that this registry announced", lambda: announcer.announced)
    counter("smcp_registry_sweeps", "Sweeps that were finished", lambda: sweeper.sweeps)
    counter(
        "smcp_registry_swept_members", "Members of dead processes that this registry removed", lambda: sweeper.swept
    )
    counter("smcp_registry_claims_refused", "Seats that were refused, by why", lambda: seats.refused, label="why")
    counter("smcp_registry_refusals", "Joins, updates and lists above an office's rate", lambda: rate.refused)
