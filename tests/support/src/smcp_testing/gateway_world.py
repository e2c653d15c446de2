"""Gateways and registries in one process over a real nats-server, with clients and Computers to talk to them."""

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import orjson
import socketio

from smcp_bus import subjects
from smcp_bus.audit import Trail
from smcp_bus.bus import Incoming, Reply
from smcp_bus.nats.bus import Bus, open_bus
from smcp_bus.nats.config import BusConfig, Credentials
from smcp_bus.registry_client import RegistryClient
from smcp_bus.registry_contract import AliveAnswer, AssertedMember, Assertion, Claim, Member
from smcp_gateway.app import EVENTS, Gateway, open_gateway
from smcp_gateway.http_server import open_http_server
from smcp_gateway.settings import GatewaySettings
from smcp_registry.app import Registry, open_registry
from smcp_registry.settings import RegistrySettings
from smcp_testing.bad_bus import BadBus
from smcp_testing.bad_buses import BadBuses
from smcp_testing.guarded_nats import GuardedUrl, Kind

NAMESPACE: Final = "/smcp"
LEASE_S: Final = 10.0
SHORT_LEASE_S: Final = 2.0
"""For worlds in which a lease is to run out. A process that stands still for as long loses its members, so no other
world should have it: many services share one process, and one machine."""
MIB: Final = 1024 * 1024
WorldBus = Bus | BadBus
PATIENCE_S: Final = 60.0


@dataclass
class Client:
    """A plain python-socketio client. `events` has the notifications that it received."""

    sio: Any
    events: list[tuple[str, Any]] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def call(self, event: str, payload: Any = None, *, timeout: float = 60.0) -> Any:
        return await self.sio.call(event, payload, namespace=NAMESPACE, timeout=timeout)

    async def join(self, role: str, name: str, office: str) -> Any:
        return await self.call("server:join_office", {"role": role, "name": name, "office_id": office})

    def told(self, event: str) -> list[Any]:
        return [payload for name, payload in self.events if name == event]


@asynccontextmanager
async def connected(
    url: str, *, auth: Any = None, take: int | None = None, flat_errors: bool = True, **options: Any
) -> AsyncIterator[Client]:
    """A connected client, over WebSocket unless `transports` says otherwise.

    Args:
        take: bytes of its largest message. Such a client has patience, as the Agent SDK has: engine.io's own waits no
            longer for a whole message than for a ping, and 32 MiB take longer on a machine that has much to do.
        flat_errors: whether it says that it reads flat errors (where `auth` is no other thing than an object).
    """
    if flat_errors and (auth is None or isinstance(auth, dict)):
        auth = {"flat_errors": True, **(auth or {})}
    extra = {} if take is None else {"max_msg_size": take}
    untyped: Any = socketio.AsyncClient
    sio = untyped(reconnection=False, websocket_extra_options=extra)
    client = Client(sio)

    async def told(event: str, payload: Any = None) -> None:
        client.events.append((event, payload))

    async def gone(*_: object) -> None:
        client.gone.set()

    sio.on("*", told, namespace=NAMESPACE)
    sio.on("disconnect", gone, namespace=NAMESPACE)
    options.setdefault("transports", ["websocket"])
    options.setdefault("wait_timeout", 15)  # the second of its default says more of the machine than of the gateway
    try:
        await sio.connect(url, namespaces=[NAMESPACE], auth=auth, **options)
    except BaseException:
        if sio.eio.http is not None:  # engine.io leaves it open where a WebSocket is refused
            await sio.eio.http.close()
        raise
    if take is not None:
        sio.eio.ping_timeout = PATIENCE_S
    try:
        yield client
    finally:
        await sio.disconnect()


Serve = Callable[[str, Incoming], Awaitable[Reply]]
"""A Computer's behaviour: verb and request in, reply out."""


@dataclass
class TinyComputer:
    """A member of an office that answers its subject with a function."""

    bus: WorldBus
    registry: RegistryClient
    claim: Claim
    subscription: Any

    async def moves(self, office: str, name: str, world: "World") -> AssertedMember:
        """It is marked as moving, as a gateway marks Computers that it owns; a host's credential is not for that.

        So the test says it. `world` is where.
        """
        said = Member(office=office, role="computer", name=name, claim=self.claim, moving=True)
        async with world.bus("moving") as bus:
            registry = RegistryClient(bus, credential=self.claim.credential, process=self.claim.process)
            (answer,) = (await registry.assert_members(Assertion(members=[said]))).members
        return answer


@dataclass
class World:
    """What runs. `buses` are the gateways'."""

    nats_url: str
    gateways: list[Gateway]
    buses: list[Bus]
    registries: list[Registry] = field(default_factory=list)
    bad: BadBuses | None = None

    @property
    def url(self) -> str:
        return self.gateways[0].url

    @property
    def health_url(self) -> str:
        """Where `/metrics` is."""
        return self.gateways[0].front.health.url

    @asynccontextmanager
    async def bus(
        self, name: str, *, drain_s: float = 0.2, credentials: Credentials | None = None
    ) -> AsyncIterator[WorldBus]:
        """One more bus, as bad as the others. Without credentials it is the test's own, and may do everything."""
        config = BusConfig(url=self.nats_url, name=name, drain_timeout=drain_s, credentials=credentials)
        async with open_bus(config) as sound:
            if self.bad is None:
                yield sound
            else:
                async with self.bad.over(sound) as bad:
                    yield bad

    async def host(self, office: str, name: str) -> Credentials | None:
        """The credential of a native Computer; None where nats-server asks for none."""
        nats_url = self.nats_url
        return await nats_url.nats.computer(office, name) if isinstance(nats_url, GuardedUrl) else None

    @asynccontextmanager
    async def computer(
        self, office: str, name: str, serve: Serve, *, member: bool = True, served: bool = True
    ) -> AsyncIterator[TinyComputer]:
        """A native Computer with a bus of its own."""
        async with self.bus("tiny", credentials=await self.host(office, name)) as bus:
            registry = RegistryClient(bus, credential=bus.credential, process=bus.process)
            claim = Claim(
                session=bus.process,
                credential=bus.credential,
                process=bus.process,
                incarnation=uuid.uuid4().hex,
                identity=name,
            )

            async def alive(_: Incoming) -> Reply:
                return Reply(AliveAnswer().model_dump_json().encode())

            async def handle(incoming: Incoming) -> Reply:
                return await serve(subjects.verb_of(incoming.subject), incoming)

            await bus.serve(subjects.hosts(bus.credential, bus.process, "alive"), alive)
            subscription = None
            if served:
                subscription = await bus.serve(subjects.client_all(office, name), handle, queue=subjects.OWNER_QUEUE)
            if member:
                body = orjson.dumps({"role": "computer", "name": name, "office_id": office})
                await registry.join((office, "computer", name), claim, body)
            yield TinyComputer(bus, registry, claim, subscription)


@asynccontextmanager
async def gateway_world(
    nats_url: str,
    *,
    gateways: int = 1,
    registries: int = 1,
    registry: bool = True,
    kv_replicas: int = 1,
    drain_s: float = 1.0,
    max_payload: int = 32 * MIB,
    lease_s: float = LEASE_S,
    move_s: float = 30.0,
    bad: BadBuses | None = None,
    pings: bool = False,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> AsyncIterator[World]:
    """Registries and gateways, each on a bus of its own, with the permissions of its credential.

    A test that keeps the process busy wants a longer lease.

    Args:
        registry: False: there are registries already.
        kv_replicas: on how many nodes of NATS the rooms are kept.
        bad: makes the buses bad.
        pings: clients are pinged as the lease says it. Otherwise a client has a minute to answer: services and clients
            share a process, and on a busy machine it may be late by seconds.
        settings: more of the gateways'. Gateways do not rebalance their clients, unless it says so (`rebalance_s`):
            tests choose which gateway has whom. A short `lease_s` here renews leases often, and none runs out.
    """
    async with AsyncExitStack() as stack:
        world = World(nats_url, [], [], bad=bad)

        async def bus(kind: Kind, number: int) -> tuple[Bus, WorldBus]:
            config = BusConfig(
                url=nats_url,
                name=f"{kind}-{number}",
                max_payload=max_payload,
                drain_timeout=0.5,
                credentials=await nats_url.nats.service(kind) if isinstance(nats_url, GuardedUrl) else None,
            )
            sound = await stack.enter_async_context(open_bus(config))
            return sound, sound if bad is None else await stack.enter_async_context(bad.over(sound))

        for number in range(registries if registry else 0):
            registry_settings = RegistrySettings(
                nats_url=nats_url, lease_s=lease_s, move_s=move_s, kv_replicas=kv_replicas
            )
            _, used = await bus("registry", number)
            world.registries.append(await stack.enter_async_context(open_registry(registry_settings, used)))
        for number in range(gateways):
            sound, used = await bus("gateway", number)
            world.buses.append(sound)
            gateway_settings = GatewaySettings(
                nats_url=nats_url,
                gateway_port=0,
                drain_s=drain_s,
                move_s=move_s,
                max_payload=max_payload,
                **{"lease_s": lease_s, "rebalance_s": 0.0, **settings},
            )
            front = await stack.enter_async_context(open_http_server(gateway_settings))
            trail = Trail(logging.getLogger(EVENTS))
            gateway = await stack.enter_async_context(open_gateway(gateway_settings, used, front=front, trail=trail))
            if not pings:
                gateway.transport.engine.ping_interval = gateway.transport.engine.ping_timeout = PATIENCE_S
            world.gateways.append(gateway)
        yield world


def reply(value: Any) -> Reply:
    """A plain success."""
    return Reply(orjson.dumps(value))
