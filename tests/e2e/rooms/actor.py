"""One of the cast: carries out its steps by whatever connection it has now, and records what came of them."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.e2e.rooms.client import Client, Outcome, Wrong
from tests.e2e.rooms.plan import Part
from tests.e2e.rooms.presence import Hearing, MemberKey, Presence, overheard, picture, presences, wrongs
from tests.e2e.rooms.record import Place, Record, place


@dataclass
class Stay:
    """A membership, as its member saw it."""

    client: Client
    office: str
    begin: int
    """How many notices it had had before it asked to join."""
    asked: float
    """When it asked to join (seconds of the record)."""
    since: float
    """When its join was confirmed."""
    before: set[MemberKey] | None = None
    """Who was there when it came, where that is known."""
    listed: set[MemberKey] | None = None
    end: int | None = None
    """How many notices it had had when it knew that it is not in any more."""
    until: float | None = None
    """Since when it may not be in any more."""

    @property
    def hearing(self) -> Hearing:
        return Hearing(self.office, self.begin, self.end)

    def lasts(self, since: float, until: float) -> bool:
        """Whether it was in for sure, the whole time, unless its gateway was hurt."""
        return self.since <= since and (self.until is None or self.until > until)

    @property
    def told(self) -> list[Presence]:
        own = (self.client.role, self.client.name)
        notices = self.client.notices[self.begin : self.end]
        return [presence for presence in presences(notices, self.office) if presence[1] != own]

    def wrongs(self, there: Iterable[MemberKey]) -> list[str]:
        """Notifications that contradict each other.

        Args:
            there: who was in for sure when it came.
        """
        return wrongs(self.told, self.before, there=there)

    async def picture(self) -> set[MemberKey] | None:
        """Its own picture, itself in it; None where it cannot be had yet."""
        if self.listed is None:
            listed = await self.client.listed(self.office)
            self.listed = None if listed is None else set(listed)
        if self.listed is None:
            return None
        return picture(self.told, self.listed) | {(self.client.role, self.client.name)}


class Actor:
    """Args:
    connection: makes one that is not open yet.
    """

    def __init__(self, who: str, part: Part, connection: Callable[[Part], Client], record: Record) -> None:
        self.who = who
        self.part = part
        self.client: Client | None = None
        self.stay: Stay | None = None
        self.stays: list[Stay] = []
        self._clients: list[Client] = []
        self._perhaps: list[tuple[Client, Hearing]] = []
        """Of joins without an answer that says whether they were done."""
        self._connection = connection
        self._record = record
        self._connections = 0
        self._label = ""
        self._turn = asyncio.Lock()

    @property
    def key(self) -> MemberKey:
        return self.part.role, self.part.name

    def overheard(self) -> list[str]:
        """Notifications on any of its connections that are not for it."""
        found = []
        for client in self._clients:
            hearings = [stay.hearing for stay in self.stays if stay.client is client]
            hearings += [hearing for where, hearing in self._perhaps if where is client]
            found += overheard(client.notices, hearings, self.key)
        return found

    async def joins(self, office: str, *, before: Iterable[MemberKey] | None = None) -> bool:
        """Whether it is in the office now."""
        async with self._turn:
            client = await self._connected()
            if self.part.native and self.stay is not None and self.stay.office != office:
                await self._give_up(self._record.now)  # it does not switch: it ends, and begins elsewhere
                client = await self._connected()
            if client is None:
                return False
            present, start, begin = self.stay, self._record.now, len(client.notices)
            outcome, why = await client.joins(office)
            self._say(f"joins {office}", outcome, why)
            if present is not None and (present.office == office or self.part.role == "agent"):
                await self._joined_from_within(office, present, start, outcome)
            elif outcome is Outcome.DONE:
                if present is not None:
                    self._record.left(self._place(present.office), self._label, start)
                self._end_stay(start)
                self._record.joined(self._place(office), self._label, start)
                there = None if before is None else set(before)
                self.stay = Stay(client, office, begin, start, self._record.now, there)
                self.stays.append(self.stay)
            elif outcome is Outcome.REFUSED:
                self._record.refused(self._place(office), self._label, start)
            else:
                self._perhaps.append((client, Hearing(office, begin)))
                await self._give_up(start, office)
            return self.stay is not None and self.stay.office == office

    async def leaves(self) -> None:
        async with self._turn:
            self.look()
            client, stay = self.client, self.stay
            if client is None or stay is None:
                return
            start = self._record.now
            outcome, why = await client.leaves(stay.office)
            self._say(f"leaves {stay.office}", outcome, why)
            if outcome is Outcome.DONE:
                self._record.left(self._place(stay.office), self._label, start)
                self._end_stay(start)
            elif outcome is Outcome.OPEN or self._record.cause(self.part.gateway, self._record.now) is not None:
                await self._give_up(start)
            else:
                raise Wrong(f"{self._label} is told that it is not in its office: {why}")

    async def says_goodbye(self) -> None:
        async with self._turn:
            self.look()
            if self.client is not None:
                self._record.say(f"{self._label} says goodbye")
                await self._give_up(self._record.now)

    @property
    def sid(self) -> str:
        """Of its connection; empty where it has none."""
        return "" if self.client is None else self.client.sid

    async def listed(self) -> dict[MemberKey, str] | None:
        """Its office by its gateway's answer; None where there is no answer now."""
        if self.client is None or self.stay is None:
            return None
        return await self.client.listed(self.stay.office)

    def look(self) -> None:
        """Take note of it where it was cut off.

        Raises:
            Wrong: for no reason.
        """
        client = self.client
        if client is None or client.ended_at is None:
            return
        cause = self._record.cause(self.part.gateway, client.ended_at)
        self._record.say(f"{self._label} was cut off at {client.ended_at:.3f}")
        if cause is None:
            raise Wrong(f"{self._label} was cut off for no reason at {client.ended_at:.3f}")
        if self.stay is not None:
            self._record.ended(self._place(self.stay.office), self._label, cause, client.ended_at)
        self._end_stay(cause)
        self.client = None

    async def _joined_from_within(self, office: str, present: Stay, start: float, outcome: Outcome) -> None:
        """Again into its own office, or an Agent that would switch: nobody but its gateway is asked."""
        again = present.office == office
        if outcome is Outcome.OPEN:
            await self._give_up(start)
        elif (outcome is Outcome.DONE) is not again:
            raise Wrong(f"{self._label}, in {present.office}, is {outcome.value} to join {office}")
        elif again and self._record.cause(self.part.gateway, self._record.now) is None:
            self._record.joined(self._place(office), self._label, start)

    async def _connected(self) -> Client | None:
        self.look()
        if self.client is not None:
            return self.client
        client = self._connection(self.part)
        if not await client.opened():
            return None
        self._connections += 1
        self._clients.append(client)
        self._label = f"{self.who} #{self._connections} by {'NATS' if self.part.native else self.part.gateway}"
        self._record.session(self._label, client.sid, self.part.gateway)
        self.client = client
        return client

    async def _give_up(self, start: float, doubtful: str | None = None) -> None:
        """End the connection. Its membership may have ended since `start`, and one of `doubtful` may have begun."""
        client, stay = self.client, self.stay
        assert client is not None
        self._end_stay(start)
        self.client = None
        await client.close()
        if stay is not None:
            self._record.ended(self._place(stay.office), self._label, start)
        if doubtful is not None:
            self._record.doubted(self._place(doubtful), self._label, start)

    def _end_stay(self, since: float) -> None:
        """It may have ended since then."""
        if self.stay is not None:
            self.stay.end, self.stay.until = len(self.stay.client.notices), since
        self.stay = None

    def _place(self, office: str) -> Place:
        return place(office, self.part.role, self.part.name)

    def _say(self, what: str, outcome: Outcome, why: str) -> None:
        self._record.say(f"{self._label} {what}: {outcome.value} {why}".rstrip())
