"""Offices, the desktop and updates: what is optional, and the examples of the pages."""

import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from smcp_proto import schemas
from smcp_proto.schemas import (
    EnterOfficeNotification,
    EnterOfficeReq,
    LeaveOfficeNotification,
    ListRoomRet,
    SessionInfo,
)


def dumped(model: BaseModel) -> Any:
    return json.loads(model.model_dump_json(by_alias=True, exclude_unset=True))


@pytest.mark.parametrize("notification", [EnterOfficeNotification, LeaveOfficeNotification])
def test_only_the_member_that_applies_is_present(
    notification: type[EnterOfficeNotification | LeaveOfficeNotification],
) -> None:
    assert dumped(notification(office_id="o", computer="c", agent=None)) == {"office_id": "o", "computer": "c"}
    assert dumped(notification(office_id="o", agent="a")) == {"office_id": "o", "agent": "a"}
    assert notification.model_validate({"office_id": "o", "computer": None, "agent": "a"}).computer is None


def test_a_session_may_show_its_version_and_its_capabilities() -> None:
    plain = {"sid": "s", "name": "c", "role": "computer", "office_id": "o"}
    full = {**plain, "a2c_version": "0.4.2", "capabilities": {"resources": {"subscribe": True}}}
    assert dumped(ListRoomRet.model_validate({"sessions": [plain, full, {}], "req_id": "r"})) == {
        "sessions": [plain, full, {}],
        "req_id": "r",
    }
    built = SessionInfo(sid="s", name="c", role="computer", office_id="o", a2c_version=None, capabilities=None)
    assert dumped(built) == plain


@pytest.mark.rule("answers.capabilities.join")
@pytest.mark.parametrize(
    "capabilities",
    [
        {"resources": {"subscribe": True, "listChanged": True}},
        {
            "resources": {
                "aggregate": {"subscribe": True, "listChanged": True},
                "byServer": {
                    "excel": {"subscribe": True, "listChanged": False},
                    "erp": {"subscribe": False, "listChanged": True},
                },
            }
        },
        {},
        {"skills": {"x": 1}},
    ],
)
def test_a_computer_may_say_what_it_can_do(capabilities: dict[str, Any]) -> None:
    body = {"role": "computer", "name": "c", "office_id": "o", "capabilities": capabilities}
    assert dumped(EnterOfficeReq.model_validate(body)) == body


@pytest.mark.rule("answers.unknown.client.computer")
def test_an_unknown_event_has_to_name_its_computer() -> None:
    body = {"computer": "c", "blob_handle": "h", "chunk_offset": 0}
    assert dumped(schemas.UnknownClientReq.model_validate(body)) == body
    with pytest.raises(ValidationError):
        schemas.UnknownClientReq.model_validate({"agent": "a"})
    assert dumped(schemas.UnknownUpdate.model_validate({"x": 1})) == {"x": 1}
