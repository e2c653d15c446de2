"""The seat of a native Computer: claimed at the registry, confirmed after every outage, released at the end."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING
from uuid import uuid4

import orjson

from smcp_bus.bus import BusError, Connection
from smcp_bus.nats.bus import Bus
from smcp_bus.ownership import Ownership
from smcp_bus.registry_client import LeaseKeeper, RegistryClient
from smcp_bus.registry_contract import Claim, LeaseRenewal, same_tenure
from smcp_computer.settings import ComputerSettings
from smcp_proto.backoff import Backoff
from smcp_proto.errors import NotAllowed, SmcpError
from smcp_proto.member_names import encode_name

if TYPE_CHECKING:
    from smcp_computer.computer import Computer

_log = logging.getLogger("smcp_computer.membership")

RELEASE_S = 6.0
"""How long releasing the seat may take, as registries may be restarted at the same time; otherwise one finds out by
itself."""


@dataclass(eq=False)
class Membership:
    """`run` and `lease.run` must be running while it lasts; what the registry answers is not raised.

    With `settings.restart` the seat is kept at the end for the next process of this Computer, and not released.
    `computer.in_office` is called whenever the seat is held (again), before any request.
    """

    _settings: ComputerSettings
    _bus: Bus
    _registry: RegistryClient
    _ownership: Ownership
    _computer: "Computer"

    def __post_init__(self) -> None:
        self._office, self._name, self._restart = self._settings.office, self._settings.name, self._settings.restart
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
        self.has_joined = asyncio.Event()
        """Set once the seat was held for the first time."""
        self.lease = LeaseKeeper(
            self._registry,
            lease_s=self._settings.lease_s,
            describe=LeaseRenewal,
            on_lapsed=lambda: self._ownership.close("the lease had run out"),
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
        """Release the seat; `run` must have ended. If that fails, the registries notice by themselves.

        For a restart, nothing is released: new requests wait for the next process from now on (`moved`).
        """
        self._problem = "left"
        self._ownership.moving = self._restart
        self._ownership.close("leaving the office")
        if not self._restart:
            await self._release("left the office %r", "leaving the office failed: %s")

    @asynccontextmanager
    async def moved(self) -> AsyncIterator[None]:
        """On leaving, which is when nothing runs any more: have the seat kept, where this is a restart."""
        try:
            yield
        finally:
            if self._restart:
                kept = "the seat in the office %r is kept for the next process"
                await self._release(kept, "the seat in the office is not kept for the restart: %s")

    async def _release(self, done: str, failed: str) -> None:
        if not self._claimed:
            return
        try:
            async with asyncio.timeout(RELEASE_S):
                await self._registry.leave(self._office, "computer", self._name, self._claim, restarts=self._restart)
        except (SmcpError, BusError, TimeoutError) as error:
            _log.warning(failed, str(error) or type(error).__name__)
        else:
            self._claimed = False
            _log.info(done, self._office)

    def presence_changed(self, revision: int) -> None:
        """Take the revision of an enter or leave of this Computer's name. One that it did not cause (a registry took it
        for dead) ends its ownership: the seat is confirmed, or claimed again."""
        self._overtaken = max(self._overtaken, revision)
        if self._claimed and self._overtaken > self._revision:
            self._ownership.close("the seat in the office was released by a registry")

    async def _hold_seat(self) -> bool:
        generation = self._ownership.generation
        if self._claimed:
            confirmed = await self._registry.confirm(self._office, "computer", self._name, self._claim)
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
        outbox, index = self._computer.outbox, self._computer.resources.index
        before = outbox.state()
        self._overtaken = 0
        said = {"role": "computer", "name": self._name, "office_id": self._office}
        body = orjson.dumps({**said, "capabilities": index.capabilities})
        joined = await self._registry.join(self._office, "computer", self._name, self._claim, body)
        self._claimed = True
        self._revision = joined.revision
        if joined.taken_up:  # the process before this one was restarted: Agents saw nobody enter
            outbox.changed_all(index.capabilities)
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
            _log.warning("not in the office %r: %s; trying on", self._office, problem)
        self._problem = problem

    def _on_connection(self, connection: Connection) -> None:
        if connection is Connection.UP:
            self._up.set()
            self.lease.renew_soon()
        elif connection is Connection.DOWN:
            self._up.clear()


def hinted(refusal: str) -> str:
    """A refusal of the office, with what the user can do about it."""
    if "has a Computer named" in refusal or "not for this name" in refusal:
        return f"{refusal}; choose another name with --name (SMCP_NAME)"
    if "is not an A2C-SMCP gateway" in refusal:
        return f"{refusal}: is --gateway (SMCP_GATEWAY_URL) right?"
    return f"{refusal}; give it with --token-file or SMCP_TOKEN" if "a token is needed" in refusal else refusal
