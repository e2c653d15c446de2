"""Who may say what: a pure function of the event's row, the caller and the request.

The caller is what the transport knows (a session, a subject). What a payload says about its sender is only ever
compared with that.
"""

from functools import cache
from typing import Any, Final, cast

from pydantic import BaseModel

from smcp_bus.dispatch_types import Caller
from smcp_proto.catalog_row import Row
from smcp_proto.errors import NotAllowed, NotInOffice

JOIN = "server:join_office"
LEAVE = "server:leave_office"


def authorize(row: Row, caller: Caller, request: Any) -> None:
    """Let the request through, or raise.

    Raises:
        NotInOffice: the caller is in no office, and the event needs one.
        NotAllowed: the event is not for the caller's role, or the request speaks for somebody else or about
            another office. `details.field` names the field.
    """
    if row.event == JOIN:
        _same(caller.role, request.role, "role", "the role of a connection cannot change")
        _same(caller.name, request.name, "name", "the name of a connection cannot change")
        return
    if caller.role is not None and caller.role not in row.senders:
        raise NotAllowed(f"{row.event} is not for a member of role {caller.role}")
    if caller.office is None:
        raise NotInOffice(f"{row.event} needs a member of an office; join one first")
    if row.event == LEAVE:
        return  # leaving an office one is not in is refused by the registry, with its own words
    for field in _spoken_fields(cast("type[BaseModel]", type(request))):
        known, why = (caller.office, _OFFICE) if field in _OFFICE_FIELDS else _own_name(caller, field)
        _same(known, getattr(request, field), field, why)


_OFFICE_FIELDS: Final = ("office_id", "roomId")
_SENDER_FIELDS: Final = ("agent", "computer", "computerId")
_OFFICE: Final = "only one's own office"


@cache
def _spoken_fields(request: type[BaseModel]) -> tuple[str, ...]:
    """The fields of a request in which it says who or where its sender is."""
    return tuple(field for field in (*_SENDER_FIELDS, *_OFFICE_FIELDS) if field in request.model_fields)


def _own_name(caller: Caller, field: str) -> tuple[str | None, str]:
    match caller.role, field:
        case "agent", "agent":
            return caller.name, "an Agent speaks for itself only"
        case "computer", "computer" | "computerId":
            return caller.name, "a Computer speaks for itself only"
        case _:
            return None, ""  # an Agent names the Computer that it asks


def _same(known: str | None, said: str | None, field: str, why: str) -> None:
    if known is not None and said is not None and known != said:
        raise NotAllowed(why, details={"field": field})
