"""Opens the registry: `async with open_registry(settings, bus)`."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from smcp_bus import registry_contract, subjects
from smcp_bus.audit import Trail
from smcp_bus.bus import Incoming, Reply, RequestHandler, once_connected
from smcp_bus.dispatch import Dispatcher
from smcp_bus.headers import CLAIM, NOTIFICATION_ID, PROOF, REQ_ID, SUBJECT
from smcp_bus.nats.bus import Bus
from smcp_bus.subjects import request_handler
from smcp_bus.tracing import bus_spans, counted, log_fields
from smcp_registry.announcer import Announcer
from smcp_registry.audit import Audit, audit_plan, read_records
from smcp_registry.bucket_watch import ConnectionWatch, View, follow_all
from smcp_registry.handlers.rooms import Handlers, RoomRate
from smcp_registry.leases import PATIENCE_S, SETTLE_S, Leases, Owners
from smcp_registry.members_view import MembersView
from smcp_registry.metrics import measure
from smcp_registry.seats import Seats
from smcp_registry.settings import RegistrySettings
from smcp_registry.store import LEASES, MEMBERS, START_S, StoreUnusable, ask_jetstream, make_missing, open_store
from smcp_registry.sweeper import Sweeper
from smcp_service.health import Readiness
from smcp_service.lifecycle import background
from smcp_service.metrics import Metrics

EVENTS: Final = "smcp_registry.events"
"""The logger of what is recorded, too (`smcp_bus.audit`)."""
SAME: Final = (REQ_ID, CLAIM, NOTIFICATION_ID, SUBJECT, PROOF)
"""The headers that are the same in all copies of a request, and not in two requests."""


@dataclass(frozen=True, slots=True)
class Registry:
    readiness: Readiness
    view: MembersView
    leases: Leases


@asynccontextmanager
async def open_registry(
    settings: RegistrySettings,
    bus: Bus,
    *,
    readiness: Readiness | None = None,
    metrics: Metrics | None = None,
    trail: Trail | None = None,
) -> AsyncIterator[Registry]:
    """Raises StoreUnusable: JetStream is not there, or a bucket is not as it has to be."""
    readiness = Readiness() if readiness is None else readiness
    metrics = Metrics() if metrics is None else metrics
    js, lease_s = bus.jetstream(), settings.lease_s
    deadline = asyncio.get_running_loop().time() + START_S
    recorded = audit_plan(settings)
    store = await open_store(bus, js, lease_s=lease_s, replicas=settings.kv_replicas, audit=recorded)
    announcer = Announcer(bus, js, store.members)
    await ask_jetstream("the announcer's consumer cannot be made", announcer.prepare, deadline=deadline)
    connection = ConnectionWatch(bus)
    members, leases = MembersView(lease_s=lease_s), Leases(store.leases, lease_s=lease_s)
    views: dict[str, View] = {MEMBERS: members, LEASES: leases}
    replace_lost = partial(make_missing, js, lease_s=lease_s, replicas=settings.kv_replicas, audit=recorded)
    owners = Owners(
        bus, connection, leases, patience_s=min(PATIENCE_S, lease_s / 2), settle_s=min(SETTLE_S, lease_s / 2)
    )
    audit = Audit(trail or Trail(logging.getLogger(EVENTS)), members, leases)
    seats = Seats(store, owners, audit, move_s=settings.move_s)
    sweeper = Sweeper(store, members, owners, announcer, audit, lease_s=lease_s)
    rate = RoomRate(settings.registry_room_events_per_s, asyncio.get_running_loop().time)
    measure(metrics, sweeper, seats, rate)
    readiness.add("nats", lambda: bus.problem)
    readiness.add("members", lambda: None if members.synced.is_set() else "the view of the members is not caught up")
    readiness.add("leases", lambda: None if leases.synced.is_set() else "the view of the leases is not caught up")
    readiness.add("announcer", lambda: None if announcer.ready else "takes nothing to announce")
    durations = metrics.durations(
        "smcp_registry_request_duration", "Requests over the bus, until they are answered", "event", "outcome"
    )
    limited = rate.before
    rooms = Handlers(bus, seats, members, audit, leases)
    notify = limited(rooms.update)
    dispatcher = Dispatcher(
        {
            "server:join_office": limited(rooms.join_office),
            "server:leave_office": rooms.leave_office,
            "server:list_room": limited(rooms.list_room),
            "server:tool_call_cancel": rooms.tool_call_cancel,
            "server:update_capabilities": limited(rooms.update_capabilities),
            registry_contract.CONFIRM.event: rooms.confirm,
            registry_contract.FIND.event: rooms.find,
            registry_contract.APPROVAL.event: limited(audit.approval),
            registry_contract.LEASE.event: rooms.lease,
            registry_contract.GATEWAY_LEASE.event: rooms.lease,
            registry_contract.ASSERT.event: rooms.assert_members,
            registry_contract.OFFICES.event: rooms.list_offices,
            registry_contract.SHOW_ROOM.event: rooms.show_room,
            registry_contract.RECORDS.event: partial(read_records, bus=bus, js=js),
        },
        otherwise=lambda row: notify if row.notifies is not None else None,
        tracing=bus_spans(),
        observe=log_fields,
        ended=counted(durations.add),
        conclude=audit.concluded,
    )
    try:
        async with background() as tasks:
            work = partial(follow_all, js, views, replace_lost)
            tasks.start(connection.keep("the views of the buckets", work), name="views")
            try:
                async with asyncio.timeout_at(deadline):
                    for view in views.values():
                        await view.synced.wait()
            except TimeoutError:
                raise StoreUnusable(f"the offices could not be read within {START_S:g} s") from None
            tasks.start(connection.keep("the announcer", announcer.run), name="announcer")
            tasks.start(connection.keep("the sweeper", sweeper.run), name="sweeper")
            async with _serving(bus, dispatcher):
                yield Registry(readiness, members, leases)
                readiness.draining = True
    finally:
        connection.close()


def handled_once(handle: RequestHandler) -> RequestHandler:
    """Copies of a request wait for the reply to the first, while that is handled: whoever gets no answer asks up to 20
    times, and a store that is slow would have the more to do. Our client gives each request a `REQ_ID`."""
    running: dict[tuple[object, ...], asyncio.Future[Reply]] = {}

    async def once(incoming: Incoming) -> Reply:
        if REQ_ID not in incoming.headers:
            return await handle(incoming)
        key = (incoming.subject, incoming.body, *map(incoming.headers.get, SAME))
        if key in running:
            return await asyncio.shield(running[key])
        running[key] = first = asyncio.ensure_future(handle(incoming))
        try:
            return await first  # cancelled with it: the registry stops
        finally:
            del running[key]

    return once


@asynccontextmanager
async def _serving(bus: Bus, dispatcher: Dispatcher) -> AsyncIterator[None]:
    served = [
        await once_connected(
            partial(bus.serve, subject, handled_once(request_handler(dispatcher)), queue=subjects.REGISTRY_QUEUE)
        )
        for subject in (
            subjects.SERVER_ALL,
            subjects.HOSTS_LEASE_ALL,
            subjects.HOSTS_GATEWAY_LEASE_ALL,
            subjects.HOSTS_ASSERT_ALL,
            subjects.OPERATORS_ALL,
        )
    ]
    try:
        yield
    finally:
        await asyncio.gather(*(subscription.drain() for subscription in served))
