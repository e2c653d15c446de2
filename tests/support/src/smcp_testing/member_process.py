"""A process that owns members, as small as it can be, and an observer of an office: for tests of rooms."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import orjson

from smcp_bus import subjects
from smcp_bus.bus import Incoming, Reply
from smcp_bus.headers import EPOCH
from smcp_bus.nats.bus import Bus, BusConfig, open_bus
from smcp_bus.registry_client import RegistryClient
from smcp_bus.registry_contract import AliveAnswer, AliveQuestion, Claim, Confirmed, Joined, LeaseRenewal, Left
from smcp_proto.member_names import Role
from smcp_testing.bad_buses import BadBuses
from smcp_testing.waiting import eventually


class MemberProcess:
    """Answers `alive` for its sessions and joins places for them. Only `renew` renews its lease."""

    def __init__(self, bus: Bus, credential: str = "open") -> None:
        self.bus = bus
        self.credential = credential
        self.process = uuid.uuid4().hex
        self.registry = RegistryClient(bus, credential=credential, process=self.process)
        self.sessions: set[str] = set()
        self.given_up: set[str] = set()
        """Incarnations of claims that it no longer means."""
        self.asked = 0
        self.answering = asyncio.Event()
        """Cleared: it hears the question and does not answer, as a process that is paused."""
        self.answering.set()

    async def serve(self) -> None:
        await self.bus.serve(subjects.hosts(self.credential, self.process, "alive"), self._alive)

    def claim(
        self, session: str = "s1", *, announce: bool = True, identity: str | None = None, incarnation: str = "1"
    ) -> Claim:
        self.sessions.add(session)
        return Claim(
            session=session,
            credential=self.credential,
            process=self.process,
            incarnation=incarnation,
            identity=identity or f"{self.process}/{session}",
            announce=announce,
        )

    async def join(self, office: str, role: Role, name: str, claim: Claim | None = None) -> Joined:
        body = orjson.dumps({"role": role, "name": name, "office_id": office})
        return await self.registry.join((office, role, name), claim or self.claim(), body)

    async def leave(self, office: str, role: Role, name: str, claim: Claim | None = None) -> Left:
        return await self.registry.leave((office, role, name), claim or self.claim())

    async def holds(self, office: str, role: Role, name: str, claim: Claim | None = None) -> bool:
        """Whether the registries have given the seat to this claim. They say it from their views, which may be behind:
        this waits until the one that answers has all that was written before."""
        claim = claim or self.claim()
        mark = await self.join("marks", "computer", uuid.uuid4().hex)

        async def caught_up() -> list[Confirmed]:
            confirmed = await self.registry.confirm((office, role, name), claim)
            return [confirmed] if confirmed.view >= mark.revision else []

        (confirmed,) = await eventually(caught_up)
        return confirmed.mine

    async def room(self, office: str, role: Role, name: str, *, after: int = 0) -> set[tuple[str, str]]:
        """(role, name) of the members of the office, as this member sees it."""
        room = await self.registry.room((office, role, name), after=after, req_id=uuid.uuid4().hex)
        return {(str(session.role), str(session.name)) for session in room.sessions}

    async def renew(self) -> bool:
        """Renew the lease; whether it had one."""
        return (await self.registry.renew_lease(LeaseRenewal())).renewed

    async def _alive(self, incoming: Incoming) -> Reply:
        self.asked += 1
        question = AliveQuestion.model_validate_json(incoming.body)
        await self.answering.wait()
        session = question.session is None or question.session in self.sessions
        session = session and question.incarnation not in self.given_up
        return Reply(AliveAnswer(session=session).model_dump_json().encode())


@asynccontextmanager
async def member_process(url: str, *, bad: BadBuses | None = None) -> AsyncIterator[MemberProcess]:
    """One with a connection of its own, which ends with the body: from then on there is no responder.

    Args:
        bad: makes its bus bad.
    """
    async with open_bus(BusConfig(url=url, drain_timeout=0)) as sound, AsyncExitStack() as stack:
        process = MemberProcess(sound if bad is None else await stack.enter_async_context(bad.over(sound)))
        await process.serve()
        try:
            yield process
        finally:
            process.answering.set()


class DyingProcess:
    """A `MemberProcess` that a test ends in the middle."""

    def __init__(self, stack: AsyncExitStack, member: MemberProcess) -> None:
        self._stack = stack
        self.member = member

    async def die(self) -> None:
        await self._stack.aclose()


@asynccontextmanager
async def dying_process(url: str) -> AsyncIterator[DyingProcess]:
    async with AsyncExitStack() as stack:
        yield DyingProcess(stack, await stack.enter_async_context(member_process(url)))


@dataclass(frozen=True, slots=True)
class Told:
    """One enter or leave as a receiver takes it."""

    verb: str
    role: str
    name: str
    epoch: int


class Observer:
    """Listens to an office, as a receiver does that drops what is not newer.

    Attributes:
        told: enters and leaves that were newer than the last one of that place.
        doubled: how many others there were.
        notices: everything else, as (verb, body).
    """

    def __init__(self, office: str) -> None:
        self.office = office
        self.told: list[Told] = []
        self.doubled = 0
        self.notices: list[tuple[str, bytes]] = []
        self._epochs: dict[tuple[str, str], int] = {}

    def of(self, name: str) -> list[str]:
        """The verbs announced about one name, in order."""
        return [told.verb for told in self.told if told.name == name]

    async def hear(self, incoming: Incoming) -> None:
        verb = subjects.verb_of(incoming.subject)
        if verb not in ("enter_office", "leave_office"):
            self.notices.append((verb, incoming.body))
            return
        body = orjson.loads(incoming.body)
        assert body.pop("office_id") == self.office
        [(role, name)] = body.items()
        epoch = int(incoming.headers[EPOCH])
        if epoch <= self._epochs.get((role, name), 0):
            self.doubled += 1
            return
        self._epochs[role, name] = epoch
        self.told.append(Told(verb, role, name, epoch))


async def observe(bus: Bus, office: str) -> Observer:
    """An observer of all notifications from now on."""
    observer = Observer(office)
    await bus.listen(subjects.notify_all(office), observer.hear)
    return observer
