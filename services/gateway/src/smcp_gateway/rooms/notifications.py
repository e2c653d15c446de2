"""Reads notifications from the bus, and makes those that a comparison after an outage finds."""

from dataclasses import dataclass
from typing import Any, Final

import orjson

from smcp_bus import exact_json, subjects
from smcp_bus.bus import Incoming
from smcp_bus.headers import EPOCH
from smcp_bus.outbox import missed_body
from smcp_gateway.sockets.session import MemberKey
from smcp_proto import catalog
from smcp_proto.catalog import MEMBER
from smcp_proto.member_names import Role, check_name
from smcp_proto.schemas import Capabilities

UPDATES: Final = ("update_config", "update_tool_list", "update_desktop", "update_finder")
"""A Computer's notifications that say that something changed, without the change itself."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One notification: its event, its JSON unchanged, and the member that it is about."""

    event: str
    body: bytes
    about: MemberKey | None
    """It caused the notification, and does not get it."""
    epoch: int | None = None
    """The epoch of an enter or a leave."""
    receivers: frozenset[Role] = MEMBER
    """The roles that get it."""
    agent: str | None = None
    """The only Agent that gets it, where it names one."""

    @property
    def entered(self) -> bool:
        return self.event == "notify:enter_office"


def read_notice(incoming: Incoming) -> Notice:
    """Raises ValueError: not a notification of the catalog, or not an object."""
    verb = subjects.verb_of(incoming.subject)
    row = catalog.by_verb("notify", verb)
    if row is None:
        raise ValueError(f"{verb} is no notification")
    payload: Any = orjson.loads(incoming.body)
    if not isinstance(payload, dict):
        raise ValueError(f"{verb} carries no object")  # noqa: TRY004 -- the content is wrong, not the code
    about = _about(payload)
    if verb not in {"enter_office", "leave_office"}:
        agent = payload.get("agent") if row.event == "notify:resources/updated" else None
        addressee = check_name(agent) if isinstance(agent, str) else None
        return Notice(row.event, incoming.body, about, receivers=row.receivers, agent=addressee)
    if about is None:
        raise ValueError(f"{verb} names no member")
    return Notice(row.event, incoming.body, about, int(incoming.headers.get(EPOCH, "")))


def presence(office: str, member: MemberKey, *, entered: bool) -> Notice:
    role, name = member
    event = "notify:enter_office" if entered else "notify:leave_office"
    return Notice(event, orjson.dumps({"office_id": office, role: name}), member)


def updates(office: str, computer: str, capabilities: Capabilities | None) -> list[Notice]:
    """One update of each kind for a Computer that may have changed in an outage. `capabilities`: its current ones."""
    body = orjson.dumps({"computer": computer})
    about: MemberKey = ("computer", computer)
    notices = [Notice(f"notify:{verb}", body, about) for verb in UPDATES]
    notices.append(missed_of(office, computer))
    if capabilities is not None:
        said = {"computer": computer, "capabilities": capabilities.model_dump(exclude_unset=True)}
        notices.append(Notice("notify:update_capabilities", exact_json.written(said), about))
    return notices


def missed_of(office: str, computer: str) -> Notice:
    """`resources/list_changed` with `a2c_missed`: updates may be missing, and subscriptions may have ended."""
    row = catalog.CATALOG["notify:resources/list_changed"]
    return Notice(row.event, missed_body(office, computer), ("computer", computer), receivers=row.receivers)


def _about(payload: dict[str, Any]) -> MemberKey | None:
    roles: tuple[tuple[str, Role], ...] = (("computer", "computer"), ("computerId", "computer"), ("agent", "agent"))
    for field, role in roles:
        name = payload.get(field)
        if isinstance(name, str):
            return role, check_name(name)
    return None
