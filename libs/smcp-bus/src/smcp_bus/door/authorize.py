"""Who may say what: a pure function of the event's row, the caller and the request.

The caller is what the transport knows (a session, a subject). What a payload says about its sender is only ever
compared with that, also in fields that the event does not have: they are passed on with the others.
"""

import unicodedata
from functools import cache
from typing import Any, Final, cast

from pydantic import BaseModel

from smcp_bus.door.types import Caller
from smcp_proto.catalog_row import Row
from smcp_proto.errors import NotAllowed, NotInOffice

JOIN = "server:join_office"
LEAVE = "server:leave_office"
LIST_ROOM = "server:list_room"


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
        _own(row, caller, field, getattr(request, field))
    if extra := cast("BaseModel", request).model_extra:
        for field in _IDENTITY:
            if field in extra:
                said = extra[field]
                _own(row, caller, field, unicodedata.normalize("NFC", said) if isinstance(said, str) else said)


_ADDRESSED: Final = frozenset({"server:resources/updated", "notify:resources/updated"})
"""Events of a Computer in which `agent` is not who says it, but who is to be told."""
_IDENTITY: Final = ("agent", "computer", "computerId", "office_id", "roomId")
_OFFICE: Final = "only one's own office"
_COMPUTER: Final = "a Computer speaks for itself only"


@cache
def _spoken_fields(request: type[BaseModel]) -> tuple[str, ...]:
    """The fields of a request in which it says who or where its sender is."""
    return tuple(field for field in _IDENTITY if field in request.model_fields)


def _own(row: Row, caller: Caller, field: str, said: object) -> None:
    """Compare a field with what is known of the caller."""
    match caller.role, field:
        case _, "office_id" | "roomId":
            _same(caller.office, said, field, _OFFICE)
        case "agent", "agent":
            _same(caller.name, said, field, "an Agent speaks for itself only")
        case "computer", "computer" | "computerId":
            _same(caller.name, said, field, _COMPUTER)
        case "computer", "agent" if row.event == LIST_ROOM:
            _same(caller.name, said, field, _COMPUTER)  # there it is the asking member, of whichever role
        case "computer", "agent" if row.event not in _ADDRESSED and said is not None:
            raise NotAllowed(_COMPUTER, details={"field": field})
        case _:
            pass  # an Agent names the Computer that it asks


def _same(known: str | None, said: object, field: str, why: str) -> None:
    if known is not None and said is not None and known != said:
        raise NotAllowed(why, details={"field": field})
