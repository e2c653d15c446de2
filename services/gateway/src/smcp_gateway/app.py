"""The gateway: everything put together here, and only here."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import orjson
from aiohttp import web

from smcp_bus import subjects
from smcp_bus.bus import Bus
from smcp_bus.dispatch import Door
from smcp_bus.dispatch_types import Call
from smcp_bus.errors import BusError
from smcp_bus.lease import LeaseKeeper
from smcp_bus.registry_client import RegistryClient
from smcp_bus.registry_contract import LeaseRenewal
from smcp_bus.serving import host_route, serve_door
from smcp_bus.tracing import client_spans, office_of, trace_id_of
from smcp_gateway.call_watch import CallWatch
from smcp_gateway.calls import CallTable, PendingCall
from smcp_gateway.errands import Errands
from smcp_gateway.handlers.alive import alive
from smcp_gateway.handlers.cancel import cancel
from smcp_gateway.handlers.join_office import join_office
from smcp_gateway.handlers.leave_office import leave_office
from smcp_gateway.handlers.list_room import list_room
from smcp_gateway.handlers.relay import Relay
from smcp_gateway.handlers.update import update
from smcp_gateway.handshake import bounded_upload, version_rule
from smcp_gateway.memberships import Memberships
from smcp_gateway.offices import Offices
from smcp_gateway.passing_on import PassingOn
from smcp_gateway.repair import Generations, Repair
from smcp_gateway.session import Session, Sessions
from smcp_gateway.settings import GatewaySettings
from smcp_gateway.socketio_server import SocketIoServer
from smcp_proto.errors import SmcpError
from smcp_service.failure import Failure
from smcp_service.health import Readiness, health_routes
from smcp_service.lifecycle import background
from smcp_service.logging import bind_call, get_logger

LAST_ERRANDS_S: Final = 5.0
"""How long a stopping gateway tells the registry of the members that it had."""
LEASE_PAUSE_S: Final = 0.5
SHUTDOWN_S: Final = 1.0
"""How long connections may take to end after they were told to (seconds)."""

_log = get_logger("smcp_gateway.app")


class GatewayBus(Bus, Protocol):
    """A bus that knows under which credential it is connected."""

    @property
    def credential(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway that runs."""

    host: str
    port: int
    process: str
    sessions: Sessions
    offices: Offices
    calls: CallTable
    readiness: Readiness

    @property
    def url(self) -> str:
        """Where clients connect."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


@asynccontextmanager
async def open_gateway(settings: GatewaySettings, bus: GatewayBus) -> AsyncIterator[Gateway]:
    """Serve Socket.IO clients on `bus` while the body runs; leaving it drains.

    Raises:
        Failure: the address cannot be had.
        BusError: the bus is not connected.
    """
    process = uuid.uuid4().hex
    registry = RegistryClient(bus, credential=bus.credential, process=process)
    sessions, calls, generations = Sessions(), CallTable(), Generations()

    def describe() -> LeaseRenewal:
        return LeaseRenewal(sockets=len(sessions), members=len(sessions.members()))

    async with background() as tasks:
        errands = Errands(lambda work: tasks.start(work, name="errand"))

        def gone(session: Session) -> None:
            ended = calls.abandon(session.id)
            memberships.gone(session, [call.req_id for call in ended if call.tracked])

        def timed_out(call: PendingCall) -> None:
            if call.tracked:
                body = orjson.dumps({"agent": call.agent, "req_id": call.req_id})
                errands.once(
                    "cancelling a call that timed out",
                    lambda: registry.tell(call.office, "agent", call.agent, "tool_call_cancel", body),
                )

        async def tell(told: Iterable[Session], event: str, body: bytes) -> None:
            await transport.tell(told, event, body)

        offices = Offices(bus, tell)
        memberships = Memberships(registry, offices, errands, lambda: generations.current)
        door = Door(
            {
                "server:join_office": partial(join_office, sessions=sessions, memberships=memberships),
                "server:leave_office": partial(leave_office, sessions=sessions, memberships=memberships),
                "server:list_room": partial(list_room, sessions=sessions, registry=registry),
                "server:tool_call_cancel": partial(cancel, registry=registry, calls=calls),
            },
            otherwise=PassingOn(
                relay=Relay(bus, registry, calls, timed_out, move_s=settings.move_s),
                update=partial(update, registry=registry),
            ),
            tracing=client_spans(),
            observe=_log_fields,
        )
        transport = SocketIoServer(sessions, door, gone, max_payload=settings.max_payload)
        repair = Repair(
            registry, sessions, offices, memberships, generations, describe=describe, hang_up=transport.hang_up
        )
        lease = _Lease(registry, describe, generations, lease_s=settings.lease_s)

        readiness = Readiness()
        readiness.add("nats", lambda: None if bus.connected else "not connected")
        readiness.add("registry", lambda: None if lease.acquired else "no lease yet")

        unwatch = bus.watch(generations.on_connection)
        alive_subject = subjects.hosts(bus.credential, process, "alive")
        serving = await serve_door(
            bus, Door({"hosts:alive": partial(alive, sessions=sessions)}), alive_subject, host_route
        )
        try:
            tasks.start(CallWatch(bus, calls, lease_s=settings.lease_s).run(), name="call watch")
            tasks.start(repair.run(), name="repair")
            tasks.start(lease.run(), name="lease")
            tasks.start(transport.sweep(), name="ping sweep")
            async with _listening(settings, transport, readiness) as (host, port, stop_listening):
                try:
                    yield Gateway(host, port, process, sessions, offices, calls, readiness)
                except BaseException:
                    errands.close()  # an error, not a stop: the lease says the rest
                    raise
                readiness.drain()
                await stop_listening()
                await transport.drain(within=settings.drain_s)
                await errands.settle(within=LAST_ERRANDS_S)
        finally:
            unwatch()
            await serving.drain()


class _Lease:
    """This process's lease: taken as soon as a registry can be reached, then kept."""

    def __init__(
        self,
        registry: RegistryClient,
        describe: Callable[[], LeaseRenewal],
        generations: Generations,
        *,
        lease_s: float,
    ) -> None:
        async def lapsed() -> None:
            generations.want()

        self._keeper = LeaseKeeper(registry, lease_s=lease_s, describe=describe, on_lapsed=lapsed)
        self.acquired = False

    async def run(self) -> None:
        while not self.acquired:
            try:
                await self._keeper.acquire()
            except (BusError, SmcpError) as error:
                _log.warning("no registry gives a lease yet", error=type(error).__name__)
                await asyncio.sleep(LEASE_PAUSE_S)
            else:
                self.acquired = True
        await self._keeper.run()


@asynccontextmanager
async def _listening(
    settings: GatewaySettings, transport: SocketIoServer, readiness: Readiness
) -> AsyncIterator[tuple[str, int, Callable[[], Awaitable[None]]]]:
    """The HTTP server: its address, and how to stop taking connections while those that stand go on."""
    app = web.Application(middlewares=[version_rule, bounded_upload])
    app.add_routes(health_routes(readiness))
    transport.attach(app)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    site = web.TCPSite(runner, settings.gateway_host, settings.gateway_port, backlog=1024)
    try:
        try:
            await site.start()
        except OSError as error:
            where = f"{settings.gateway_host}:{settings.gateway_port}"
            raise Failure(f"cannot listen on {where}: {error.strerror or error}") from error
        address = runner.addresses[0]
        yield str(address[0]), int(address[1]), site.stop
    finally:
        await runner.cleanup()


def _log_fields(call: Call) -> bind_call:
    return bind_call(req_id=call.req_id, office=office_of(call), trace_id=partial(trace_id_of, call))
