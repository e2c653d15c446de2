"""The one door: every request of every transport goes through `Door.dispatch`.

It alone validates, authorises, traces, and maps exceptions. The Socket.IO server and the bus are thin transports in
front of it; what is behind it are typed handlers.
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

import orjson
from pydantic import BaseModel, ValidationError

from smcp_bus import exact_json
from smcp_bus.bus import NO_HEADERS, Admit, Headers
from smcp_bus.door.authorize import authorize
from smcp_bus.door.exception_table import error_body
from smcp_bus.door.tracing import Tracing, no_tracing, record_outcome
from smcp_bus.door.types import Answer, Call, Caller, Handler, RawJson
from smcp_bus.headers import REQ_ID
from smcp_proto.catalog_row import Row, TimeClass
from smcp_proto.errors import ErrorBody, Malformed, Unavailable
from smcp_proto.surrogates import HALF, field_with_half
from smcp_proto.validation import MAX_TEXT, check_depth, malformed

SECONDS: Final[Mapping[TimeClass, float]] = {
    TimeClass.QUERY: 30.0,
    TimeClass.ROOM: 10.0,
    TimeClass.NOTICE: 10.0,
    TimeClass.CALL: 3600.0,
}
"""How long the server side takes at most; a CALL's request says it itself (`timeout`)."""

NAMED_BYTES: Final = 1024 * 1024
"""Of a request that is not read: in a larger one the field that is wrong is not looked for."""

Observe = Callable[[Call], AbstractContextManager[object]]
"""What a process does round every call (log fields); given by the composition root."""
Ended = Callable[[Row, float, Answer | None], None]
"""Told of every request when it ends, how long it took (seconds) and its answer; None: it was broken off."""


class Door:
    """Dispatches events to handlers.

    Args:
        handlers: by event name.
        otherwise: chooses the handler of an event that `handlers` does not name (events that the catalog does not
            know and that are passed on); None: the event answers 503.
        tracing: opens the span of a request (`tracing.client_spans()`, `tracing.bus_spans()`).
        observe: entered round every call, for log fields.
        ended: told of every request when it ends, for metrics; must be quick.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        otherwise: Callable[[Row], Handler | None] = lambda row: None,
        tracing: Tracing = no_tracing,
        observe: Observe | None = None,
        ended: Ended | None = None,
    ) -> None:
        self._handlers = dict(handlers)
        self._otherwise = otherwise
        self._tracing = tracing
        self._observe = observe
        self._ended = ended

    async def dispatch(
        self,
        row: Row,
        caller: Caller,
        body: object,
        *,
        deadline: float | None = None,
        headers: Headers = NO_HEADERS,
        subject: str = "",
        admit: Admit | None = None,
        payload: Mapping[str, Any] | None = None,
    ) -> Answer:
        """Answer one request.

        Args:
            body: the event's JSON: bytes as they came, or the object that a transport has parsed already.
            deadline: when the caller stops waiting, in loop time (seconds); None: what the row's class says.
            subject: where it came in on the bus.
            admit: decides when a large answer of a peer may come here.
            payload: what `body`, as bytes, was parsed to by another door of this process; it is validated again.

        Never raises but `asyncio.CancelledError`: every failure is an answer.
        """
        if self._ended is None:
            return await self._dispatch(row, caller, body, deadline, headers, subject, admit, payload)
        began, answer = time.perf_counter(), None
        try:
            answer = await self._dispatch(row, caller, body, deadline, headers, subject, admit, payload)
            return answer
        finally:
            self._ended(row, time.perf_counter() - began, answer)

    async def _dispatch(
        self,
        row: Row,
        caller: Caller,
        body: object,
        deadline: float | None,
        headers: Headers,
        subject: str,
        admit: Admit | None,
        payload: Mapping[str, Any] | None,
    ) -> Answer:
        try:
            payload, raw = await _parse(body, payload)
        except Malformed as error:
            return failed(error.body())
        request: BaseModel | Malformed
        try:
            request = _validate(row, payload)
        except Malformed as error:
            request = error  # refused behind the span and the log fields, like everything else
        if deadline is None:
            deadline = asyncio.get_running_loop().time() + _seconds(row, request)
        call = Call(row, caller, _req_id(payload, headers), deadline, payload, raw, headers, subject, admit)
        if self._observe is None:
            return await self._traced(call, request)
        with self._observe(call):
            return await self._traced(call, request)

    async def _traced(self, call: Call, request: Any) -> Answer:
        if self._tracing is no_tracing:
            return await self._handle(call, request)
        with self._tracing(call) as span:
            answer = await self._handle(call, request)
            record_outcome(span, call, answer)
            return answer

    async def _handle(self, call: Call, request: Any) -> Answer:
        if isinstance(request, Malformed):
            return failed(request.body())
        try:
            authorize(call.row, call.caller, request)
            handler = self._handlers.get(call.row.event) or self._otherwise(call.row) or _not_available
            return _answer(await handler(request, call))
        except Exception as error:  # noqa: BLE001 -- the door is where every exception becomes an answer
            return failed(error_body(error))


async def _not_available(request: Any, call: Call) -> None:
    raise Unavailable(f"{call.row.event} is not available here")


def failed(body: ErrorBody) -> Answer:
    """The answer that carries a flat error."""
    return Answer(orjson.dumps(body.model_dump()), error=body.code)


def _answer(result: BaseModel | RawJson | None) -> Answer:
    match result:
        case None:
            return Answer(b"")
        case RawJson(body=body):
            return Answer(body)
        case _:
            # what the handler set is what goes: the pages tell an absent key from a null one
            return Answer(result.model_dump_json(by_alias=True, exclude_unset=True).encode())


async def _parse(body: object, payload: Mapping[str, Any] | None) -> tuple[Mapping[str, Any], bytes | None]:
    raw = None
    if payload is not None and isinstance(body, bytes):
        return payload, body
    if isinstance(body, bytes):
        raw = body
        try:
            body = await exact_json.read_aside(raw) if raw else {}
        except orjson.JSONDecodeError:
            raise _not_read(raw) from None
    if not isinstance(body, dict):
        raise Malformed("the request is not a JSON object", details={"field": ""})
    return body, raw


def _not_read(body: bytes) -> Malformed:
    field = field_with_half(body) if len(body) <= NAMED_BYTES else None
    if field is None:
        return Malformed("the request is not JSON", details={"field": ""})
    field = field[:MAX_TEXT]
    return Malformed(f"{field}: {HALF}", details={"field": field, "reason": HALF})


def _validate(row: Row, payload: Mapping[str, Any]) -> BaseModel:
    check_depth(payload)
    try:
        return row.request.model_validate(payload)
    except ValidationError as error:
        raise malformed(error) from None


def _seconds(row: Row, request: Any) -> float:
    if row.time_class is TimeClass.CALL:
        return float(getattr(request, "timeout", SECONDS[TimeClass.QUERY]))
    return SECONDS[row.time_class]


def _req_id(payload: Mapping[str, Any], headers: Headers) -> str:
    req_id = payload.get("req_id")
    if isinstance(req_id, str):
        return req_id
    return headers.get(REQ_ID) or uuid.uuid4().hex
