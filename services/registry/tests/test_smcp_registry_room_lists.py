"""The room's list, which is written once and kept: it is what the view holds, after every change."""

import json
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smcp_proto.schemas import ListRoomRet
from smcp_registry.records import MemberRecord, record_key, tombstone
from smcp_registry.view import MembersView, RoomLists, opaque
from smcp_registry.watch import Change

OWNER = ("c", "p", "own")
CAPABILITIES = {"capable": {"resources": {"subscribe": True}}, "no capabilities": {"resources": 7}}
Shown = set[tuple[str, str]]


@dataclass
class Step:
    office: str
    name: str
    session: str
    what: str


def record(step: Step) -> MemberRecord:
    return MemberRecord(
        office=step.office, role="computer", name=step.name, session=step.session, credential="c", process="p",
        incarnation="i", identity=step.name, announced=step.what != "unannounced", a2c_version="0.4",
        capabilities=CAPABILITIES.get(step.what),
    )  # fmt: skip


def change(step: Step, revision: int) -> Change:
    written = tombstone(record(step)) if step.what == "left" else record(step)
    value = None if step.what == "purged" else written.model_dump_json(exclude_none=True).encode()
    return Change(record_key(step.office, "computer", step.name), value, revision)


def shown(lists: RoomLists, office: str) -> Shown:
    text = b'{"sessions":%b,"req_id":"r"}' % lists.sessions(office, OWNER)
    sessions = ListRoomRet.model_validate_json(text).sessions
    assert len({session.name for session in sessions}) == len(sessions), "nobody twice"
    assert all(session.office_id == office and session.a2c_version == "0.4" for session in sessions)
    return {(session.name or "", session.sid or "") for session in sessions}


def held(view: MembersView, office: str) -> Shown:
    records = [entry.record for entry in view.members(office)]
    return {(each.name, opaque(each)) for each in records if each.announced or each.owner == OWNER}


STEPS = st.builds(
    Step,
    office=st.sampled_from(["lab", "fab"]),
    name=st.sampled_from(["a", "b", "c"]),
    session=st.sampled_from(["own", "other"]),
    what=st.sampled_from(["joined", "capable", "no capabilities", "unannounced", "left", "purged", "all anew"]),
)


@pytest.mark.parametrize("kept_bytes", [0, 1300, 1_000_000])
@settings(max_examples=100)
@given(steps=st.lists(STEPS, max_size=30))
async def test_a_list_that_is_kept_is_the_views_after_every_change(kept_bytes: int, steps: list[Step]) -> None:
    view = MembersView()
    lists = RoomLists(view, kept_bytes=kept_bytes)
    changes: dict[str, Change] = {}
    for revision, step in enumerate(steps, start=1):
        one = change(step, revision)
        changes[one.key] = one
        if step.what == "all anew":  # the watch was lost, and begins with all entries again
            view.reset(list(changes.values()), revision)
        else:
            view.apply(one)
        for office in ("lab", "fab"):
            assert shown(lists, office) == held(view, office)


async def test_a_bucket_that_was_made_anew_shows_nothing_of_the_old_one() -> None:
    view = MembersView()
    lists = RoomLists(view)
    joined = change(Step("lab", "old", "other", "joined"), 7)
    view.reset([joined], 7)
    assert {name for name, _ in shown(lists, "lab")} == {"old"}
    view.reset([Change(joined.key, record(Step("lab", "old", "own", "joined")).model_dump_json().encode(), 7)], 7)
    assert shown(lists, "lab") == held(view, "lab") != set()
    view.reset([], 0)
    assert shown(lists, "lab") == set()


async def test_capabilities_that_are_none_cost_nobody_the_list() -> None:
    view = MembersView()
    lists = RoomLists(view)
    for revision, what in enumerate(CAPABILITIES, start=1):
        view.apply(change(Step("lab", what, "other", what), revision))
    listed = {session["name"]: session.get("capabilities") for session in json.loads(lists.sessions("lab", OWNER))}
    assert listed == {"capable": CAPABILITIES["capable"], "no capabilities": None}


async def test_a_room_mate_that_was_not_announced_is_shown_to_itself_alone() -> None:
    view = MembersView()
    lists = RoomLists(view)
    view.apply(change(Step("lab", "secret", "other", "unannounced"), 1))
    view.apply(change(Step("lab", "me", "own", "unannounced"), 2))
    for owner, name in ((OWNER, "me"), (("c", "p", "other"), "secret")):
        assert [session["name"] for session in json.loads(lists.sessions("lab", owner))] == [name]
    assert json.loads(lists.sessions("lab", ("c", "p", "nobody"))) == []


async def test_of_rooms_through_which_one_only_passed_no_list_is_kept() -> None:
    view = MembersView()
    lists = RoomLists(view)
    for number in range(50):
        office = f"office {number}"
        view.apply(change(Step(office, "me", "own", "unannounced"), 2 * number + 1))
        assert {name for name, _ in shown(lists, office)} == {"me"}
        view.apply(change(Step(office, "me", "own", "left"), 2 * number + 2))
    assert len(lists) == 0


async def test_what_keeping_a_list_costs_counts_too() -> None:
    view = MembersView()
    lists = RoomLists(view, kept_bytes=10_000)
    for number in range(100):
        view.apply(change(Step(f"office {number}", "me", "own", "joined"), number + 1))
        assert shown(lists, f"office {number}")
    assert 0 < len(lists) < 20
