"""The Computer over NATS (`open_computer`), its membership, and the process with its health port (`open_service`)."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Final, Unpack
from uuid import uuid4

import orjson

from smcp_bus import registry_contract, subjects
from smcp_bus.audit_sinks import ApprovalSink, open_trail
from smcp_bus.bus import BusError, ConnectionState, Incoming, NoticeHandler, Subscription, once_connected
from smcp_bus.callers import SeatKey
from smcp_bus.dispatch import Call
from smcp_bus.headers import EPOCH, SUBJECT
from smcp_bus.nats.bus import Bus
from smcp_bus.nats.config import Credentials
from smcp_bus.operations import measure_lease, open_service_bus
from smcp_bus.ownership import MAX_REQUESTS, Ownership, owned
from smcp_bus.registry_client import LeaseKeeper, RegistryClient
from smcp_bus.registry_contract import AliveAnswer, AliveQuestion, Claim, LeaseRenewal, same_tenure
from smcp_bus.subjects import request_handler, serve_requests
from smcp_bus.tracing import bus_spans, caused_by
from smcp_computer.computer import EVENTS, Computer, Options, hinted
from smcp_computer.config.file import ComputerConfig
from smcp_computer.control import open_control
from smcp_computer.mcp.fleet import DRAIN_S
from smcp_computer.settings import ComputerSettings, token_of
from smcp_computer.terminal import open_terminal
from smcp_proto.backoff import Backoff
from smcp_proto.errors import NotAllowed, SmcpError
from smcp_proto.member_names import encode_name
from smcp_proto.schemas import EnterOfficeNotification
from smcp_proto.schemas.base import AgentCallData
from smcp_service.health import Readiness, Stats, serve_health
from smcp_service.lifecycle import background
from smcp_service.metrics import Metrics

_log = logging.getLogger("smcp_computer.app")

RELEASE_S: Final = 6.0
"""How long releasing the seat may take, as registries may be restarted at the same time; otherwise one finds out by
itself."""


@asynccontextmanager
async def open_computer(settings: ComputerSettings, bus: Bus, **options: Unpack[Options]) -> AsyncIterator[Computer]:
    """Run the MCP servers of this host and answer for them in the settings' office, over `bus`.

    Entered once the subjects are served; joining goes on in the background, for as long as it takes. On leaving, it
    starts no new calls, leaves the office (with `restart` its seat is kept at the end of its calls), waits for calls
    that run (at most `drain_s`), and ends the servers.

    Raises ConfigError (the file) and BusError (nats-server refuses the subjects).
    """
    registry = RegistryClient(bus, credential=bus.credential, process=bus.process, lease_s=settings.lease_s)
    ownership = Ownership(bus, lease_s=settings.lease_s)

    async def alive(question: AliveQuestion, call: Call) -> AliveAnswer:
        return AliveAnswer(session=question.session in (None, bus.process))  # a Computer's one session is its process

    async with background() as tasks:
        computer = Computer(
            settings,
            partial(registry.tell, (settings.office, "computer", settings.name)),
            tasks,
            max_body=bus.max_body,
            may_tell=lambda: ownership.is_open,
            tracing=bus_spans(),
            handlers={registry_contract.ALIVE.event: alive},
            **options,
        )
        membership = computer.membership = NatsMembership(settings, bus, registry, ownership, computer)
        measure_lease(computer.metrics, membership.lease)
        computer.readiness.add("nats", lambda: bus.problem)
        computer.readiness.add("office", lambda: membership.problem)
        tasks.start(ownership.run(), name="ownership")
        async with (
            computer.serving(),
            _serving(bus, computer, ownership, membership.heard),
            aclosing(membership),
            computer.calls_ended(settings.drain_s),
            computer.member(),
        ):
            tasks.start(membership.lease.run(), name="lease")
            try:
                yield computer
            finally:
                computer.readiness.draining = True


@asynccontextmanager
async def open_service(
    settings: ComputerSettings, config: ComputerConfig, credentials: Credentials | None, environ: Mapping[str, str]
) -> AsyncIterator[Computer]:
    """The Computer with its own connection, to NATS or to a gateway, and health port. Raises Failure.
    `environ`: what the placeholders of the configuration are taken from."""
    readiness, stats = Readiness(), Stats()
    async with AsyncExitStack() as stack:
        enter, metrics = stack.enter_async_context, Metrics()
        health = await enter(serve_health(settings, readiness, metrics, stats))
        terminal = stack.enter_context(open_terminal())
        options = Options(config=config, readiness=readiness, terminal=terminal, metrics=metrics, environ=environ)
        control = await enter(open_control(settings))  # ends last: it says what a stop waits for
        if settings.gateway_url is not None:
            options["trail"] = await enter(open_trail(EVENTS, settings, None, metrics, name=settings.name))
            from smcp_computer.gateway import open_gateway_computer  # noqa: PLC0415 -- Socket.IO is for this way alone

            computer = await enter(open_gateway_computer(settings, token=token_of(settings), **options))
        else:
            hint = "; --gateway needs no NATS"
            bus = await enter(
                open_service_bus("smcp-computer", settings, credentials, readiness, metrics, stats, hint=hint)
            )
            # a registry records approvals: this Computer may not publish records
            registry = RegistryClient(bus, credential=bus.credential, process=bus.process)
            sink = partial(ApprovalSink, registry, settings.office, settings.name)
            options["trail"] = await enter(open_trail(EVENTS, settings, bus, metrics, sink=sink))
            computer = await enter(open_computer(settings, bus, **options))
        control.computer = computer
        computer.tasks.start(computer.follow_file(), name="configuration")
        stats["computer"] = computer.calls.held
        stats["updates"] = computer.outbox.held
        _log.info("serving", extra={"health": health.url, "office": settings.office, "computer": settings.name})
        yield computer


@asynccontextmanager
async def _serving(bus: Bus, computer: Computer, ownership: Ownership, heard: NoticeHandler) -> AsyncIterator[None]:
    """Serve the Computer's subjects and follow the notifications of its office while the body runs. On leaving, what
    runs is waited for (bounded). Raises BusError: nats-server does not permit it."""
    seat = computer.seat
    handler = owned(request_handler(computer.dispatcher), ownership.refusal)
    host = subjects.hosts(bus.credential, bus.process, registry_contract.ALIVE.verb)
    calls = subjects.client_all(seat.office, seat.computer)
    subscriptions: list[Subscription] = [
        await serve_requests(bus, computer.dispatcher, host),
        await once_connected(lambda: bus.serve(calls, handler, queue=subjects.OWNER_QUEUE, limit=MAX_REQUESTS)),
        await once_connected(lambda: bus.listen(subjects.notify_all(seat.office), heard)),
    ]
    try:
        yield
    finally:
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await asyncio.gather(*(each.drain() for each in subscriptions), return_exceptions=True)


@dataclass(eq=False)
class NatsMembership:
    """The seat of a Computer: claimed at the registry, confirmed after every outage, released at the end.

    `run` and `lease.run` must be running while it lasts; what the registry answers is not raised. With
    `settings.restart` the seat is kept at the end for the next process of this Computer, and not released.
    `computer.in_office` is called whenever the seat is held (again), before any request.
    """

    _settings: ComputerSettings
    _bus: Bus
    _registry: RegistryClient
    _ownership: Ownership
    _computer: Computer

    def __post_init__(self) -> None:
        self._office, self._name, self._restart = self._settings.office, self._settings.name, self._settings.restart
        self._seat: SeatKey = self._office, "computer", self._name
        identity = f"{encode_name(self._office)}.computer.{encode_name(self._name)}"  # hashed: it may be long
        # one session in one process: the same claim for its whole life, so that asking twice is asking once
        self._claim = Claim(
            session=self._bus.process,
            credential=self._registry.credential,
            process=self._registry.process,
            incarnation=uuid4().hex,
            identity=blake2b(identity.encode(), digest_size=16).hexdigest(),
        )
        self._claimed = False
        self._revision = 0
        """Revision of the seat's record, as far as this Computer knows."""
        self._overtaken = 0
        """The newest revision that another process wrote, as far as notifications say."""
        self._up = asyncio.Event()
        self._problem = "not joined yet"
        self._tenure: int | None = None
        """Tenure of the seat when it was last held (`registry_contract.same_tenure`)."""
        self._entered: tuple[str | None, int] = (None, 0)
        """The Agent that entered last, and the epoch of that."""
        self.has_joined = asyncio.Event()
        """Set once the seat was held for the first time."""
        self.lease = LeaseKeeper(
            self._registry,
            lease_s=self._settings.lease_s,
            describe=LeaseRenewal,
            on_lapsed=lambda: self._ownership.close("the lease had expired"),
        )

    @property
    def problem(self) -> str | None:
        """Why this Computer is not in its office now; None while it is."""
        return None if self._ownership.is_open else self._problem

    async def run(self) -> None:
        """Claim the seat, and claim it again whenever it was lost, until cancelled."""
        unwatch = self._bus.watch(self._on_connection)
        if self._bus.connected:
            self._up.set()
        backoff = Backoff(first_s=0.1, longest_s=5.0)
        try:
            while True:
                await self._up.wait()
                try:
                    is_held = await self._hold_seat()
                except (SmcpError, BusError) as error:
                    self._trouble(error)
                    is_held = False
                if is_held:
                    backoff.reset()
                    self._computer.outbox.resume()
                    await self._ownership.wait_closed()
                    self._problem = "the seat is being confirmed"
                else:
                    await asyncio.sleep(backoff.next())
        finally:
            unwatch()

    async def leave(self) -> None:
        """Start no more calls, and release the seat unless it is kept for a restart; `run` must have ended."""
        self._problem = "left"
        self._ownership.moving = self._restart
        self._ownership.close("leaving the office")
        if not self._restart:
            await self.aclose()

    async def aclose(self) -> None:
        """Release the seat, or have it kept for a restart, once nothing runs. If that fails, the registries see the
        lease expire. Idempotent."""
        if not self._claimed:
            return
        self._claimed = False
        what = "kept for the next process" if self._restart else "released"
        try:
            async with asyncio.timeout(RELEASE_S):
                await self._registry.leave(self._seat, self._claim, restarts=self._restart)
            _log.info("the seat in the office %r is %s", self._office, what)
        except (SmcpError, BusError, TimeoutError) as error:
            _log.warning("the seat in the office is not %s: %s", what, str(error) or type(error).__name__)

    async def heard(self, incoming: Incoming) -> None:
        """Take a notification of the office: of calls, of Agents that leave, and of this membership itself."""
        try:
            match subjects.verb_of(incoming.subject):
                case "tool_call_cancel":
                    with caused_by(incoming.headers):
                        cancel = AgentCallData.model_validate_json(incoming.body)
                        self._computer.calls.cancel(cancel, incoming.headers.get(SUBJECT, ""))
                case "enter_office" | "leave_office" as verb:  # of the same fields
                    moved = EnterOfficeNotification.model_validate_json(incoming.body)
                    epoch = int(incoming.headers.get(EPOCH, ""))
                    self._presence_changed(moved.computer, epoch)
                    if moved.agent is not None and verb == "leave_office":
                        is_back = partial(self._is_back, moved.agent, epoch)
                        self._computer.calls.agent_left(moved.agent, self._ownership, is_back)
                        self._computer.resources.subscriptions.left(moved.agent)
                    elif moved.agent is not None and epoch > self._entered[1]:
                        self._entered = (moved.agent, epoch)
        except ValueError:  # also pydantic's
            _log.warning("a notification that cannot be read was ignored")

    def _is_back(self, agent: str, epoch: int) -> bool:
        return self._entered[0] == agent and self._entered[1] > epoch

    def _presence_changed(self, computer: str | None, epoch: int) -> None:
        """An enter or leave of this Computer's name that it did not cause (a registry took it for dead) ends its
        ownership: the seat is confirmed, or claimed again."""
        if computer == self._name:
            self._overtaken = max(self._overtaken, epoch // 2)
            if self._claimed and self._overtaken > self._revision:
                self._ownership.close("the seat in the office was released by a registry")

    async def _hold_seat(self) -> bool:
        generation = self._ownership.generation
        if self._claimed:
            confirmed = await self._registry.confirm(self._seat, self._claim)
            # a view that has not come so far yet cannot say; claiming asks the bucket itself
            if confirmed.mine and confirmed.view >= self._overtaken:
                self._revision = max(self._revision, confirmed.view)
                return self._opened(generation, confirmed.tenure, "confirmed in")
            if not confirmed.mine:
                _log.warning("the seat in the office %r was lost; claiming it again", self._office)
                self._claimed = False
        if not self.lease.held:
            await self.lease.acquire()
        return self._opened(generation, await self._join(), "in")

    async def _join(self) -> int | None:
        outbox, resources = self._computer.outbox, self._computer.resources
        before = outbox.state()
        self._overtaken = 0
        said = {"role": "computer", "name": self._name, "office_id": self._office}
        body = orjson.dumps({**said, "capabilities": resources.index.capabilities})
        joined = await self._registry.join(self._seat, self._claim, body)
        self._claimed = True
        self._revision = joined.revision
        if joined.taken_up:  # the process before this one was restarted: Agents saw nobody enter
            resources.changed_all()
        elif not joined.unchanged:  # Agents that saw us enter ask for everything; what changed meanwhile is sent
            outbox.drop(before.__contains__)
        return joined.tenure

    def _opened(self, generation: int, tenure: int | None, how: str) -> bool:
        if self._overtaken > self._revision or not self._ownership.open(generation):
            return False
        self._problem = ""
        self.has_joined.set()
        kept, self._tenure = same_tenure(self._tenure, tenure), tenure
        self._computer.in_office(new_tenure=not kept)
        _log.info("%s the office %r as %r", how, self._office, self._name)
        return True

    def _trouble(self, error: Exception) -> None:
        refusal = f"refused: {hinted(str(error))}" if isinstance(error, NotAllowed) else ""
        problem = refusal or str(error) or type(error).__name__
        if problem != self._problem:
            _log.warning("not in the office %r: %s; retrying", self._office, problem)
        self._problem = problem

    def _on_connection(self, connection: ConnectionState) -> None:
        if connection is ConnectionState.UP:
            self._up.set()
            self.lease.renew_soon()
        elif connection is ConnectionState.DOWN:
            self._up.clear()
