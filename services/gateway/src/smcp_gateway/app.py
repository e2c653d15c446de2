"""The gateway: everything put together here, and only here."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from smcp_bus import subjects
from smcp_bus.bus import Bus
from smcp_bus.dispatch import Dispatcher
from smcp_bus.lease import LeaseKeeper
from smcp_bus.registry_client import RegistryClient
from smcp_bus.registry_contract import LeaseRenewal
from smcp_bus.requests import host_route, serve_requests
from smcp_gateway.auth.guard import Guard
from smcp_gateway.background_tasks import BackgroundTasks
from smcp_gateway.calls.owner_probe import OwnerProbe
from smcp_gateway.calls.table import CallRoute, CallTable
from smcp_gateway.computers.relay_computers import RelayComputers
from smcp_gateway.drain import Drain
from smcp_gateway.handlers.relay import Relay
from smcp_gateway.handlers.resources import ReadLimits
from smcp_gateway.handlers.rooms import alive
from smcp_gateway.http_server import HttpServer, open_http_server
from smcp_gateway.metrics import calls_timed, measure
from smcp_gateway.rebalance import Rebalance
from smcp_gateway.rooms.memberships import Memberships
from smcp_gateway.rooms.offices import Generations, Listeners, Offices
from smcp_gateway.rooms.repair import Repair
from smcp_gateway.routes import client_routes, log_fields
from smcp_gateway.settings import GatewaySettings
from smcp_gateway.sockets.packet import Frame
from smcp_gateway.sockets.session import Session, Sessions
from smcp_gateway.sockets.socketio_server import SocketIoServer
from smcp_service.health import Readiness
from smcp_service.lifecycle import background

LAST_TASKS_S: Final = 5.0
"""How long a stopping gateway tells the registry of the members that it had."""
LONGEST_PING_S: Final = 4.0
"""Between two pings: a half-open client is found within 10 s."""
PING_SHARE: Final = 0.35
"""The same as a share of a lease: a client of a gateway that stands still notices it before the lease runs out."""


class GatewayBus(Bus, Protocol):
    """A bus that knows under which credential it is connected."""

    @property
    def credential(self) -> str:
        """The name under which it logged in at NATS."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway that runs."""

    front: HttpServer
    process: str
    sessions: Sessions
    offices: Offices
    computers: RelayComputers
    calls: CallTable
    route: CallRoute
    transport: SocketIoServer
    readiness: Readiness

    @property
    def host(self) -> str:
        """The address on which it listens."""
        return self.front.host

    @property
    def port(self) -> int:
        """The port on which it listens; never 0."""
        return self.front.port

    @property
    def url(self) -> str:
        """Where clients connect."""
        return self.front.url

    def held(self) -> dict[str, int]:
        """How many of what its clients cause it holds now."""
        return {
            "sessions": len(self.sessions),
            "events_in_flight": sum(session.in_flight for session in self.sessions),
            "questions_to_clients": sum(len(session.asks) for session in self.sessions),
            "offices": len(self.offices),
            "calls": len(self.calls),
            "local_requests": len(self.route),
            "computers": len(self.computers),
            "computers_subscriptions": self.computers.subscribed,
            **self.computers.owner.held(),
        }


@asynccontextmanager
async def open_gateway(
    settings: GatewaySettings, bus: GatewayBus, *, front: HttpServer | None = None
) -> AsyncIterator[Gateway]:
    """Serve Socket.IO clients on `bus` while the body runs; leaving it drains.

    Args:
        front: listens already; without it the gateway listens itself.

    Raises:
        Failure: the address cannot be had.
        BusError: the bus is not connected.
    """
    process = uuid.uuid4().hex
    registry = RegistryClient(bus, credential=bus.credential, process=process, lease_s=settings.lease_s)
    sessions, calls, generations = Sessions(), CallTable(), Generations()

    def describe() -> LeaseRenewal:
        return LeaseRenewal(sockets=len(sessions), members=len(sessions.members()), accepting=not transport.draining)

    async with AsyncExitStack() as stack, background() as tasks:
        background_tasks = BackgroundTasks(lambda work: tasks.start(work, name="background task"))

        async def tell(told: Iterable[Session], event: str, body: bytes) -> None:
            await transport.tell(told, event, body)

        def send(session: Session, frame: Frame) -> bool:
            return transport.send(session, frame)

        def room(session: Session) -> Coroutine[Any, Any, None] | None:
            return transport.room(session)

        computers = RelayComputers(
            bus,
            registry,
            background_tasks,
            send=send,
            room=room,
            is_present=lambda office, member: offices.has(office, member),  # noqa: PLW0108 -- it is made below
            unconfirmed=generations.want,
            lease_s=settings.lease_s,
            observe=log_fields,
        )
        offices = Offices(bus, Listeners(tell, computers.cancelled, computers.agent_left), generations)
        memberships = Memberships(
            registry,
            offices,
            computers,
            background_tasks,
            calls,
            generations,
            hang_up=lambda session, why: transport.hang_up(session, why),  # noqa: PLW0108 -- it is made below
        )
        limits = ReadLimits(
            per_s=settings.gateway_reads_per_s,
            burst=settings.gateway_reads_burst,
            clock=asyncio.get_running_loop().time,
        )
        route = CallRoute(bus, computers.serving)
        if front is None:
            front = await stack.enter_async_context(open_http_server(settings))
        dispatcher = client_routes(
            sessions,
            offices,
            memberships,
            computers,
            registry,
            Relay(route, registry, calls, sessions, background_tasks),
            limits,
            calls_timed(front.metrics),
        )
        transport = SocketIoServer(
            sessions,
            dispatcher,
            lambda session, goodbye: memberships.gone(session, goodbye=goodbye),
            max_payload=settings.max_payload,
            ping_s=min(LONGEST_PING_S, PING_SHARE * settings.lease_s),
            guard=front.guard,
        )
        repair = Repair(
            registry,
            sessions,
            offices,
            memberships,
            computers,
            generations,
            describe=describe,
            hang_up=transport.hang_up,
        )

        drain = Drain(
            sessions,
            memberships,
            registry,
            calls,
            hang_up=transport.hang_up,
            unwritten=transport.unsent_bytes,
            move_s=settings.move_s,
        )

        rebalance = Rebalance(
            sessions,
            hang_up=transport.hang_up,
            keep_place=drain.keep_place,
            doubt=generations.want,
            unwritten=transport.unsent_bytes,
            spread_s=settings.rebalance_s,
        )
        lease = LeaseKeeper(
            registry,
            lease_s=settings.lease_s,
            describe=describe,
            on_lapsed=_lapsed(computers, generations),
            on_renewed=rebalance.renewed,
        )

        measure(front.metrics, sessions, offices, calls, computers, lease, lambda: transport.draining)
        readiness = front.readiness
        readiness.add("nats", lambda: bus.problem)
        readiness.add("registry", lambda: None if lease.acquired else "no lease yet")

        stack.callback(bus.watch(generations.on_connection))
        serving = await serve_requests(
            bus,
            Dispatcher({"hosts:alive": partial(alive, sessions=sessions)}),
            subjects.hosts(bus.credential, process, "alive"),
            host_route,
        )
        try:
            for name, work in {
                "owner probe": OwnerProbe(bus, registry, calls, lease_s=settings.lease_s).run(),
                "repair": repair.run(),
                "computers": computers.run(),
                "lease": lease.run(),
                "ping sweep": transport.sweep(),
                "rebalance": rebalance.run(),
                **_guarding(front.guard, transport, drain),
            }.items():
                tasks.start(work, name=name)
            with front.answering(transport.answer):
                try:
                    yield Gateway(front, process, sessions, offices, computers, calls, route, transport, readiness)
                except BaseException:
                    background_tasks.close()  # an error, not a stop: the lease says the rest
                    raise
                readiness.drain()
                transport.draining = True
                rebalance.stop()
                lease.renew_soon()  # the others' fair share is without this one from now on
                await drain.run(within=settings.drain_s)
                computers.stop()
                memberships.stop()
                await background_tasks.settle(within=LAST_TASKS_S)
        finally:
            await route.close()
            await serving.drain()


def _guarding(guard: Guard | None, transport: SocketIoServer, drain: Drain) -> dict[str, Coroutine[Any, Any, None]]:
    """What sees to it that keys are fresh, and that nobody stays whose token is none any more."""
    if guard is None:
        return {}
    return {"keys of tokens": guard.run(), "expiry": transport.end_expired(guard, drain.keep_place)}


def _lapsed(computers: RelayComputers, generations: Generations) -> Callable[[], None]:
    """What is to be done where this process's lease had run out."""

    def lapsed() -> None:
        computers.close_ownership("the lease had run out")
        generations.want()

    return lapsed
