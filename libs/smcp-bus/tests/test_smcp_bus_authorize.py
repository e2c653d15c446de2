"""Authorization, as a table."""

from typing import Any

import pytest

from smcp_bus.callers import Caller
from smcp_bus.dispatch import authorize
from smcp_proto.catalog import CATALOG
from smcp_proto.errors import NotAllowed, NotInOffice

ALICE = Caller(role="agent", office="lab", name="alice")
PC = Caller(role="computer", office="lab", name="pc")
STRANGER = Caller(role=None)

ALLOWED: list[tuple[str, Caller, dict[str, Any]]] = [
    ("server:join_office", STRANGER, {"role": "agent", "name": "alice", "office_id": "lab"}),
    ("server:join_office", ALICE, {"role": "agent", "name": "alice", "office_id": "lab"}),
    ("server:leave_office", ALICE, {"office_id": "lab"}),
    ("server:leave_office", ALICE, {"office_id": "elsewhere"}),
    ("client:tool_call", ALICE, {"agent": "alice", "computer": "pc"}),
    ("client:get_tools", ALICE, {"agent": "alice", "computer": "pc"}),
    ("server:list_room", ALICE, {"agent": "alice", "office_id": "lab"}),
    ("server:list_room", PC, {"agent": "pc", "office_id": "lab"}),
    ("notify:resources/updated", PC, {"roomId": "lab", "computerId": "pc"}),
    ("server:update_config", PC, {"computer": "pc"}),
    ("server:update_config", PC, {"computer": "pc", "office_id": "lab", "more": "other"}),
    ("server:resources/updated", PC, {"roomId": "lab", "computerId": "pc", "agent": "alice"}),
    ("client:tool_call", ALICE, {"agent": "alice", "computer": "pc", "office_id": "lab", "computerId": "other"}),
    ("server:tool_call_cancel", ALICE, {"agent": "alice", "req_id": "1"}),
    ("client:resources/list", ALICE, {"roomId": "lab", "computerId": "pc"}),
]

REFUSED: list[tuple[str, Caller, dict[str, Any], type[Exception], str | None]] = [
    ("client:tool_call", STRANGER, {"agent": "alice", "computer": "pc"}, NotInOffice, None),
    ("server:list_room", STRANGER, {"agent": "alice", "office_id": "lab"}, NotInOffice, None),
    ("server:leave_office", STRANGER, {"office_id": "lab"}, NotInOffice, None),
    ("client:tool_call", PC, {"agent": "alice", "computer": "pc"}, NotAllowed, None),
    ("server:update_config", ALICE, {"computer": "pc"}, NotAllowed, None),
    ("server:update_tool_list", PC, {"computer": "other"}, NotAllowed, "computer"),
    ("server:list_room", ALICE, {"agent": "alice", "office_id": "elsewhere"}, NotAllowed, "office_id"),
    ("notify:resources/updated", PC, {"roomId": "lab", "computerId": "other"}, NotAllowed, "computerId"),
    ("notify:enter_office", PC, {"office_id": "lab", "computer": "pc"}, NotAllowed, None),
    ("server:tool_call_cancel", PC, {"agent": "pc", "req_id": "1"}, NotAllowed, None),
    ("server:join_office", ALICE, {"role": "computer", "name": "alice", "office_id": "lab"}, NotAllowed, "role"),
    ("server:join_office", ALICE, {"role": "agent", "name": "bob", "office_id": "lab"}, NotAllowed, "name"),
    ("client:resources/list", ALICE, {"roomId": "elsewhere", "computerId": "pc"}, NotAllowed, "roomId"),
    ("server:list_room", PC, {"agent": "alice", "office_id": "lab"}, NotAllowed, "agent"),
    ("server:list_room", PC, {"agent": "other", "office_id": "lab"}, NotAllowed, "agent"),
    # fields that the event does not have
    ("server:update_config", PC, {"computer": "pc", "agent": "alice"}, NotAllowed, "agent"),
    ("server:update_config", PC, {"computer": "pc", "agent": "pc"}, NotAllowed, "agent"),
    ("server:update_config", PC, {"computer": "pc", "agent": 5}, NotAllowed, "agent"),
    ("server:update_config", PC, {"computer": "pc", "computerId": "other"}, NotAllowed, "computerId"),
    ("server:update_config", PC, {"computer": "pc", "office_id": "elsewhere"}, NotAllowed, "office_id"),
    ("server:update_capabilities", PC, {"computer": "pc", "roomId": "elsewhere"}, NotAllowed, "roomId"),
    ("notify:resources/list_changed", PC, {"roomId": "lab", "computerId": "pc", "agent": "alice"}, NotAllowed, "agent"),
    ("client:tool_call", ALICE, {"agent": "alice", "computer": "pc", "roomId": "elsewhere"}, NotAllowed, "roomId"),
]


def test_an_office_is_the_same_however_its_letters_are_composed() -> None:
    caller = Caller(role="computer", office="b\u00fcro", name="pc")
    authorize(CATALOG["server:update_config"], caller, {"office_id": "bu\u0308ro"})


@pytest.mark.parametrize(("event", "caller", "request_"), ALLOWED)
def test_a_member_may_speak_for_itself_in_its_office(event: str, caller: Caller, request_: dict[str, Any]) -> None:
    authorize(CATALOG[event], caller, request_)


@pytest.mark.rule(
    "answers.{errors.403,rooms.role-fixed,rooms.name-fixed,who.computer,who.other-fields}",
    "answers.who.client-events",
)
@pytest.mark.parametrize(("event", "caller", "request_", "error", "field"), REFUSED)
def test_a_request_for_another_member_or_office_is_refused(
    event: str, caller: Caller, request_: dict[str, Any], error: type[Exception], field: str | None
) -> None:
    with pytest.raises(error) as refused:
        authorize(CATALOG[event], caller, request_)
    if field is not None:
        assert isinstance(refused.value, NotAllowed)
        assert refused.value.details == {"field": field}
