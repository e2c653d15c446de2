"""Moving members: their seats are kept for their identities for the configured time."""

import logging
import time
from collections.abc import Awaitable
from functools import partial

import orjson
import pytest

from smcp_bus.registry_contract import Assertion, AssertOutcome, Claim, Member
from smcp_proto.errors import NotAllowed
from smcp_proto.member_names import Role
from smcp_registry.app import EVENTS
from smcp_testing import registry_world
from smcp_testing.member_process import MemberProcess, dying_process, member_process, observe
from smcp_testing.registry_world import recorded
from smcp_testing.waiting import eventually

LEASE_S = 1.0
registries = partial(registry_world.registries, lease_s=LEASE_S)


async def moves(owner: MemberProcess, role: Role, name: str, claim: Claim) -> AssertOutcome:
    """The process says that it is about to tell this member to go."""
    member = Member(office="lab", role=role, name=name, claim=claim, moving=True)
    result = await owner.registry.assert_members(Assertion(members=[member]))
    return result.members[0].outcome


async def found(asker: MemberProcess, name: str) -> tuple[bool, bool]:
    """Whether that Computer is a member, and whether it moves."""
    answer = await asker.registry.find(("lab", "agent", "asker"), name, timeout=30)
    return answer.member, answer.moving


@pytest.mark.rule("answers.rooms.moving.drain")
@pytest.mark.parametrize(("role", "name"), [("agent", "alice"), ("computer", "pc")])
async def test_the_same_identity_takes_a_moving_seat_without_a_notification(
    nats_url: str, role: Role, name: str
) -> None:
    async with (
        registries(nats_url, move_s=30),
        member_process(nats_url) as old,
        member_process(nats_url) as new,
        member_process(nats_url) as stranger,
        member_process(nats_url) as bystander,
    ):
        observer = await observe(bystander.bus, "lab")
        claim = old.claim(identity="me")
        first = await old.join("lab", role, name, claim)
        assert await moves(old, role, name, claim) is AssertOutcome.UNCHANGED
        with pytest.raises(NotAllowed):
            await stranger.join("lab", role, name, stranger.claim(identity="somebody else"))
        second = await new.join("lab", role, name, new.claim(identity="me"))
        assert second.revision > first.revision
        assert not second.unchanged
        # its old owner has nothing to say about it any more, neither that it moves nor that it stays
        assert await moves(old, role, name, claim) is AssertOutcome.REFUSED
        await bystander.join("lab", "computer", "last")
        await eventually(lambda: observer.of("last") == ["enter_office"])
        assert observer.of(name) == ["enter_office"]


@pytest.mark.rule("answers.rooms.moving.wait")
async def test_a_moving_member_is_found_as_moving_until_it_is_back(nats_url: str) -> None:
    async with registries(nats_url, move_s=30), member_process(nats_url) as old, member_process(nats_url) as new:
        await new.join("lab", "agent", "asker")
        claim = old.claim(identity="me")
        await old.join("lab", "computer", "pc", claim)
        assert await found(new, "pc") == (True, False)
        await moves(old, "computer", "pc", claim)
        await eventually(lambda: _is(found(new, "pc"), (True, True)))
        await new.join("lab", "computer", "pc", new.claim("s2", identity="me"))
        await eventually(lambda: _is(found(new, "pc"), (True, False)))


@pytest.mark.rule("answers.rooms.moving.until")
@pytest.mark.parametrize("process_lives", [True, False])
async def test_a_moving_member_leaves_when_its_move_expires_and_not_before(
    nats_url: str, caplog: pytest.LogCaptureFixture, *, process_lives: bool
) -> None:
    caplog.set_level(logging.INFO, logger=EVENTS)
    move_s = 3 * LEASE_S
    async with (
        registries(nats_url, move_s=move_s),
        member_process(nats_url) as bystander,
        dying_process(nats_url) as dying,
    ):
        observer = await observe(bystander.bus, "lab")
        old = dying.member
        claim = old.claim("gone", identity="me")
        await old.join("lab", "computer", "pc", claim)
        await old.join("lab", "computer", "stays", old.claim("here"))
        began = time.time()
        await moves(old, "computer", "pc", claim)
        old.sessions.discard("gone")
        if not process_lives:
            await dying.die()
        await eventually(lambda: observer.of("pc") == ["enter_office", "leave_office"])
        assert time.time() - began >= move_s
        assert recorded(caplog, "pc") == [("join", "ok"), ("leave", "not_back")]
        if process_lives:
            assert observer.of("stays") == ["enter_office"]


@pytest.mark.rule("answers.rooms.moving.until")
async def test_a_moving_member_that_its_process_still_holds_stays_after_the_move_expires(nats_url: str) -> None:
    async with registries(nats_url, move_s=0.2), member_process(nats_url) as old:
        observer = await observe(old.bus, "lab")
        claim = old.claim()
        await old.join("lab", "computer", "pc", claim)
        await moves(old, "computer", "pc", claim)
        await eventually(lambda: old.asked >= 3)  # it was asked after it, again and again
        assert observer.of("pc") == ["enter_office"]


@pytest.mark.parametrize("by", ["join", "assert"])
async def test_a_member_that_claims_its_own_moving_seat_ends_the_move(nats_url: str, by: str) -> None:
    async with registries(nats_url, move_s=30), member_process(nats_url) as old:
        await old.join("lab", "agent", "asker")
        claim = old.claim(identity="me")
        await old.join("lab", "computer", "pc", claim)
        await moves(old, "computer", "pc", claim)
        await eventually(lambda: _is(found(old, "pc"), (True, True)))
        if by == "join":
            await old.join("lab", "computer", "pc", claim)
        else:
            member = Member(office="lab", role="computer", name="pc", claim=claim)
            await old.registry.assert_members(Assertion(members=[member]))
        await eventually(lambda: _is(found(old, "pc"), (True, False)))


@pytest.mark.parametrize("moved", [True, False])
async def test_a_repeated_claim_keeps_updated_capabilities(nats_url: str, *, moved: bool) -> None:
    async with registries(nats_url, move_s=30), member_process(nats_url) as old:
        claim = old.claim(identity="me").model_copy(update={"capabilities": b'{"resources":{"subscribe":false}}'})
        await old.join("lab", "computer", "pc", claim)
        update = {"computer": "pc", "capabilities": {"resources": {"subscribe": True}}}
        await old.registry.tell(("lab", "computer", "pc"), "update_capabilities", orjson.dumps(update))
        if moved:
            await moves(old, "computer", "pc", claim)
        joined = await old.join("lab", "computer", "pc", claim)
        room = await old.registry.room(("lab", "computer", "pc"), after=joined.revision, req_id="r")
        [said] = [session.capabilities for session in room.sessions]
        assert said is not None
        assert said.model_dump(exclude_unset=True) == {"resources": {"subscribe": True}}


async def test_moving_makes_nobody_a_member(nats_url: str) -> None:
    async with registries(nats_url, move_s=30), member_process(nats_url) as old, member_process(nats_url) as other:
        assert await moves(old, "computer", "pc", old.claim()) is AssertOutcome.REFUSED
        await other.join("lab", "computer", "pc")
        assert await moves(old, "computer", "pc", old.claim()) is AssertOutcome.REFUSED
        assert await other.holds("lab", "computer", "pc")


async def _is(answer: Awaitable[object], wanted: object) -> bool:
    return await answer == wanted
