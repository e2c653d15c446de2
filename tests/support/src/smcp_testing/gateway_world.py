"""Gateways and registries in one process over a real nats-server, with clients and Computers to talk to them."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
import socketio

from smcp_bus import subjects
from smcp_bus.bus import Incoming, Reply
from smcp_bus.nats_bus import NatsBus, open_bus
from smcp_bus.nats_config import BusConfig
from smcp_bus.registry_client import RegistryClient
from smcp_bus.registry_contract import AliveAnswer, Claim
from smcp_gateway.app import Gateway, open_gateway
from smcp_gateway.settings import GatewaySettings
from smcp_registry.app import open_registry
from smcp_registry.settings import RegistrySettings

NAMESPACE: Final = "/smcp"
LEASE_S: Final = 2.0
MIB: Final = 1024 * 1024


@dataclass
class Client:
    """A plain python-socketio client: what it was told stands in `events`."""

    sio: Any
    events: list[tuple[str, Any]] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def call(self, event: str, payload: Any = None, *, timeout: float = 10.0) -> Any:
        return await self.sio.call(event, payload, namespace=NAMESPACE, timeout=timeout)

    async def join(self, role: str, name: str, office: str) -> Any:
        return await self.call("server:join_office", {"role": role, "name": name, "office_id": office})

    def told(self, event: str) -> list[Any]:
        return [payload for name, payload in self.events if name == event]


@asynccontextmanager
async def connected(url: str, *, auth: Any = None, take: int | None = None, **options: Any) -> AsyncIterator[Client]:
    """A connected client, over WebSocket unless `transports` says otherwise; `take`: bytes of its largest message."""
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
    await sio.connect(url, namespaces=[NAMESPACE], auth=auth, **options)
    try:
        yield client
    finally:
        await sio.disconnect()


Serve = Callable[[str, Incoming], Awaitable[Reply]]
"""A Computer's behaviour: verb and request in, reply out."""


@dataclass
class TinyComputer:
    """A member of an office that answers its subject with a function."""

    bus: NatsBus
    registry: RegistryClient
    claim: Claim
    subscription: Any


@dataclass
class World:
    """What runs."""

    nats_url: str
    gateways: list[Gateway]
    buses: list[NatsBus]

    @property
    def url(self) -> str:
        return self.gateways[0].url

    @asynccontextmanager
    async def computer(
        self, office: str, name: str, serve: Serve, *, member: bool = True, served: bool = True
    ) -> AsyncIterator[TinyComputer]:
        """A native Computer with a bus of its own."""
        async with open_bus(BusConfig(url=self.nats_url, name="tiny", drain_timeout=0.2)) as bus:
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
                await registry.join(office, "computer", name, claim, body)
            yield TinyComputer(bus, registry, claim, subscription)


@asynccontextmanager
async def gateway_world(
    nats_url: str,
    *,
    gateways: int = 1,
    registry: bool = True,
    drain_s: float = 1.0,
    max_payload: int = 32 * MIB,
    lease_s: float = LEASE_S,
) -> AsyncIterator[World]:
    """A registry and gateways, each on a bus of its own. A test that keeps the process busy wants a longer lease."""
    async with AsyncExitStack() as stack:

        async def bus() -> NatsBus:
            config = BusConfig(url=nats_url, max_payload=max_payload, drain_timeout=0.5)
            return await stack.enter_async_context(open_bus(config))

        if registry:
            settings = RegistrySettings(nats_url=nats_url, lease_s=lease_s)
            await stack.enter_async_context(open_registry(settings, await bus()))
        running, buses = [], []
        for _ in range(gateways):
            buses.append(await bus())
            gateway_settings = GatewaySettings(
                nats_url=nats_url, gateway_port=0, lease_s=lease_s, drain_s=drain_s, max_payload=max_payload
            )
            running.append(await stack.enter_async_context(open_gateway(gateway_settings, buses[-1])))
        yield World(nats_url, running, buses)


def reply(value: Any) -> Reply:
    """A plain success."""
    return Reply(orjson.dumps(value))
