"""The Socket.IO Computers of this gateway, with their subscriptions on NATS and the ownership of their seats.

When the connection to NATS breaks or this process is suspended, no call runs until the registry has confirmed the
Computer again, which works without quorum.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from smcp_auth.quotas import Quotas
from smcp_bus import subjects
from smcp_bus.nats.bus import Bus
from smcp_bus.owner import Owner
from smcp_bus.ownership import MAX_REQUESTS, Ownership
from smcp_bus.registry_client import AT_ONCE, RegistryClient
from smcp_bus.registry_contract import Claim
from smcp_gateway.background_tasks import BackgroundTasks
from smcp_gateway.computers.socketio_computer import SocketIoComputer
from smcp_gateway.settings import GatewaySettings
from smcp_gateway.sockets.session import Session
from smcp_gateway.sockets.socketio_server import SocketIoServer
from smcp_proto.errors import Unavailable
from smcp_proto.schemas.base import AgentCallData

PAUSE_S: Final = 0.05
"""Until the ownership is opened once more, where NATS is not back yet."""

Key = tuple[str, str]
"""(session, office)"""


@dataclass(eq=False, repr=False)
class ComputerTable:
    """`run` must be running while it is used."""

    bus: Bus
    registry: RegistryClient
    background: BackgroundTasks
    transport: SocketIoServer
    quotas: Quotas
    settings: GatewaySettings
    request_repair: Callable[[], None]
    """Called when the registry no longer holds a claim: the members have to be asserted."""
    owner: Owner = field(default_factory=Owner, init=False)
    by_name: dict[tuple[str, str], list[SocketIoComputer]] = field(default_factory=dict, init=False)
    """By office and name: one each, or two while a name changes its session here."""
    _owned: dict[Key, SocketIoComputer] = field(default_factory=dict, init=False)
    _offices: dict[str, set[SocketIoComputer]] = field(default_factory=dict, init=False)
    _limit: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE), init=False)
    stopping: bool = field(default=False, init=False)
    ownership: Ownership = field(init=False)
    """Its generation is read before a request to the registry, and passed to `granted`."""

    def __post_init__(self) -> None:
        self.ownership = Ownership(self.bus, lease_s=self.settings.lease_s)

    def __len__(self) -> int:
        return len(self._owned)

    @property
    def subscribed(self) -> int:
        return sum(len(owned.subscriptions) for owned in self._owned.values())

    async def run(self) -> None:
        """Have every Computer confirmed again whenever the ownership was lost, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.ownership.run(), name="ownership")
                while True:
                    if self.ownership.open(self.ownership.generation):
                        for owned in self._owned.values():
                            self._confirm_soon(owned)
                        await self.ownership.wait_closed()
                    await asyncio.sleep(PAUSE_S)
        finally:
            self.owner.close()

    async def serve(self, session: Session, office: str, name: str) -> None:
        """Serve the Computer's subject; no call runs yet. nats-server knows it on return. Raises BusError."""
        subject = subjects.client_all(office, name)
        owned = SocketIoComputer(session, office, name, self)
        self._owned[session.id, office] = owned
        self._offices.setdefault(office, set()).add(owned)
        self.by_name.setdefault((office, name), []).append(owned)
        try:
            owned.subscription = await self.bus.serve(
                subject, owned.handle, queue=subjects.OWNER_QUEUE, limit=MAX_REQUESTS
            )
        except BaseException:
            self.close(session, office)
            raise

    def granted(
        self, session: Session, office: str, claim: Claim, generation: int, *, tenure: int | None, moved: bool = False
    ) -> None:
        """The registry holds the member by that claim, requested in that generation of the ownership: now calls run.
        `moved`: its seat was held by another process, so its subscriptions are unknown here."""
        owned = self._owned.get((session.id, office))
        if owned is not None:
            owned.granted(claim, tenure)
            if moved:
                owned.updates.missed()
            if not self._open(owned, generation):
                self._confirm_soon(owned)

    def close(self, session: Session, office: str) -> None:
        owned = self._owned.pop((session.id, office), None)
        if owned is None:
            return
        here = self._offices[office]
        here.discard(owned)
        if not here:
            del self._offices[office]
        named = self.by_name[office, owned.name]
        named.remove(owned)
        if not named:
            del self.by_name[office, owned.name]
        owned.close()
        if owned.subscription is not None:
            self.background.until_done("giving up a Computer's subject", owned.subscription.drain, once=True)

    def of(self, session_id: str, office: str) -> SocketIoComputer | None:
        return self._owned.get((session_id, office))

    def agent_left(self, office: str, agent: str, is_back: Callable[[], bool]) -> None:
        """An Agent has left an office: its subscriptions end, and its calls unless it comes back soon."""
        here = self._offices.get(office, ())
        for owned in here:
            if owned.subscriptions.left(agent):  # if it is back already, it subscribes again
                owned.updates.missed()
        if here:
            self.owner.agent_left(office, agent, self.ownership, is_back)

    def cancelled(self, office: str, cancel: AgentCallData, subject: str) -> list[Session]:
        """`notify:tool_call_cancel` came for an office. Returns the Computers that run another subject's call."""
        here, agent, req_id = self._offices.get(office, ()), cancel.agent, cancel.req_id
        if here:
            self.owner.cancel([owned.seat for owned in here], office, agent, req_id, subject)
        return [owned.session for owned in here if self.owner.runs_for_another(owned.seat, agent, req_id, subject)]

    def is_open(self, confirmed: int) -> bool:
        """Whether calls may run for a Computer that was confirmed in that generation of the ownership."""
        return self.ownership.is_open and confirmed == self.ownership.generation and not self.stopping

    def _open(self, owned: SocketIoComputer, generation: int) -> bool:
        if not self.ownership.is_open or self.ownership.generation != generation:
            return False
        if owned.confirmed not in (-1, generation) and owned.subscriptions.clear():
            owned.updates.missed()  # an Agent's leave may have been missed
        owned.confirmed = generation
        return True

    def _confirm_soon(self, owned: SocketIoComputer) -> None:
        if owned.claim is not None:
            generation = self.ownership.generation
            self.background.until_done("confirming a Computer", lambda: self._confirm(owned, generation))

    async def _confirm(self, owned: SocketIoComputer, generation: int) -> None:
        async with self._limit:
            if owned.closed or owned.confirmed >= generation or generation != self.ownership.generation:
                return  # it left, was asserted meanwhile, or a later round confirms it
            assert owned.claim is not None
            confirmed = await self.registry.confirm((owned.office, "computer", owned.name), owned.claim)
        if not confirmed.mine:
            self.request_repair()
            raise Unavailable("the registry does not hold this claim")
        owned.granted(owned.claim, confirmed.tenure)
        self._open(owned, generation)
