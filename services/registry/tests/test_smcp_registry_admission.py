"""The table of admission, row by row, and properties of all its rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_bus.registry_contract import Claim
from smcp_proto.member_names import Role
from smcp_registry.admission import Action, Decision, OwnerState, claimed, decide
from smcp_registry.member_records import Announce, MemberRecord, State, tombstone


def claim(
    session: str = "mine",
    *,
    process: str = "p1",
    identity: str = "alice",
    announce: bool = True,
    incarnation: str = "i",
) -> Claim:
    return Claim(
        session=session, credential="c", process=process, incarnation=incarnation, identity=identity, announce=announce
    )


def record(
    session: str = "other",
    *,
    process: str = "p0",
    identity: str = "bob",
    announced: bool = True,
    moving: bool = False,
    name: str = "pc",
) -> MemberRecord:
    return MemberRecord(
        office="lab", role="computer", name=name, session=session, credential="c", process=process,
        incarnation="i", identity=identity, announced=announced, moving=moving,
    )  # fmt: skip


def decided(present: MemberRecord | None, wanted: Claim, owner: OwnerState, *, over: bool = False) -> Decision:
    """Where the record is of a member that moves, its time is not over, unless `over` says so."""
    kept = present is not None and present.moving and not over
    return decide(present, wanted, owner, role="computer", name="pc", kept=kept)


CLAIM_ENTER = (Action.CLAIM, Announce.ENTER)
CLAIM_SILENT = (Action.CLAIM, Announce.NOTHING)
CLAIM_OVER = (Action.CLAIM, Announce.LEAVE_ENTER)
REFUSE = (Action.REFUSE, Announce.NOTHING)
ASK = (Action.ASK_OWNER, Announce.NOTHING)
UNCHANGED = (Action.UNCHANGED, Announce.NOTHING)

TABLE = [
    # none, or a tombstone
    (None, claim(), OwnerState.NOT_ASKED, CLAIM_ENTER),
    (tombstone(record()), claim(), OwnerState.NOT_ASKED, CLAIM_ENTER),
    (tombstone(record("mine", process="p1")), claim(), OwnerState.NOT_ASKED, CLAIM_ENTER),
    # the claimant's own
    (record("mine", process="p1"), claim(), OwnerState.NOT_ASKED, UNCHANGED),
    (record("mine", process="p1"), claim(incarnation="another"), OwnerState.NOT_ASKED, UNCHANGED),
    (record("mine", process="p1", moving=True), claim(), OwnerState.NOT_ASKED, UNCHANGED),
    # the same session's name in another process, or another session of the same process, is another's
    (record("mine", process="p0"), claim(), OwnerState.NOT_ASKED, ASK),
    (record("other", process="p1"), claim(), OwnerState.NOT_ASKED, ASK),
    # another's, moving, same identity
    (record(identity="alice", moving=True), claim(), OwnerState.NOT_ASKED, CLAIM_SILENT),
    (record(identity="alice", moving=True), claim(), OwnerState.ALIVE, CLAIM_SILENT),
    (record(identity="alice", moving=True), claim(), OwnerState.GONE, CLAIM_SILENT),
    # another's, moving, other identity
    (record(moving=True), claim(), OwnerState.NOT_ASKED, REFUSE),
    (record(moving=True), claim(), OwnerState.GONE, REFUSE),
    # another's
    (record(), claim(), OwnerState.NOT_ASKED, ASK),
    (record(identity="alice"), claim(), OwnerState.NOT_ASKED, ASK),
    (record(), claim(), OwnerState.ALIVE, REFUSE),
    (record(), claim(), OwnerState.GONE, CLAIM_OVER),
    # the first step of an office switch: claimed without telling
    (None, claim(announce=False), OwnerState.NOT_ASKED, CLAIM_SILENT),
    (tombstone(record()), claim(announce=False), OwnerState.NOT_ASKED, CLAIM_SILENT),
    (record(), claim(announce=False), OwnerState.GONE, (Action.CLAIM, Announce.LEAVE)),
    (record("mine", process="p1", announced=False), claim(announce=False), OwnerState.NOT_ASKED, UNCHANGED),
    # its last step: announced now
    (record("mine", process="p1", announced=False), claim(), OwnerState.NOT_ASKED, CLAIM_ENTER),
    # an announced member stays announced, however it is claimed again
    (record("mine", process="p1"), claim(announce=False), OwnerState.NOT_ASKED, UNCHANGED),
    # the one before was not announced
    (record(announced=False), claim(), OwnerState.GONE, CLAIM_ENTER),
    (record(announced=False), claim(announce=False), OwnerState.GONE, CLAIM_SILENT),
    (record(identity="alice", announced=False, moving=True), claim(), OwnerState.NOT_ASKED, CLAIM_ENTER),
]


@pytest.mark.rule("answers.rooms.admission.{free,own,moving-same,moving-other,alive,gone}")
@pytest.mark.parametrize(("present", "wanted", "owner", "expected"), TABLE)
def test_the_table_says_who_gets_the_seat(
    present: MemberRecord | None, wanted: Claim, owner: OwnerState, expected: tuple[Action, Announce]
) -> None:
    decision = decided(present, wanted, owner)
    assert (decision.action, decision.announce) == expected
    assert bool(decision.why) == (decision.action is Action.REFUSE)


@pytest.mark.rule("answers.rooms.admission.silent")
@pytest.mark.parametrize(
    ("present", "role", "name", "expected"),
    [
        (record(identity="alice"), "agent", "pc", CLAIM_OVER),
        (record(identity="alice", announced=False), "agent", "pc", CLAIM_ENTER),
        (record(identity="alice"), "agent", "other", REFUSE),
        (record(identity="bob"), "agent", "pc", REFUSE),
        (record(identity="alice"), "computer", "pc", REFUSE),
        (record(identity="alice", moving=True), "agent", "pc", CLAIM_SILENT),
    ],
)
def test_only_an_agent_may_take_its_seat_back_from_a_suspended_owner(
    present: MemberRecord, role: Role, name: str, expected: tuple[Action, Announce]
) -> None:
    decision = decide(present, claim(), OwnerState.SILENT, role=role, name=name, kept=present.moving)
    assert (decision.action, decision.announce) == expected


def test_a_member_that_claims_another_name_is_refused_with_a_reason() -> None:
    decision = decided(record("mine", process="p1", name="old"), claim(), OwnerState.NOT_ASKED)
    assert decision == Decision(Action.REFUSE, why="the name of a member cannot change", reason="name")


def test_a_claim_writes_the_claimants_data_and_the_announcement() -> None:
    said = Claim(
        session="mine", credential="c", process="p1", incarnation="i", identity="alice", announce=True,
        a2c_version="0.4.2", capabilities={"resources": {"subscribe": True}},
    )  # fmt: skip
    for before in (None, tombstone(record()), record()):
        for announce in Announce:
            written = claimed(before, said, announce, ("lab", "computer", "pc"))
            assert said.model_dump(exclude={"announce"}).items() <= written.model_dump().items()
            assert (written.office, written.role, written.name) == ("lab", "computer", "pc")
            assert (written.state, written.announce, written.moving) == (State.MEMBER, announce, False)


@pytest.mark.parametrize(
    ("before", "announce", "left"),
    [
        (None, Announce.ENTER, None),
        (record(name="old"), Announce.NOTHING, None),
        (record(name="old"), Announce.ENTER, None),
        (record(name="old"), Announce.LEAVE, "old"),
        (record(name="old"), Announce.LEAVE_ENTER, "old"),
        (record(name="pc"), Announce.LEAVE_ENTER, None),
    ],
)
def test_a_record_keeps_the_former_name_only_for_an_announced_leave(
    before: MemberRecord | None, announce: Announce, left: str | None
) -> None:
    assert claimed(before, claim(), announce, ("lab", "agent", "pc")).left_name == left


def test_an_agent_that_takes_a_moving_seat_under_another_name_causes_leave_and_enter() -> None:
    moving = record(identity="alice", moving=True, name="old")
    decision = decided(moving, claim(), OwnerState.NOT_ASKED)
    assert (decision.action, decision.announce) == CLAIM_OVER
    written = claimed(moving, claim(), decision.announce, ("lab", "agent", "pc"))
    assert (written.name, written.left_name) == ("pc", "old")


def test_only_a_kept_seat_is_taken_up_after_a_move() -> None:
    for announced in (True, False):
        kept = record(identity="alice", moving=True, announced=announced)
        assert decided(kept, claim(), OwnerState.NOT_ASKED).taken_up is True
    for present, owner in (
        (None, OwnerState.NOT_ASKED),
        (record("mine", process="p1"), OwnerState.NOT_ASKED),
        (record(identity="alice", moving=True, name="old"), OwnerState.NOT_ASKED),
        (record(moving=True), OwnerState.NOT_ASKED),
    ):
        assert decided(present, claim(), owner).taken_up is False
    assert decided(record(identity="alice", moving=True), claim(), OwnerState.GONE, over=True).taken_up is False


@pytest.mark.parametrize(
    ("owner", "expected"), [(OwnerState.NOT_ASKED, ASK), (OwnerState.ALIVE, REFUSE), (OwnerState.GONE, CLAIM_OVER)]
)
def test_an_expired_move_does_not_keep_the_seat(owner: OwnerState, expected: tuple[Action, Announce]) -> None:
    decision = decided(record(identity="alice", moving=True), claim(), owner, over=True)
    assert (decision.action, decision.announce) == expected


@pytest.mark.parametrize("present", [record(), record(moving=True)])
def test_a_refusal_names_the_taken_seat(present: MemberRecord) -> None:
    computer = decide(present, claim(), OwnerState.ALIVE, role="computer", name="pc", kept=present.moving)
    assert computer.why == "the office has a Computer named 'pc' already"
    agent = decide(present, claim(), OwnerState.ALIVE, role="agent", name="pc", kept=present.moving)
    assert agent.why == "the office already has an Agent: 'pc'"
    assert agent.holder == present


SESSIONS = st.sampled_from(["a", "b"])
OWNERS = st.sampled_from(list(OwnerState))
CLAIMS = st.builds(
    claim,
    SESSIONS,
    process=st.sampled_from(["p0", "p1"]),
    identity=st.sampled_from(["alice", "bob"]),
    announce=st.booleans(),
    incarnation=st.sampled_from(["i", "j"]),
)
STEPS = st.lists(st.one_of(st.tuples(CLAIMS, OWNERS, st.booleans(), st.booleans()), st.none()), max_size=12)


@pytest.mark.rule("answers.rooms.alternate")
@given(STEPS)
def test_enter_and_leave_alternate_for_an_observer_after_any_claims(
    steps: list[tuple[Claim, OwnerState, bool, bool] | None],
) -> None:
    """A step is a claim (with the owner's answer, and whether a move is over; then it may move), or None: a leave."""
    present: MemberRecord | None = None
    told: list[str] = []
    for step in steps:
        if step is None:
            if present is None or not present.is_member:
                continue
            present = tombstone(present)
            announce = present.announce
        else:
            wanted, owner, moves, over = step
            decision = decided(present, wanted, owner, over=over)
            if decision.action is not Action.CLAIM:
                continue
            announce = decision.announce
            present = claimed(present, wanted, announce, ("lab", "computer", "pc"))
            if moves:
                present = present.model_copy(update={"moving": True})
        told += {
            Announce.NOTHING: [],
            Announce.ENTER: ["enter"],
            Announce.LEAVE: ["leave"],
            Announce.LEAVE_ENTER: ["leave", "enter"],
        }[announce]
        assert told == [("enter", "leave")[turn % 2] for turn in range(len(told))]
        assert present.is_visible == (len(told) % 2 == 1)


@given(CLAIMS, CLAIMS, st.booleans(), st.booleans(), OWNERS)
def test_a_seat_changes_hands_only_by_its_owner_a_gone_or_silent_owner_or_a_move(
    before: Claim, wanted: Claim, announced: bool, moving: bool, owner: OwnerState
) -> None:
    present = claimed(None, before, Announce.ENTER if announced else Announce.NOTHING, ("o", "agent", "a"))
    decision = decide(present, wanted, owner, role="agent", name="a", kept=moving)
    own = (before.session, before.process) == (wanted.session, wanted.process)
    if own:
        assert decision.action in (Action.UNCHANGED, Action.CLAIM)
        assert decision.announce in (Announce.NOTHING, Announce.ENTER)
    elif moving:
        assert (decision.action is Action.CLAIM) == (before.identity == wanted.identity)
    else:
        assert decision.action is {
            OwnerState.NOT_ASKED: Action.ASK_OWNER, OwnerState.ALIVE: Action.REFUSE, OwnerState.GONE: Action.CLAIM,
                OwnerState.NO_SESSION: Action.CLAIM,
            OwnerState.SILENT: Action.CLAIM if before.identity == wanted.identity else Action.REFUSE,
        }[owner]  # fmt: skip


@given(CLAIMS, st.booleans())
def test_a_repeated_claim_is_unchanged(wanted: Claim, gone: bool) -> None:
    present = record() if gone else None
    decision = decided(present, wanted, OwnerState.GONE)
    written = claimed(present, wanted, decision.announce, ("lab", "computer", "pc"))
    assert written.state is State.MEMBER
    assert written.announced == wanted.announce
    assert decided(written, wanted, OwnerState.NOT_ASKED).action is Action.UNCHANGED
