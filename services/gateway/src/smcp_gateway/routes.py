"""The events that clients may send, and the handler of each."""

from functools import partial

from smcp_bus.dispatch import Call, Dispatcher, Ended, Handler
from smcp_bus.registry_client import RegistryClient
from smcp_bus.tracing import client_spans, office_of, trace_id_of
from smcp_gateway.computers.relay_computers import RelayComputers
from smcp_gateway.handlers.list_resources import ListResources
from smcp_gateway.handlers.relay import Relay
from smcp_gateway.handlers.resources import ReadLimits, resource_updated
from smcp_gateway.handlers.rooms import join_office, leave_office, list_room, update
from smcp_gateway.rooms.memberships import Memberships
from smcp_gateway.rooms.offices import Offices
from smcp_gateway.sockets.session import Sessions
from smcp_proto.catalog import Row, upstream
from smcp_service.logging import bind_call


def client_routes(
    sessions: Sessions,
    offices: Offices,
    memberships: Memberships,
    computers: RelayComputers,
    registry: RegistryClient,
    relay: Relay,
    limits: ReadLimits,
    ended: Ended,
) -> Dispatcher:
    """The dispatcher behind the Socket.IO server."""
    listing = limits.before(ListResources(relay, offices))
    showing = limits.before(relay.with_reply_limit)
    metered_relay = limits.before(relay)
    updating: Handler = partial(update, sessions=sessions, registry=registry, computers=computers)

    def fallback(row: Row) -> Handler | None:
        """Events that are passed on without being understood: those of the catalog, and those that come later."""
        if row.event.startswith("client:"):
            return metered_relay if row.metered else relay
        is_said_by_a_computer = row.event.startswith("server:update_") or upstream(row) is not None
        return updating if is_said_by_a_computer else None

    return Dispatcher(
        {
            "server:join_office": partial(join_office, sessions=sessions, memberships=memberships),
            "server:leave_office": partial(leave_office, sessions=sessions, memberships=memberships),
            "server:list_room": partial(list_room, sessions=sessions, offices=offices, registry=registry),
            "server:tool_call_cancel": relay.cancel,
            "client:get_desktop": showing,
            "client:get_finder": showing,
            "client:resources/list": listing,
            "client:resources/templates/list": listing,
            "notify:resources/updated": partial(resource_updated, computers=computers),
        },
        otherwise=fallback,
        tracing=client_spans(),
        observe=log_fields,
        ended=ended,
    )


def log_fields(call: Call) -> bind_call:
    """What stands on each line of the log that is written in the middle of a call."""
    return bind_call(req_id=call.req_id, office=office_of(call), trace_id=partial(trace_id_of, call))
