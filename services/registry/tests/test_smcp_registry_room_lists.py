"""A room's list is what the view holds, after every change."""

import json
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from smcp_proto.schemas import ListRoomRet
from smcp_registry.bucket_watch import Change
from smcp_registry.member_records import MemberRecord, record_key, tombstone
from smcp_registry.members_view import MembersView, opaque

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


def shown(view: MembersView, office: str) -> Shown:
    text = b'{"sessions":%b,"req_id":"r"}' % view.sessions_json(office, OWNER)
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


@settings(max_examples=100)
@given(steps=st.lists(STEPS, max_size=30))
async def test_a_room_list_equals_the_view_after_every_change(steps: list[Step]) -> None:
    view = MembersView()
    changes: dict[str, Change] = {}
    for revision, step in enumerate(steps, start=1):
        one = change(step, revision)
        changes[one.key] = one
        if step.what == "all anew":  # the watch was lost, and begins with all entries again
            view.reset(list(changes.values()))
        else:
            view.apply(one)
        for office in ("lab", "fab"):
            assert shown(view, office) == held(view, office)


async def test_a_replaced_bucket_shows_no_entries_of_the_lost_one() -> None:
    view = MembersView()
    joined = change(Step("lab", "old", "other", "joined"), 7)
    view.reset([joined])
    assert {name for name, _ in shown(view, "lab")} == {"old"}
    view.reset([Change(joined.key, record(Step("lab", "old", "own", "joined")).model_dump_json().encode(), 7)])
    assert shown(view, "lab") == held(view, "lab") != set()
    view.reset([])
    assert shown(view, "lab") == set()


async def test_malformed_capabilities_do_not_break_the_room_list() -> None:
    view = MembersView()
    for revision, what in enumerate(CAPABILITIES, start=1):
        view.apply(change(Step("lab", what, "other", what), revision))
    listed = {session["name"]: session.get("capabilities") for session in json.loads(view.sessions_json("lab", OWNER))}
    assert listed == {"capable": CAPABILITIES["capable"], "no capabilities": None}


async def test_an_unannounced_member_is_listed_only_to_itself() -> None:
    view = MembersView()
    view.apply(change(Step("lab", "secret", "other", "unannounced"), 1))
    view.apply(change(Step("lab", "me", "own", "unannounced"), 2))
    for owner, name in ((OWNER, "me"), (("c", "p", "other"), "secret")):
        assert [session["name"] for session in json.loads(view.sessions_json("lab", owner))] == [name]
    assert json.loads(view.sessions_json("lab", ("c", "p", "nobody"))) == []
