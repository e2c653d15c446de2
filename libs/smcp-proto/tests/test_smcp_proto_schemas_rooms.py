"""Offices, the desktop and updates: what is optional, and the examples of the pages."""

import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from smcp_proto import schemas
from smcp_proto.schemas import (
    EnterOfficeNotification,
    EnterOfficeReq,
    GetDeskTopReq,
    GetDeskTopRet,
    LeaveOfficeNotification,
    ListRoomRet,
    SessionInfo,
    UpdateToolListNotification,
)

AGENT: dict[str, Any] = {"agent": "bot", "req_id": "req-001"}


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


@pytest.mark.parametrize("role", ["Agent", "server", "", None, 1])
def test_another_role_is_refused(role: object) -> None:
    with pytest.raises(ValidationError):
        EnterOfficeReq.model_validate({"role": role, "name": "c", "office_id": "o"})


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


def test_a_desktop_request_may_omit_size_and_window() -> None:
    request = GetDeskTopReq.model_validate({**AGENT, "computer": "c"})
    assert (request.desktop_size, request.window) == (None, None)
    assert GetDeskTopReq.model_validate({**AGENT, "computer": "c", "desktop_size": -1}).desktop_size == -1
    with pytest.raises(ValidationError):
        GetDeskTopReq.model_validate({**AGENT, "computer": "c", "desktop_size": "3"})


@pytest.mark.rule("data-structures.Desktop.alias")
def test_the_desktops_of_the_page() -> None:
    reply = {
        "desktops": [
            "window://com.example.browser/main\n\n<html>当前页面内容...</html>",
            "window://com.example.logger\n\n[2026-02-14 10:30:01] INFO: 操作完成",
        ],
        "req_id": "req-001",
    }
    assert dumped(GetDeskTopRet.model_validate(reply)) == reply


def test_an_update_may_leave_out_its_computer_where_the_page_says_so() -> None:
    assert UpdateToolListNotification.model_validate({}).computer is None
    with pytest.raises(ValidationError):
        schemas.UpdateComputerConfigReq.model_validate({})


@pytest.mark.rule("answers.unknown.client.computer")
def test_an_unknown_event_has_to_name_its_computer() -> None:
    body = {"computer": "c", "blob_handle": "h", "chunk_offset": 0}
    assert dumped(schemas.UnknownClientReq.model_validate(body)) == body
    with pytest.raises(ValidationError):
        schemas.UnknownClientReq.model_validate({"agent": "a"})
    assert dumped(schemas.UnknownUpdate.model_validate({"x": 1})) == {"x": 1}
