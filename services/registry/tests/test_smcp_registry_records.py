"""Records, their keys, and their announcements to the office."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.js.kv import VALID_KEY_RE

from smcp_proto.member_names import check_name
from smcp_registry.announcer import announcements
from smcp_registry.member_records import Announce, MemberRecord, record_key, tombstone
from smcp_registry.members_view import opaque, session_info


def legal(name: str) -> bool:
    try:
        return check_name(name) == name
    except ValueError:
        return False


NAMES = st.text(min_size=1, max_size=128).filter(legal)


def record(**changes: object) -> MemberRecord:
    fields = {
        "office": "lab", "role": "computer", "name": "pc", "session": "s", "credential": "c", "process": "p",
        "incarnation": "i", "identity": "id",
    } | changes  # fmt: skip
    return MemberRecord.model_validate(fields)


@given(NAMES, NAMES)
def test_every_name_gives_a_legal_key_of_its_own(office: str, name: str) -> None:
    key = record_key(office, "computer", name)
    assert VALID_KEY_RE.fullmatch(key)
    assert key.count(".") == 2
    assert record_key(office, "agent", name) == record_key(office, "agent", "another") != key
    assert (record_key(office, "computer", "pc") == key) == (name == "pc")
    assert (record_key("lab", "computer", name) == key) == (office == "lab")


def test_a_record_survives_the_store_with_fields_that_a_newer_registry_added() -> None:
    newer = record(capabilities={"resources": {"supported": True}}, colour="green")
    again = MemberRecord.model_validate_json(newer.model_dump_json(exclude_none=True))
    assert again == newer
    assert json.loads(tombstone(again).model_dump_json())["colour"] == "green"


@pytest.mark.rule("answers.nats.epoch")
@pytest.mark.parametrize(
    ("announce", "told"),
    [
        (Announce.NOTHING, []),
        (Announce.ENTER, [("enter_office", 15)]),
        (Announce.LEAVE, [("leave_office", 14)]),
        (Announce.LEAVE_ENTER, [("leave_office", 14), ("enter_office", 15)]),
    ],
)
def test_a_leave_is_announced_before_an_enter_with_a_smaller_epoch(
    announce: Announce, told: list[tuple[str, int]]
) -> None:
    announced = list(announcements(record(announce=announce), 7))
    assert [(verb, epoch) for verb, _, epoch in announced] == told
    assert all(json.loads(body) == {"office_id": "lab", "computer": "pc"} for _, body, _ in announced)


@pytest.mark.rule("answers.rooms.notification.one-key")
def test_only_the_key_that_applies_is_in_a_notification() -> None:
    [(_, body, _)] = announcements(record(role="agent", name="zoë", announce=Announce.ENTER), 1)
    assert json.loads(body) == {"office_id": "lab", "agent": "zoë"}


def test_a_record_of_a_replaced_agent_announces_the_leave_of_the_former_one() -> None:
    followed = record(role="agent", name="new", left_name="old", announce=Announce.LEAVE_ENTER)
    left, entered = (json.loads(body) for _, body, _ in announcements(followed, 1))
    assert (left["agent"], entered["agent"]) == ("old", "new")


def test_an_unannounced_member_leaves_without_a_notification() -> None:
    assert tombstone(record()).announce is Announce.LEAVE
    assert tombstone(record(announced=False)).announce is Announce.NOTHING


@pytest.mark.rule("answers.connect.version.shown", "answers.rooms.list.sid")
def test_a_listed_session_shows_only_an_opaque_id() -> None:
    shown = json.loads(session_info(record(session="secret", a2c_version="0.3")).model_dump_json(exclude_unset=True))
    assert shown == {
        "sid": opaque(record(session="secret")), "name": "pc", "role": "computer", "office_id": "lab",
        "a2c_version": "0.3",
    }  # fmt: skip
    assert "secret" not in json.dumps(shown)
    assert opaque(record(session="a")) != opaque(record(session="b"))


def test_capabilities_are_kept_as_text_and_shown_as_they_were_said() -> None:
    """Parsed, 60 KB of them took 1.4 MB at the gateway and at each registry, for each of a tenant's members."""
    said = {"x": [[]] * 5_000, "n": 10**30}
    kept = record(capabilities=said)
    assert isinstance(kept.capabilities, bytes)
    text = kept.model_dump_json()
    assert json.loads(text)["capabilities"] == said
    assert MemberRecord.model_validate_json(text) == kept
    shown = session_info(kept).capabilities
    assert shown is not None
    assert shown.model_dump(exclude_unset=True) == said
