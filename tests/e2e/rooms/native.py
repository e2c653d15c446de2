"""A native Computer as one of the cast: its real membership, over NATS, in the test's own process."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import orjson

from smcp_bus import subjects
from smcp_bus.bus import Incoming
from smcp_bus.headers import EPOCH
from smcp_bus.nats.bus import Bus, open_bus
from smcp_bus.nats.config import BusConfig, load_credentials
from smcp_bus.registry_client import RegistryClient
from smcp_computer.app import NatsMembership, open_computer
from smcp_computer.config.file import parse_config
from smcp_computer.gateway import GatewayMembership
from smcp_computer.settings import ComputerSettings
from smcp_proto.errors import SmcpError
from smcp_proto.member_names import Role, encode_name
from tests.e2e.rooms.client import Outcome
from tests.e2e.rooms.presence import MemberKey
from tests.e2e.worlds.layout import Place
from tests.e2e.worlds.world import World

PATIENCE_S: Final = 3.0
"""How long it tries to have a place. It would go on for ever, as a Computer does; who waits here does not."""
DRAIN_S: Final = 1.0


def place_of(office: str, name: str) -> Place:
    """The native Computer of that name there: its credential is for one office, and has to be known beforehand."""
    return Place(f"{office}, {name}", office, name)


@dataclass
class NativeClient:
    """A `client.Client` without a gateway: nothing that befalls one may cost it its place."""

    world: World
    name: str
    now: Callable[[], float]
    """The clock of the record."""
    role: Role = "computer"
    sid: str = field(default_factory=lambda: uuid4().hex)
    """Its process: the session of its claims."""
    notices: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    """Enters and leaves of others after its own enter, each once, as a listener of the office takes them."""
    ended_at: float | None = None
    """When a leave of it was announced although it had not left."""

    def __post_init__(self) -> None:
        self._office: str | None = None
        self._running: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._joined = asyncio.Event()
        self._bus: Bus | None = None
        self._epochs: dict[MemberKey, int] = {}
        self._early: list[tuple[int, str, MemberKey, dict[str, Any]]] = []
        self._own: int | None = None
        """Epoch of its own enter: what is older happened before it came."""

    async def opened(self) -> bool:
        return True

    async def joins(self, office: str) -> tuple[Outcome, str]:
        """It has the place, or it is not known what becomes of what it asked for: it has to be closed then."""
        if self._office is None:
            self._office = office
            self._running = asyncio.create_task(self._run(office))
        assert self._running is not None
        assert self._office == office, "its credential is for one office"
        waiting = asyncio.create_task(self._joined.wait())
        await asyncio.wait({waiting, self._running}, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._running.done():
            await self._running
        return (Outcome.DONE, "") if self._joined.is_set() else (Outcome.OPEN, "it does not have the place yet")

    async def leaves(self, office: str) -> tuple[Outcome, str]:
        """It ends, and gives its place up where a registry answers; else its lease runs out."""
        assert self._office == office
        return Outcome.OPEN, "it ends"

    async def listed(self, office: str) -> dict[MemberKey, str] | None:
        """As `RoomClient.listed`."""
        if self._bus is None:
            return None
        registry = RegistryClient(self._bus, credential=self._bus.credential, process=self._bus.process)
        newest = max(self._epochs.values(), default=0) // 2
        try:
            room = await registry.room((office, self.role, self.name), after=newest, req_id=uuid4().hex)
        except SmcpError as error:
            if error.code == 500:
                raise
            return None
        return {(each.role, each.name): each.sid for each in room.sessions if each.role and each.name and each.sid}

    async def close(self) -> None:
        self._stopping.set()
        if self._running is not None:
            await self._running

    async def _run(self, office: str) -> None:
        """In a task of its own: another task ends it than the one that began it."""
        file = self.world.credentials / f"{encode_name(place_of(office, self.name).credential)}.json"
        url = self.world.nats_url
        bus_config = BusConfig(url=url, credentials=load_credentials(file), process=self.sid, name=self.name)
        settings = ComputerSettings(
            nats_url=url,
            config=Path("unused"),
            office=office,
            name=self.name,
            lease_s=self.world.lease_s,
            drain_s=DRAIN_S,
        )
        async with open_bus(bus_config) as bus:
            await bus.listen(subjects.notify_all(office), partial(self._hear, office))
            async with open_computer(settings, bus, config=parse_config('{"servers": {}}'), environ={}) as computer:
                self._bus = bus
                joining = asyncio.create_task(self._is_in(computer.membership))
                try:
                    await self._stopping.wait()
                finally:
                    self._bus = None
                    joining.cancel()
                    await asyncio.wait({joining})

    async def _hear(self, office: str, incoming: Incoming) -> None:
        """Announcements come in the order of the log, and twice where a registry died: what is not newer is dropped."""
        verb = subjects.verb_of(incoming.subject)
        if self._stopping.is_set() or verb not in ("enter_office", "leave_office"):
            return  # it ends: what comes until that is done is nobody's any more
        data: dict[str, Any] = orjson.loads(incoming.body)
        assert data["office_id"] == office
        about: MemberKey = ("agent", data["agent"]) if "agent" in data else ("computer", data["computer"])
        epoch = int(incoming.headers[EPOCH])
        if epoch <= self._epochs.get(about, 0):
            return
        self._epochs[about] = epoch
        if self._own is None:
            self._early.append((epoch, verb, about, data))
        else:
            self._take(epoch, verb, about, data)

    async def _is_in(self, membership: NatsMembership | GatewayMembership) -> None:
        await membership.has_joined.wait()
        assert isinstance(membership, NatsMembership)
        self._own = 2 * membership._revision + 1
        for early in self._early:
            self._take(*early)
        self._joined.set()

    def _take(self, epoch: int, verb: str, about: MemberKey, data: dict[str, Any]) -> None:
        if self._own is None or epoch <= self._own:
            return
        if about != (self.role, self.name):
            self.notices.append((f"notify:{verb}", data))
        elif verb == "leave_office":
            self.ended_at = self.now()
