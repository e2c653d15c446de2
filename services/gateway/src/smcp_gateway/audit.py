"""What the gateway records (`smcp_bus.audit`): each event of a client is turned into what happened.

A call has one record, of the gateway that answers it. Our SDK repeats a call that was broken off, or was answered with
503 and `may_have_run`. Such a call is not recorded until its repeat was recorded here, or its time is up. A repeat at
another gateway is recorded there, too, and readers drop the later one of the two (`audit_reader`): that an Agent is at
another gateway does not mean that it repeats its calls there.
"""

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Final

import orjson

from smcp_bus import exact_json
from smcp_bus.audit import NOT_WRITTEN, REPEATED, Event, Trail, sha256
from smcp_bus.callers import Caller
from smcp_bus.dispatch import JOIN, Answer, Call, Handler, failed
from smcp_bus.limits import ByteBudget, Grant
from smcp_bus.tracing import office_of, tool_failure, trace_id_of
from smcp_gateway.sockets.packet import ClientEvent
from smcp_gateway.sockets.session import SeatKey, Session, Sessions
from smcp_proto.errors import ErrorCode, NotInOffice, SmcpError, Unavailable
from smcp_proto.schemas.tools import REPEAT

CALL: Final = "client:tool_call"
CANCEL: Final = "server:tool_call_cancel"
REPEATED_S: Final = 2.5
"""No repeat of a call comes later than this after the call's deadline: our SDK gives up after 2 s (seconds)."""

ENDED_S: Final = 10.0
"""How long a disconnected client stays known, so that the records of its broken-off calls name it (seconds)."""

OPEN_BYTES: Final = 64 * 1024 * 1024
"""Memory for calls that may be repeated, shared per office. Beyond it a call is recorded at once, so that its repeat
gets a second record."""

Key = tuple[str, str, str, str]
"""(office, Agent, req_id, digest of the Computer, the tool and the arguments): what is the same in a repeat. An Agent
may use a `req_id` for another call."""


class LeftMeanwhile(NotInOffice):
    """The answer to requests of a member that has left in the meantime. It is not recorded as a refusal."""

    def __init__(self) -> None:
        super().__init__("left this office meanwhile")


@dataclass(slots=True)
class _RepeatableCall:
    """A call that may be repeated."""

    event: Event
    session: str
    timer: asyncio.TimerHandle
    grant: Grant


class Audit:
    def __init__(self, trail: Trail, sessions: Sessions) -> None:
        self.trail = trail
        self._sessions = sessions
        self._open: dict[Key, _RepeatableCall] = {}
        self._budget = ByteBudget(OPEN_BYTES)
        self._not_written: set[Key] = set()
        """Calls answered with `NOT_WRITTEN`. Their records are sent again, so their repeats get none."""
        self._ended: dict[str, Session] = {}
        self._loop = asyncio.get_running_loop()

    @property
    def open_calls(self) -> int:
        """Calls that may be repeated, and are not recorded yet."""
        return len(self._open)

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
        session = self._sessions.get(call.caller.session) or self._ended.get(call.caller.session)
        if (event := _event(session, call, answer, seconds, size)) is None:
            return None
        if name == CALL and self._not_written and _key(event, call) in self._not_written:
            return None
        if event.kind == "refusal":
            self.trail.write_refusal(event, call.caller.office)
            return None
        if event.kind == "call" and not self._takes_calls():
            return None
        if name == CALL:
            if self._open:
                self._forget(_key(event, call))
            if answer is None or (answer.error is not None and _sdk_will_retry(session, answer)):
                self._keep(_key(event, call), event, call)
                return None
        written = self.trail.write(event)
        if written is None or answer is None:
            return None
        return self._when_written(written, answer, event, call)

    async def _when_written(self, written: Awaitable[bool], answer: Answer, event: Event, call: Call) -> Answer:
        if await written:
            return answer
        if call.row.event == CALL:
            self._not_written.add(key := _key(event, call))
            self._loop.call_at(call.deadline + REPEATED_S, self._not_written.discard, key)
        return failed(Unavailable(NOT_WRITTEN, details={"may_have_run": True, "audit": True}).body())

    def _takes_calls(self) -> bool:
        """Whether calls are recorded or logged at all."""
        return self.trail.sink is not None or self.trail.log.isEnabledFor(logging.DEBUG)

    def refused(self, session: Session, event: ClientEvent, answer: Answer) -> None:
        """Record an event that was refused before it reached the dispatcher."""
        caller, fields = session.caller(), _request_fields(event.body)
        refusal = Event("refusal", str(answer.error), event=event.name, why=_message(answer))
        refusal.office, refusal.role, refusal.name = caller.office, caller.role, caller.name
        refusal.subject, refusal.address = _subject(caller), session.address
        refusal.computer, refusal.tool = fields.get("computer"), fields.get("tool_name")
        refusal.req_id, refusal.request_bytes = fields.get("req_id"), event.size or None
        self.trail.write_refusal(refusal, caller.office)

    def not_connected(self, address: str, error: SmcpError) -> None:
        """Record that a client's connection was refused."""
        why = getattr(error, "why", None)  # why its token was refused: the client does not learn it
        reason = f"{error.message}: {why}" if why else error.message
        self.trail.write_refusal(
            Event("refusal", str(int(error.code)), address=address, event="connect", why=reason), None
        )

    def left(self, session: Session, seat: SeatKey, outcome: str, req_id: str = "") -> None:
        """Record that a member gave up its seat. Registries record the seats that they take away."""
        office, role, name = seat
        event = Event("leave", outcome, office=office, role=role, name=name, address=session.address)
        event.subject, event.req_id = _subject(session.caller()), req_id or None
        self.trail.write(event)

    def waits_for(self, session: str) -> bool:
        """Whether calls of that session may be repeated."""
        return any(each.session == session for each in self._open.values())

    def ended(self, session: Session) -> None:
        """Keep a disconnected client for the records of its calls that are about to end."""
        if session.in_flight:
            self._ended[session.id] = session
            self._loop.call_later(ENDED_S, self._ended.pop, session.id, None)

    def orphaned(self, session: Session, *, elsewhere: bool) -> None:
        """The session has ended, and its Agent does not come back here. `elsewhere`: this gateway stops, and our SDK is
        at another one, which records the repeats of its calls."""
        for key, each in list(self._open.items()):
            if each.session != session.id:
                continue
            if elsewhere and session.flat_errors:
                self._forget(key)
            else:
                self._write(key)

    def close(self) -> None:
        for key in list(self._open):
            self._write(key)

    def _keep(self, key: Key, event: Event, call: Call) -> None:
        if (grant := self._budget.take(self.trail.compact(event), call.caller.office or "")) is None:
            self.trail.write(event)
            return
        timer = self._loop.call_at(call.deadline + REPEATED_S, self._write, key)
        self._open[key] = _RepeatableCall(event, call.caller.session, timer, grant)

    def _forget(self, key: Key) -> Event | None:
        if (kept := self._open.pop(key, None)) is None:
            return None
        kept.timer.cancel()
        kept.grant.release()
        return kept.event

    def _write(self, key: Key) -> None:
        if (event := self._forget(key)) is not None:
            self.trail.write(event)


def _sdk_will_retry(session: Session | None, answer: Answer) -> bool:
    if session is None or session.closed:
        return False
    if answer.error != ErrorCode.UNAVAILABLE or not session.flat_errors:
        return False
    return orjson.loads(answer.body)["details"].get("may_have_run") is True


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
        event.arguments = payload.get("params")
        event.event = REPEATED if payload.get(REPEAT) else None
    elif answer is None:
        return None  # the client is gone, and nothing was decided
    elif name == JOIN:
        event = Event("join", "ok" if session is None else session.joined_as)
    else:
        event = Event("cancel", "ok")
    event.office = caller.office or office_of(call)
    event.subject = _subject(caller)
    event.by = None if caller.rights is None else caller.rights.delegate or None
    event.role = caller.role or payload.get("role")
    event.name = caller.name or payload.get("name")
    event.address = None if session is None else session.address
    event.computer = payload.get("computer")
    event.tool = payload.get("tool_name")
    event.seconds = seconds
    event.req_id = call.req_id
    event.trace_id = trace_id_of(call)
    event.request_bytes = size
    event.reply_bytes = None if answer is None else len(answer.body)
    return event


def _subject(caller: Caller) -> str | None:
    """The subject of the key or token; if an Agent calls for a user, the subject of that user."""
    return (caller.subject or None) if caller.rights is None else caller.rights.holder


def _key(event: Event, call: Call) -> Key:
    asked = [call.payload.get(name) for name in ("computer", "tool_name", "params")]
    return event.office or "", event.name or "", event.req_id or "", sha256(exact_json.written(asked, sort_keys=True))


def _message(answer: Answer) -> str | None:
    return None if answer.error is None else orjson.loads(answer.body).get("message")


def _request_fields(body: bytes | None) -> dict[str, Any]:
    """The fields of a refused request; none if it is large or invalid."""
    if body is None or len(body) > exact_json.SMALL_BYTES:
        return {}
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return fields if isinstance(fields, dict) else {}
