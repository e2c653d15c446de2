"""The gateway's metrics."""

from collections import Counter
from typing import TYPE_CHECKING

from smcp_bus.operations import measure_lease, measure_owner

if TYPE_CHECKING:
    from smcp_gateway.app import Gateway


def measure(gateway: "Gateway") -> None:
    metrics, sessions, unauthenticated = gateway.front.metrics, gateway.sessions, gateway.front.listener.unauthenticated
    calls, computers, authenticator = gateway.calls, gateway.computers, gateway.front.authenticator
    gauge, counter = metrics.gauge, metrics.counter
    counter(
        "smcp_gateway_resources_skipped",
        "Computers left out of lists over a whole office",
        lambda: gateway.lists.skipped,
    )
    gauge("smcp_gateway_sockets", "Clients that are connected", lambda: len(sessions))
    gauge(
        "smcp_gateway_members",
        "Clients that are in an office",
        lambda: {"agent": 0, "computer": 0} | Counter(each.role for each in sessions.members() if each.role),
        label="role",
    )
    gauge("smcp_gateway_offices", "Offices of which members are here", lambda: len(gateway.offices))
    gauge("smcp_gateway_calls_in_flight", "Calls of Agents that are relayed and not answered", lambda: len(calls))
    unanswered = "Events of clients that are not answered"
    gauge("smcp_gateway_events_in_flight", unanswered, lambda: sum(session.in_flight for session in sessions))
    gauge("smcp_gateway_computer_calls", "Calls that run at Computers on Socket.IO", lambda: computers.owner.running)
    gauge("smcp_gateway_draining", "1 while it stops, else 0", lambda: gateway.transport.draining)
    counter(
        "smcp_gateway_moves",
        "Members that were sent to other gateways, and that came from them, with their seats kept",
        lambda: {"away": gateway.repair.kept, "here": gateway.memberships.taken_up},
        label="way",
    )
    asked = "Requests to Computers, by where their owners are: in this process, or behind the bus"
    counter("smcp_gateway_computer_requests", asked, lambda: gateway.relay.requests, label="owner")
    counter(
        "smcp_gateway_connections_refused",
        "Clients without an acceptable token, and those that tried too often",
        lambda: {"token": 0, "throttled": 0} if authenticator is None else authenticator.refusals,
        label="why",
    )
    counter("smcp_gateway_slow_clients", "Clients cut off: they did not read", lambda: gateway.transport.engine.cut_off)
    gauge("smcp_gateway_unauthenticated", "Connections that are not authenticated yet", lambda: len(unauthenticated))
    closed = "Unauthenticated connections that were closed, by the limit they exceeded"
    counter("smcp_gateway_unauthenticated_closed", closed, lambda: unauthenticated.closed, label="why")
    measure_owner(metrics, computers.owner)
    refused = "Events, joins and connections above a quota, and messages whose parts are above their budget"
    quotas, bodies = gateway.quotas, gateway.transport.engine.bodies
    counter("smcp_gateway_quota_refusals", refused, lambda: quotas.refused | {"bodies": bodies.refused}, label="quota")
    measure_lease(metrics, gateway.lease)
