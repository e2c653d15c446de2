"""The one way through a process: `Dispatcher.dispatch` alone validates, authorises, traces, and maps exceptions to
answers. The Socket.IO server and the bus (`smcp_bus.subjects`) are in front of it; behind it are typed handlers.
"""

import asyncio
import logging
import re
import time
import unicodedata
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, TypeVar

from opentelemetry.trace import INVALID_SPAN, Span
from pydantic import BaseModel, ValidationError

from smcp_bus import bus, exact_json
from smcp_bus.bus import NO_HEADERS, Headers, Note
from smcp_bus.callers import Caller
from smcp_bus.headers import REQ_ID
from smcp_proto import errors
from smcp_proto.catalog import QUERY_S, Row
from smcp_proto.errors import NotAllowed, SmcpError, TooLarge, Unavailable
from smcp_proto.schemas.base import MAX_REQ_ID_LENGTH, NO_CONTROL_CHARACTERS
from smcp_proto.schemas.tools import TOOL_PROGRESS
from smcp_proto.validation import malformed


@dataclass(slots=True, eq=False)
class Call:
    row: Row
    caller: Caller
    req_id: str
    deadline: float
    """When the caller stops waiting (loop time, seconds)."""
    payload: Mapping[str, Any]
    """The request's JSON object, unknown fields included; in `agent` an Agent's own name. Who passes the request on
    writes it anew (`exact_json.written`), so that no field stands there twice."""
    headers: Headers = field(default_factory=dict)
    subject: str = ""
    """Where it came in on the bus; empty where it came from a client."""
    sent: bool = False
    """It went to its Computer, which may have run it whatever it answers: a gateway's handler sets this."""
    span: Span = field(default=INVALID_SPAN, repr=False)
    note: Note | None = None
    """Sends a note of the tool's progress to the caller; None: the caller reads none."""
    trace_id: int = 0
    """See `tracing.trace_id_of`; 0 until it is first asked for."""


Given = TypeVar("Given")


@dataclass(slots=True)
class Answer:
    """JSON, and the code where it is a flat error."""

    body: bytes
    error: int | None = None
    raised: type[SmcpError] | None = None
    """What was raised here, where it is a flat error: what a Computer sends cannot be of a class of ours alone."""
    failure: str | None = field(default=None, compare=False)
    """Of the tool whose result it is (`smcp_proto.tool_results.failure`), where it is known already."""


Handler = Callable[[Any, Call], Awaitable[BaseModel | Answer | None]]
"""A typed async function: the validated request and the call in, the reply out. It raises `SmcpError` for what a
peer may know; it holds no `sid`, no NATS message, no span."""

JOIN = "server:join_office"
LEAVE = "server:leave_office"
LIST_ROOM = "server:list_room"
APPROVAL = "server:approval"


def authorize(row: Row, caller: Caller, payload: Mapping[str, Any]) -> None:
    """Let the request through, or raise.

    What a payload says about its sender is compared with the caller, also in fields that the event does not have: they
    are passed on with the others. An Agent's own name is not compared: the dispatcher has written it into the request.

    Raises:
        NotInOffice: the caller is in no office, and the event needs one.
        NotAllowed: the event is not for the caller's role, or the request speaks for somebody else or about
            another office. `details.field` names the field.
    """
    if row.event == JOIN:
        _same(caller.role, payload, "role", "the role of a connection cannot change")
        _same(caller.name, payload, "name", "the name of a connection cannot change")
        return
    authorize_sender(row, caller)
    if row.event in (LEAVE, APPROVAL):
        return  # leaving another office is refused by the registry, and what a record says of its writer is ignored
    for name in ("office_id", "roomId"):
        _same(caller.office, payload, name, "the office must be your own")
    if caller.role != "computer":
        return  # an Agent names the Computer that it asks
    for name in ("computer", "computerId"):
        _same(caller.name, payload, name, _COMPUTER)
    if row.event == LIST_ROOM:  # there it is the asking member, of whichever role
        _same(caller.name, payload, "agent", _COMPUTER)
    elif row.event not in _ADDRESSED and payload.get("agent") is not None:
        raise NotAllowed(_COMPUTER, details={"field": "agent"})


def authorize_sender(row: Row, caller: Caller) -> None:
    """What can be said of a request before it is read: the part of `authorize` that needs no payload."""
    if row.event == JOIN:
        return
    if caller.role is not None and caller.role not in row.senders:
        raise NotAllowed(f"{row.event} is not for a member of role {caller.role}")
    if caller.office is None:
        raise errors.NotInOffice(errors.NOT_A_MEMBER)


_ADDRESSED: Final = frozenset({"server:resources/updated", "notify:resources/updated", TOOL_PROGRESS})
"""Events of a Computer in which `agent` is the recipient and not the sender."""
_COMPUTER: Final = "a Computer may send events only about itself"


def _same(known: str | None, payload: Mapping[str, Any], field: str, why: str) -> None:
    said = payload.get(field)
    if isinstance(said, str):
        said = unicodedata.normalize("NFC", said)
    if known is not None and said is not None and known != said:
        raise NotAllowed(why, details={"field": field})


_log = logging.getLogger("smcp_bus.dispatch")


def to_smcp_error(error: Exception) -> SmcpError:
    """The error for the peer. What is not known here is logged with its text, and is a 500 without it."""
    match error:
        case SmcpError():
            return error
        case bus.BodyTooLarge(size=size, limit=limit):
            return TooLarge(errors.REQUEST_TOO_LARGE, details={"size": size, "limit": limit})
        case bus.NoResponder():
            return Unavailable("not available now", details={"may_have_run": False})
        case bus.NotConnected():
            return Unavailable("not available now", details={"may_have_run": False, errors.CUT_OFF: True})
        case bus.ConnectionLost() | bus.TransferFailed():
            return Unavailable("the connection broke before the answer came", details={"may_have_run": True})
        case bus.RequestTimedOut():
            return errors.TimedOut(errors.NO_ANSWER)
        case _:
            _log.error("a handler failed", exc_info=error)
            return errors.Internal("internal error")


SIGNED: Final = frozenset({"server:list_room", "server:tool_call_cancel"})
"""Beside `client:*`: events in which the field `agent` is the Agent that sends them."""
SUBSCRIBING: Final = frozenset({"client:resources/subscribe", "client:resources/unsubscribe"})
"""Events in which the field `agent` is written where it is missing: the Computer's owner keeps who subscribed."""

Observe = Callable[[Call], AbstractContextManager[object]]
Record = Callable[[Answer], str]
"""Called with a request's answer; gives the id of its trace (hex) where that is recorded, else an empty text."""
Tracing = Callable[[Call], AbstractContextManager[Record]]
Ended = Callable[[Row, float, Answer | None, str], None]
"""Called when a request ends, with its seconds, its answer (None: it was broken off), and what `Record` gave."""
Conclude = Callable[[Call, Answer | None, float, int | None], Awaitable[Answer] | None]
"""Called before the answer (None: the request was broken off) goes out, with the seconds and the bytes of the request
where they are known. What it returns gives the answer that goes out instead."""
Fit = Callable[[Call, Answer], Answer]
"""Called with each answer; gives the one that its caller takes."""


_NO_FIELDS: Final = nullcontext()


@dataclass(eq=False, repr=False)
class Dispatcher:
    handlers: Mapping[str, Handler]
    _: KW_ONLY
    otherwise: Callable[[Row], Handler | None] = lambda row: None
    """The handler of an event that `handlers` does not name; None: the event answers 503."""
    tracing: Tracing | None = None
    observe: Observe | None = None
    ended: Ended | None = None
    conclude: Conclude | None = None
    fit: Fit | None = None
    max_values: int = exact_json.MAX_VALUES
    """How many values a request may hold (`exact_json.check_cost`)."""
    running: set[Call] = field(default_factory=set, init=False)
    """Requests that have no answer yet. Until one is read, its payload is empty."""

    async def dispatch(
        self,
        row: Row,
        caller: Caller,
        body: object,
        *,
        deadline: float | None = None,
        headers: Headers = NO_HEADERS,
        subject: str = "",
        note: Note | None = None,
        refusal: SmcpError | None = None,
        size: int | None = None,
    ) -> Answer:
        """Answer one request. What goes out is what its span, its metrics and its record say.

        Args:
            body: the event's JSON: bytes as they came, or the object that a transport has parsed already.
            deadline: when the caller stops waiting, in loop time (seconds); None: what the row says.
            refusal: why a transport refuses it; its body, which may be cut off, is not checked.
            size: bytes of the body, where it may be cut off.

        Never raises but `asyncio.CancelledError`: every failure is an answer.
        """
        began, answer, trace_id = time.perf_counter(), None, ""
        size = len(body) if size is None and isinstance(body, bytes) else size
        call = Call(row, caller, "", 0.0, {}, headers, subject, note=note)
        request: BaseModel | SmcpError
        self.running.add(call)
        try:
            try:
                if refusal is not None:
                    call.payload = exact_json.beginning(body if isinstance(body, bytes) else None)
                    raise refusal
                if isinstance(body, bytes) and len(body) > exact_json.SMALL_BYTES:
                    payload = await self._read_large(row, caller, body)
                else:
                    payload = exact_json.read_object(body)
                    exact_json.check_depth(payload)
                call.payload = payload = _signed(row, caller, payload)
                request = row.request.model_validate(payload)
            except SmcpError as error:
                request = error  # refused behind the span and the log fields, like everything else
            except ValidationError as error:
                request = malformed(error)
            call.req_id = _req_id(call.payload, headers)
            if deadline is None:
                seconds = float(getattr(request, "timeout", QUERY_S)) if row.seconds is None else row.seconds
                deadline = asyncio.get_running_loop().time() + seconds
            call.deadline = deadline
            try:
                with _NO_FIELDS if self.observe is None else self.observe(call):
                    if self.tracing is None:
                        answer = await self._conclude(call, request, began, size)
                    else:
                        with self.tracing(call) as record:
                            answer = await self._conclude(call, request, began, size)
                            trace_id = record(answer)
            except Exception as error:  # noqa: BLE001 -- of the log fields or the span: `_conclude` raises none
                _failed("the log fields or span of a request could not be written", error)
                answer = answer or await self._conclude(call, request, began, size)
            finally:
                call.span = INVALID_SPAN  # its own refers to the call: no circle is left for the collector of garbage
        finally:
            self.running.discard(call)
            seconds = time.perf_counter() - began
            _safely("the metrics of a request could not be updated", self.ended, row, seconds, answer, trace_id)
        return answer

    async def _read_large(self, row: Row, caller: Caller, body: bytes) -> dict[str, Any]:
        """Parse a request, unless it is too large or not for its sender."""
        if not row.is_large:
            raise TooLarge(errors.REQUEST_TOO_LARGE, details={"limit": exact_json.SMALL_BYTES, "size": len(body)})
        authorize_sender(row, caller)
        await exact_json.check_cost(body, self.max_values, "the request")
        payload = exact_json.read_object(body)
        await asyncio.sleep(0)  # others run between these, each of which may take 30 ms
        exact_json.check_depth(payload)
        await asyncio.sleep(0)
        return payload

    async def _conclude(self, call: Call, request: Any, began: float, size: int | None) -> Answer:
        answer = None
        try:
            answer = await self._handle(call, request)
            answer = _safely("an answer could not be fitted", self.fit, call, answer) or answer
        finally:
            seconds = time.perf_counter() - began
            concluding = _safely("a request could not be recorded", self.conclude, call, answer, seconds, size)
        return answer if concluding is None else await concluding

    async def _handle(self, call: Call, request: Any) -> Answer:
        if isinstance(request, SmcpError):
            return failed(request.body())
        try:
            authorize(call.row, call.caller, call.payload)
            handler = self.handlers.get(call.row.event) or self.otherwise(call.row)
            if handler is None:
                raise Unavailable(f"{call.row.event} is not available here")  # noqa: TRY301 -- as what a handler raises
            return _answer(await handler(request, call))
        except Exception as error:  # noqa: BLE001 -- the dispatcher is where every exception becomes an answer
            known = to_smcp_error(error)
            answer = failed(known.body())
            answer.raised = type(known)
            return answer


def _safely(what: str, work: Callable[..., Given] | None, *given: object) -> Given | None:
    """What `work` returns; None where there is none, or it fails: it must not replace an answer."""
    try:
        return None if work is None else work(*given)
    except Exception as error:  # noqa: BLE001 -- as above
        _failed(what, error)
        return None


def _failed(what: str, error: Exception) -> None:
    with suppress(Exception):  # it may be the log that fails
        _log.error(what, exc_info=error)


def failed(body: errors.ErrorBody) -> Answer:
    return Answer(exact_json.written(body.model_dump()), error=body.code)


def _answer(result: BaseModel | Answer | None) -> Answer:
    if isinstance(result, Answer):
        return result
    # what the handler set is what goes: the pages tell an absent key from a null one
    return Answer(b"" if result is None else result.model_dump_json(by_alias=True, exclude_unset=True).encode())


def _signed(row: Row, caller: Caller, payload: dict[str, Any]) -> dict[str, Any]:
    """The request with the Agent's own name in `agent`: published Agents write an id of their own there."""
    if caller.role != "agent" or caller.name is None:
        return payload
    is_sender = row.event in SIGNED or row.event.startswith("client:")
    if row.event in SUBSCRIBING or (is_sender and "agent" in payload):
        return {**payload, "agent": caller.name}
    return payload


_NO_CONTROL_CHARACTERS: Final = re.compile(NO_CONTROL_CHARACTERS)


def _req_id(payload: Mapping[str, Any], headers: Headers) -> str:
    req_id = payload.get("req_id")
    if isinstance(req_id, str) and len(req_id) <= MAX_REQ_ID_LENGTH and _NO_CONTROL_CHARACTERS.match(req_id):
        return req_id  # of events that say none, too: it goes into headers and lines of the log
    return headers.get(REQ_ID) or uuid.uuid4().hex
