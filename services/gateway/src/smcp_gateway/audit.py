"""What the gateway records (`smcp_bus.audit`): each event of a client is turned into what happened.

Each attempt of a call has a record, also one whose answer never reached its Agent. Readers find those of one call
(`smcp_standalone.audit_reader`).
"""

import logging
from collections.abc import Awaitable
from typing import Any, Final

import orjson

from smcp_bus.audit import REPEATED, Event, Trail, when_written
from smcp_bus.callers import Caller, SeatKey
from smcp_bus.dispatch import JOIN, Answer, Call, Handler
from smcp_bus.tracing import office_of, tool_failure, trace_id_of
from smcp_gateway.sockets.session import Session, Sessions
from smcp_proto.errors import NotInOffice, SmcpError
from smcp_proto.schemas.tools import REPEAT

CALL: Final = "client:tool_call"
CANCEL: Final = "server:tool_call_cancel"


class LeftMeanwhile(NotInOffice):
    """The answer to requests of a member that has left in the meantime. It is not recorded as a refusal."""

    def __init__(self) -> None:
        super().__init__("left this office meanwhile")


class Audit:
    def __init__(self, trail: Trail, sessions: Sessions) -> None:
        self.trail = trail
        self._sessions = sessions

    def before(self, handler: Handler) -> Handler:
        """Refuse what cannot be recorded, in the mode `required`. It raises Unavailable."""
        if not self.trail.required:
            return handler

        async def checked(request: Any, call: Call) -> Any:
            self.trail.check()
            return await handler(request, call)

        return checked

    def concluded(
        self, call: Call, answer: Answer | None, seconds: float, size: int | None
    ) -> Awaitable[Answer] | None:
        """See `smcp_bus.dispatch.Conclude`."""
        name = call.row.event
        if (
            answer is not None
            and answer.error is None
            and (name not in (CALL, JOIN, CANCEL) or (name == CALL and not self._takes_calls()))
        ):
            return None
        session = self._sessions.get(call.caller.session)
        if (event := _event(session, call, answer, seconds, size)) is None:
            return None
        if event.kind == "refusal":
            self.trail.write_refusal(event, call.caller.office)
            return None
        if event.kind == "call" and not self._takes_calls():
            return None
        written = self.trail.write(event)
        return None if written is None or answer is None else when_written(written, answer)

    def _takes_calls(self) -> bool:
        return self.trail.sink is not None or self.trail.log.isEnabledFor(logging.DEBUG)

    def not_connected(self, address: str, error: SmcpError) -> None:
        why = getattr(error, "why", None)  # why its token was refused: the client does not learn it
        reason = f"{error.message}: {why}" if why else error.message
        self.trail.write_refusal(
            Event("refusal", str(int(error.code)), address=address, event="connect", why=reason), None
        )

    def left(self, session: Session, seat: SeatKey, outcome: str, call: Call | None = None) -> None:
        """Record that a member gave up its seat, by the request `call` if there was one. Registries record the seats
        that they take away."""
        office, role, name = seat
        event = Event("leave", outcome, office=office, role=role, name=name, address=session.address)
        event.subject = _subject(session.caller())
        if call is not None:
            event.req_id, event.trace_id = call.req_id, trace_id_of(call)
        self.trail.write(event)


def _event(
    session: Session | None, call: Call, answer: Answer | None, seconds: float, size: int | None
) -> Event | None:
    caller, payload, name = call.caller, call.payload, call.row.event
    if answer is not None and answer.raised is LeftMeanwhile:
        return None
    if answer is not None and answer.error is not None and not (name == CALL and call.sent):
        event = Event("refusal", str(answer.error), event=name, why=_message(answer))
    elif name == CALL:
        if answer is None:
            event = Event("call", "broken_off")
        elif answer.error is not None:
            event = Event("call", str(answer.error), why=_message(answer))
        else:
            event = Event("call", tool_failure(answer) or "ok", result=answer.body)
        event.event = REPEATED if payload.get(REPEAT) else None
    elif answer is None:
        return None  # the client is gone, and nothing was decided
    elif name == JOIN:
        event = Event("join", "ok" if session is None else session.joined_as)
        caller = caller if session is None else session.caller()  # where it is now: it may have switched
    else:
        event = Event("cancel", "ok")
    event.office = caller.office or office_of(call)
    event.subject = _subject(caller)
    event.by = None if caller.rights is None else caller.rights.delegate or None
    event.role = caller.role or payload.get("role")
    event.name = caller.name or payload.get("name")
    event.address = caller.address or None
    event.computer = payload.get("computer")
    event.tool = payload.get("tool_name")
    event.arguments = payload.get("params") if name == CALL else None
    event.seconds = seconds
    event.req_id = call.req_id
    event.trace_id = trace_id_of(call)
    event.request_bytes = size
    event.reply_bytes = None if answer is None else len(answer.body)
    return event


def _subject(caller: Caller) -> str | None:
    return (caller.subject or None) if caller.rights is None else caller.rights.holder


def _message(answer: Answer) -> str | None:
    return None if answer.error is None else orjson.loads(answer.body).get("message")
