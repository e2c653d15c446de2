"""Rooms over buses that lose, double, delay and re-order: what the registries decide and tell is what it is elsewhere.

The registries' buses and those of the members are bad; who observes an office has a sound one.
"""

import asyncio
import random
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest

from smcp_bus.nats.bus import BusConfig, open_bus
from smcp_bus.registry_contract import Assertion, AssertOutcome, Claim, Confirmed, Joined, Member
from smcp_proto.errors import NotAllowed, NotInOffice, Unavailable
from smcp_proto.member_names import Role
from smcp_registry.app import open_registry
from smcp_registry.settings import RegistrySettings
from smcp_testing.bad_buses import FAULTS, BadBuses
from smcp_testing.member_process import MemberProcess, Observer, member_process, observe
from smcp_testing.profiles import scaled
from smcp_testing.waiting import eventually

LEASE_S = 120.0
"""Longer than any of these takes: nobody renews."""
NAMES = FAULTS if scaled(ci=0, soak=1) else ("lost", "late", "doubled", "reordered")
SEEDS = range(1, 1 + scaled(ci=1, soak=10))
RIVALS = scaled(ci=6, soak=20)
ROUNDS = scaled(ci=2, soak=5)
TURNS = scaled(ci=4, soak=20)
TOLD_S = 30.0


@dataclass
class Scene:
    bad: BadBuses
    members: list[MemberProcess]
    observer: Observer
    """Of the office `lab`."""
    elsewhere: Observer

    async def all_told(self) -> None:
        """All decisions up to now were announced: the enter of another comes last."""
        last = self.members[0]
        claim = new(last, "last")
        await join(last, "computer", "last", claim)
        await eventually(lambda: self.observer.of("last") == ["enter_office"], timeout=TOLD_S)
        await leave(last, "computer", "last", claim)

    def alternating(self, name: str) -> list[str]:
        """The notifications about a name: enter and leave in turn."""
        verbs = self.observer.of(name)
        assert verbs == [("enter_office", "leave_office")[turn % 2] for turn in range(len(verbs))], verbs
        return verbs


@pytest.fixture(params=[(name, seed) for name in NAMES for seed in SEEDS], ids=lambda param: f"{param[0]}-{param[1]}")
def bad(request: pytest.FixtureRequest) -> BadBuses:
    name, seed = request.param
    return BadBuses(FAULTS[name], seed)


@asynccontextmanager
async def opened(url: str, bad: BadBuses, members: int) -> AsyncIterator[Scene]:
    settings = RegistrySettings(nats_url=url, lease_s=LEASE_S)
    async with AsyncExitStack() as stack:
        for _ in range(2):
            bus = await stack.enter_async_context(open_bus(BusConfig(url=url)))
            await stack.enter_async_context(open_registry(settings, await stack.enter_async_context(bad.over(bus))))
        sound = await stack.enter_async_context(open_bus(BusConfig(url=url)))
        processes = [await stack.enter_async_context(member_process(url, bad=bad)) for _ in range(members)]
        # an owner that is asked and whose answer is lost is not taken for gone, since it has a lease
        await asyncio.gather(*(process.renew() for process in processes))
        yield Scene(bad, processes, await observe(sound, "lab"), await observe(sound, "elsewhere"))


def new(member: MemberProcess, session: str = "s1", *, announce: bool = True) -> Claim:
    """A claim with an incarnation of its own, as gateways make them."""
    return member.claim(session, incarnation=uuid.uuid4().hex, announce=announce)


async def join(member: MemberProcess, role: Role, name: str, claim: Claim, office: str = "lab") -> Joined:
    """Asked again for as long as it cannot be decided."""
    while True:
        try:
            return await member.join(office, role, name, claim)
        except Unavailable:
            pass


async def leave(member: MemberProcess, role: Role, name: str, claim: Claim, office: str = "lab") -> None:
    """As a gateway does it: the claim is given up first; one that is not a member (any more) has left."""
    member.given_up.add(claim.incarnation)
    while True:
        try:
            await member.leave(office, role, name, claim)
        except Unavailable:
            continue
        except NotInOffice:
            pass
        return


async def asserted(member: MemberProcess, members: list[Member]) -> list[AssertOutcome]:
    """Asserted again for as long as nobody answers, or an outcome is open, as a gateway does it."""
    while True:
        try:
            result = await member.registry.assert_members(Assertion(members=members))
        except Unavailable:
            continue
        outcomes = [each.outcome for each in result.members]
        if AssertOutcome.UNAVAILABLE not in outcomes:
            return outcomes


async def confirmed(member: MemberProcess, name: str, claim: Claim) -> Confirmed:
    while True:
        try:
            return await member.registry.confirm(("lab", "computer", name), claim)
        except Unavailable:
            pass


async def test_one_of_many_concurrent_claims_gets_the_seat_and_changes_alternate(nats_url: str, bad: BadBuses) -> None:
    async with opened(nats_url, bad, RIVALS) as scene:

        async def wants(member: MemberProcess, claim: Claim) -> bool:
            try:
                await join(member, "computer", "same", claim)
            except NotAllowed:
                await leave(member, "computer", "same", claim)  # a copy of it may still be on its way
                return False
            return True

        for _ in range(ROUNDS):
            claims = [new(member) for member in scene.members]
            won = await asyncio.gather(*map(wants, scene.members, claims))
            assert won.count(True) == 1
            winner, claim = scene.members[won.index(True)], claims[won.index(True)]
            assert (await confirmed(winner, "same", claim)).mine
            assert (await join(winner, "computer", "same", claim)).unchanged
            assert await winner.room("lab", "computer", "same") == {("computer", "same")}
            await leave(winner, "computer", "same", claim)
        await scene.all_told()
        verbs = scene.alternating("same")
        assert len(verbs) >= 2 * ROUNDS  # more where a copy of a refused join found the seat free, and was given up
        assert verbs[-1] == "leave_office"
        scene.bad.check(notices=False)  # nobody listens on a bad bus


async def test_an_assertion_claims_lost_members_and_announces_each_once(nats_url: str, bad: BadBuses) -> None:
    async with opened(nats_url, bad, 2) as scene:
        gateway, other = scene.members
        await join(other, "computer", "taken", new(other))
        claims = {name: new(gateway, name) for name in ("stands", "lost", "taken")}
        await join(gateway, "computer", "stands", claims["stands"])
        members = [Member(office="lab", role="computer", name=name, claim=claim) for name, claim in claims.items()]
        stands, lost, taken = await asserted(gateway, members)
        assert (stands, taken) == (AssertOutcome.UNCHANGED, AssertOutcome.REFUSED)
        assert lost in {AssertOutcome.CLAIMED, AssertOutcome.UNCHANGED}  # its copy came second
        assert await asserted(gateway, members[:2]) == [AssertOutcome.UNCHANGED] * 2
        await scene.all_told()
        assert [scene.observer.of(name) for name in claims] == [["enter_office"]] * 3


async def test_enters_and_leaves_alternate_and_the_last_one_matches_the_room(nats_url: str, bad: BadBuses) -> None:
    async with opened(nats_url, bad, 5) as scene:

        async def come_and_go(number: int, member: MemberProcess) -> None:
            for turn in range(TURNS):
                name = f"pc{random.Random(number * 100 + turn).randrange(3)}"
                claim = new(member, f"s{turn}")
                try:
                    joined = await join(member, "computer", name, claim)
                except NotAllowed:
                    await leave(member, "computer", name, claim)  # a copy of it may still be on its way
                    continue
                found = await confirmed(member, name, claim)
                assert found.mine or found.view < joined.revision  # another registry may be behind
                if turn % 4 == 3:
                    member.sessions.discard(claim.session)  # gone without a word: the next one finds that out
                elif turn < TURNS - 1:
                    await leave(member, "computer", name, claim)

        await asyncio.gather(*(come_and_go(number, member) for number, member in enumerate(scene.members)))
        await scene.all_told()
        watcher = scene.members[0]
        joined = await join(watcher, "agent", "watcher", new(watcher, "watcher"))
        room = await watcher.room("lab", "agent", "watcher", after=joined.revision)
        present = {name for role, name in room if role == "computer"}
        for name in ("pc0", "pc1", "pc2"):
            assert (len(scene.alternating(name)) % 2 == 1) == (name in present)
        scene.bad.check(notices=False)  # nobody listens on a bad bus
