"""Processes of neighbouring versions: what a newer one adds to a message is passed over (docs/compatibility.md)."""

from typing import Any

import pytest
from pydantic import BaseModel

from smcp_bus import registry_contract

CLAIM = {"session": "s", "credential": "c", "process": "p", "incarnation": "i", "identity": "who"}
SUMMARY = {"office": "lab", "agent": None, "since": None, "computers": 1}
MEMBER = {"role": "agent", "name": "anna", "since": None, "by": "gateway", "a2c_version": None, "moving": False}
MESSAGES: dict[str, dict[str, Any]] = {
    "AliveAnswer": {},
    "AliveQuestion": {},
    "Approval": {"outcome": "yes", "name": "alpha", "tool": "t", "req_id": "r"},
    "AssertedMember": {"outcome": "unchanged"},
    "Assertion": {"members": []},
    "AssertionResult": {"members": []},
    "Claim": CLAIM,
    "Confirmed": {"mine": True},
    "FindComputer": {"computer": "alpha"},
    "Found": {"member": True},
    "Joined": {"revision": 1},
    "LeaseRenewal": {},
    "LeaseState": {"renewed": True, "lease_s": 10.0},
    "Left": {"revision": 1},
    "Member": {"office": "lab", "role": "agent", "name": "alpha", "claim": CLAIM},
    "Offices": {"offices": [SUMMARY], "more": False},
    "OfficesQuestion": {},
    "OfficeSummary": SUMMARY,
    "PendingAnswer": {"unknown": []},
    "PendingQuestion": {"calls": []},
    "Records": {"records": [], "first": 1, "last": 0, "deleted": 0},
    "RecordsQuestion": {},
    "Room": {"office": "lab", "members": [MEMBER]},
    "RoomMember": MEMBER,
    "RoomQuestion": {"office": "lab"},
    "StoredRecord": {"seq": 1, "subject": "smcp.v1.lab.audit.call", "raw": "e30="},
}


def models() -> dict[str, type[BaseModel]]:
    public = {name: each for name, each in vars(registry_contract).items() if not name.startswith("_")}
    return {
        name: each
        for name, each in public.items()
        if isinstance(each, type)
        and issubclass(each, BaseModel)
        and each.__module__ == registry_contract.__name__
        and each is not registry_contract.Nothing
    }


def test_the_samples_cover_every_message_between_processes() -> None:
    assert models().keys() == MESSAGES.keys()


@pytest.mark.parametrize("name", MESSAGES)
def test_an_unknown_field_of_a_newer_process_is_ignored(name: str) -> None:
    model, message = models()[name], MESSAGES[name]
    assert model.model_validate({**message, "added_by": "a later version"}) == model.model_validate(message)
