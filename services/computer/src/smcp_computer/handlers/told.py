"""`notify:enter_office` and `notify:leave_office` about this Computer itself."""

import logging
from collections.abc import Callable

from pydantic import ValidationError

from smcp_bus import subjects
from smcp_bus.bus import Incoming
from smcp_bus.headers import EPOCH
from smcp_proto.schemas import EnterOfficeNotification, LeaveOfficeNotification

_log = logging.getLogger("smcp_computer.told")


async def told(incoming: Incoming, *, name: str, tell: Callable[[int], None]) -> None:
    """Tell the revision at which a registry changed the place that this Computer has."""
    kind: type[EnterOfficeNotification | LeaveOfficeNotification]
    match subjects.verb_of(incoming.subject):
        case "enter_office":
            kind = EnterOfficeNotification
        case "leave_office":
            kind = LeaveOfficeNotification
        case _:
            return
    try:
        if kind.model_validate_json(incoming.body).computer == name:
            tell(int(incoming.headers.get(EPOCH, "")) // 2)
    except (ValidationError, ValueError):
        _log.warning("a notification that cannot be read was ignored")
