"""A plan, played in a world, and the checks of what came of it."""

import asyncio
import sys
from collections.abc import Collection, Coroutine, Iterable
from functools import partial

from smcp_testing.waiting import eventually
from tests.e2e.rooms.actor import Actor, Stay
from tests.e2e.rooms.bucket import MembersBucket
from tests.e2e.rooms.client import Client, RoomClient
from tests.e2e.rooms.native import NativeClient
from tests.e2e.rooms.ownership import NoOrder, check
from tests.e2e.rooms.plan import CAST, GATEWAYS, GROUPS, Part, Plan, Step
from tests.e2e.rooms.presence import MemberKey
from tests.e2e.rooms.record import Record, place
from tests.e2e.rooms.stage import Stage

ONSET_S = 1.0
"""For how long steps have their way before what was hurt goes on."""
BACK_S = 20.0
"""In which, beside two leases, everybody agrees after the last that was hurt is healed: one of who died has to run out,
and be noticed."""


async def play(plan: Plan, stage: Stage, bucket: MembersBucket) -> int:
    """Play the plan in offices of its own.

    Returns:
        of how many gateways it could be seen that nobody lost a place by a short cut.

    Raises:
        AssertionError: what came of it is wrong; tells the plan and all that happened.
    """
    troupe = Troupe(stage, bucket)
    try:
        await troupe.open()
        for one in plan:
            async with asyncio.TaskGroup() as group:
                first = troupe.start(group, one.steps)
                async with stage.hurt(one.hurt, one.number, troupe.record):
                    await _some_time(first)
                    await _some_time(troupe.start(group, one.meanwhile))
        await troupe.settled()
        troupe.check()
        await troupe.dispersed()
        return len(troupe.record.barely_hurt())
    except BaseException as error:
        # Written at once: what a search for a smaller plan finds later may be another failure, or none.
        happened = "\n".join(troupe.record.lines)
        sys.stderr.write(f"\nfailed: {type(error).__name__} {error}\nthe plan:\n{plan!r}\nwhat happened:\n{happened}\n")
        raise
    finally:
        await troupe.close()


async def _some_time(tasks: Collection[asyncio.Task[None]]) -> None:
    """Who asks somebody that stands still is not waited for: what stands still goes on only after that."""
    await asyncio.wait(tasks, timeout=ONSET_S)


class Troupe:
    """The cast, and in each office a watcher by each gateway."""

    def __init__(self, stage: Stage, bucket: MembersBucket) -> None:
        lease_s = stage.world.lease_s
        self._back_s = BACK_S + 2 * lease_s
        self.record = Record(patience_s=lease_s + 3)
        self.offices = next(stage.offices)
        self._bucket = bucket
        self._world = stage.world
        self._urls = [line.url for line in stage.clients]
        self._watchers = {
            office: [
                self._actor(f"watcher {gateway}", Part("computer", f"watcher {gateway}", gateway))
                for gateway in range(GATEWAYS)
            ]
            for office in self.offices
        }
        self._cast = {who: self._actor(who, part) for who, part in CAST.items()}

    @property
    def _actors(self) -> list[Actor]:
        return [*self._cast.values(), *(watcher for watchers in self._watchers.values() for watcher in watchers)]

    async def open(self) -> None:
        """The watchers come, one after the other."""
        for office, watchers in self._watchers.items():
            there: list[MemberKey] = []
            for watcher in watchers:
                assert await watcher.joins(office, before=there), f"{watcher.who} cannot join"
                there.append((watcher.part.role, watcher.part.name))

    def start(self, group: asyncio.TaskGroup, steps: Iterable[Step]) -> list[asyncio.Task[None]]:
        """All steps at the same moment, those of one actor one after the other; watchers that were cut off are back."""
        working: list[Coroutine[None, None, None]] = [
            self._do(self._cast[who], step) for step in steps for who in GROUPS[step.who]
        ]
        for office, watchers in self._watchers.items():
            working += [self._comes_back(watcher, office) for watcher in watchers]
        return [group.create_task(work) for work in working]

    async def settled(self) -> None:
        """Everybody's picture of each office is the bucket's."""
        for office in self.offices:
            await eventually(partial(self._watched, office), timeout=self._back_s, message="the watchers are not back")
        for office in self.offices:
            agreed = partial(self._back_and_agreed, office)
            await eventually(agreed, timeout=self._back_s, message=f"not all agree who is in {office}")
        for where in self.record.places():
            start = self.record.now
            members = await self._bucket.members(where.office)
            sids = [
                record.session for (role, name), record in members.items() if place(where.office, role, name) == where
            ]
            self.record.seen(where, sids[0] if sids else None, start)

    def check(self) -> None:
        """Enter and leave alternate for each observer, nobody hears what is not for him, each place has had one owner
        at a time, and nobody lost a place for nothing.
        """
        found = [
            f"{actor.who} in {stay.office}: {wrong}; it was told {stay.told}"
            for actor in self._actors
            for stay in actor.stays
            for wrong in stay.wrongs(self._there(actor, stay))
        ]
        found += [f"{actor.who} was told {wrong}" for actor in self._actors for wrong in actor.overheard()]
        found += self._lost_for_nothing()
        for where in self.record.places():
            try:
                check(self.record.history(where))
            except NoOrder as error:
                found.append(f"{where}: {error}")
        assert not found, "\n".join(found)

    def _there(self, observer: Actor, stay: Stay) -> set[MemberKey]:
        """Who was in for sure when it came: told before it asked, still in when it was, and no gateway in between."""
        end = self.record.now if stay.until is None else stay.until
        return {
            other.key
            for other in self._actors
            for theirs in other.stays
            if theirs.office == stay.office
            and theirs.lasts(stay.asked, stay.since)
            and not self.record.hurt({observer.part.gateway, other.part.gateway}, theirs.since, end)
        }

    def _lost_for_nothing(self) -> list[str]:
        """Watchers whose places, which nobody else wants, did not outlast a cut that is shorter than a lease."""
        found = []
        for gateway in self.record.barely_hurt():
            for office, watchers in self._watchers.items():
                watcher = watchers[gateway]
                if len(watcher.stays) != 1 or watcher.stays[0].until is not None:
                    found.append(f"{watcher.who} lost its place in {office} by a short cut")
                found += [
                    f"{actor.who} was told that {watcher.who} left {office} by a short cut"
                    for actor in self._actors
                    for stay in actor.stays
                    if stay.office == office and (False, watcher.key) in stay.told
                ]
        return found

    async def dispersed(self) -> None:
        """All but the watchers go, and the watchers see it."""
        await asyncio.gather(*(actor.says_goodbye() for actor in self._cast.values()))
        for office in self.offices:
            await eventually(partial(self._agreed, office), timeout=self._back_s, message=f"not all have left {office}")
        self.check()

    async def close(self) -> None:
        await asyncio.gather(*(actor.says_goodbye() for actor in self._actors), return_exceptions=True)

    async def _watched(self, office: str) -> bool:
        for watcher in self._watchers[office]:
            await self._comes_back(watcher, office)
        return all(watcher.stay is not None for watcher in self._watchers[office])

    async def _back_and_agreed(self, office: str) -> bool:
        """A watcher may hear only now that it was cut off. Raises AssertionError while they do not agree."""
        return await self._watched(office) and await self._agreed(office)

    async def _agreed(self, office: str) -> bool:
        """Raises AssertionError while they do not."""
        for actor in self._actors:
            actor.look()
        there = [actor for actor in self._actors if actor.stay is not None and actor.stay.office == office]
        members = await self._bucket.members(office)
        sids = {member: record.session for member, record in members.items()}
        believed = {(actor.part.role, actor.part.name): actor.sid for actor in there}
        assert sids == believed, f"in the bucket {sids}, but connected are {believed}"
        for watcher in self._watchers[office]:
            listed = await watcher.listed()
            assert set(listed or ()) == set(sids), f"listed by {watcher.who}: {listed}, not {sids}"
        for actor in there:
            stay = actor.stay
            picture = None if stay is None else await stay.picture()
            assert picture == set(sids), f"{actor.who} was told of {picture}, not {set(sids)}: {stay and stay.told}"
        return True

    def _actor(self, who: str, part: Part) -> Actor:
        return Actor(who, part, self._connection, self.record)

    def _connection(self, part: Part) -> Client:
        def now() -> float:
            return self.record.now

        if part.native:
            return NativeClient(self._world, part.name, now)
        return RoomClient(part.role, part.name, url=self._urls[part.gateway], now=now)

    async def _comes_back(self, watcher: Actor, office: str) -> None:
        watcher.look()
        if watcher.stay is None:
            await watcher.joins(office)

    async def _do(self, actor: Actor, step: Step) -> None:
        match step.what:
            case "joins":
                await actor.joins(self.offices[step.office])
            case "leaves":
                await actor.leaves()
            case "says goodbye":
                await actor.says_goodbye()
