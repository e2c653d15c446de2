"""Requests in the name of an Agent: typed, repeated where they may have been carried out unanswered, and cancelled."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar
from uuid import uuid4

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from pydantic import BaseModel, ValidationError

from smcp_agent import errors
from smcp_agent.cache import PASSING, Spawn, which_computer
from smcp_agent.connecting.connection import Connection, ConnectionBroken
from smcp_agent.connecting.link import Link
from smcp_proto.backoff import Backoff
from smcp_proto.catalog import CATALOG, GRACE_S, QUERY_S, TRACE_ID_KEY, trace_id
from smcp_proto.errors import GONE
from smcp_proto.schemas import ResourceRet
from smcp_proto.schemas.tools import REPEAT, UNKNOWN_REPEAT
from smcp_proto.validation import malformed, refused

TOOL_CALL: Final = "client:tool_call"

_CLOCK: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))

_PROPAGATOR: Final = TraceContextTextMapPropagator()

logger = logging.getLogger(__name__)

Model = TypeVar("Model", bound=BaseModel)
JsonObject = dict[str, Any]


class McpAnswer(NamedTuple):
    """The answer to an MCP request. `sender` names the MCP server and its Computer for people."""

    result: dict[str, Any]
    computer: str | None
    sender: str


def clock() -> float:
    """Seconds of a monotonic clock that counts suspension; on Linux that of the event loop does not."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


class RpcClient:
    def __init__(
        self, office: str, agent: str, link: Link, spawn: Spawn, max_away: float, computers: Callable[[], list[str]]
    ) -> None:
        """`computers`: the names of those in the office."""
        self._office = office
        self._agent = agent
        self._link = link
        self._spawn = spawn
        self._max_away = max_away
        self._computers = computers
        self._cancels: set[asyncio.Task[None]] = set()

    async def send(
        self, event: str, data: dict[str, Any], *, timeout: float, expected: Collection[str]
    ) -> dict[str, Any]:
        """The reply to `event`; it has one of the `expected` fields, so that it cannot be taken for an error.

        Only this repeats a request that may have been carried out: after a broken connection, and after a 503, with
        growing pauses until the request's own time is up. A repeat has the same req_id, so an owner that knows the call
        runs nothing twice. It carries the age of the call (`a2c_repeat`): an owner that cannot know whether it was run
        refuses it for good (`details.unknown_repeat`); so is a 503 for a Computer that died (`details.gone`).
        A request that was surely not run is sent as new after a 4103 (once), and after a 503 of a gateway that sends
        its clients away (`details.moving`). A `timeout` in `data` shrinks to the whole seconds that are left.

        Raises SmcpError: what the server answered; NoAnswer after `timeout` + 2 s; ConnectionLost; BadReply;
        JoinRefused and what else keeps the agent out of its office; Closed. Whatever it is, it has
        `details.may_have_run` where an earlier try of a tool call may have been sent.
        """
        tries = _Tries(event, data, asyncio.get_running_loop().time(), timeout)
        try:
            reply = await self._send(tries, expected)
        except errors.SmcpError as error:
            if tries.sent_at is not None and event == TOOL_CALL:  # the error is about the last try only
                error.details["may_have_run"] = True
            if isinstance(error, errors.NotFound) and isinstance(name := error.details.get("computer"), str):
                hint = which_computer(name, self._computers())
                raise errors.NotFound(f"{error.message}{hint}", details=error.details) from error
            raise
        if not isinstance(reply, dict):
            raise errors.BadReply(f"the reply to {event} is not an object")
        return reply

    async def _send(self, tries: "_Tries", expected: Collection[str]) -> Any:
        loop = asyncio.get_running_loop()
        deadline = tries.ends_at + tries.grace
        while True:
            connection = self._link.connection
            if connection is None or self._link.failure is not None or connection.lost.is_set():
                connection = await self._connection(tries, deadline)
            tries.begin(loop.time())
            try:
                reply = await connection.request(tries.event, tries.data, timeout=deadline - tries.began)
            except ConnectionBroken as broken:
                tries.broke(broken)
                continue
            except TimeoutError:
                raise errors.NoAnswer(f"no answer to {tries.event} in time") from None
            error = errors.flat_error(reply, expected)
            match error:
                case None:
                    return reply
                case errors.NotInOffice() if not tries.rejoined:
                    tries.rejoined = True
                    self._link.drop(connection)
                case errors.Unavailable(details={"moving": True}):
                    await _until_lost(connection, deadline, error)
                case errors.Unavailable():
                    await asyncio.sleep(tries.pause_after(error, loop.time()))
                case _:  # for a repeat NotFound says that the Computer left the office, and its call with it
                    raise tries.lost if isinstance(error, errors.NotFound) and tries.lost is not None else error

    async def _connection(self, tries: "_Tries", deadline: float) -> Connection:
        try:
            async with asyncio.timeout_at(min(deadline, asyncio.get_running_loop().time() + self._max_away)):
                return await self._link.ready()
        except TimeoutError:
            may_have_run = tries.sent_at is not None
            raise errors.ConnectionLost("the connection was not back in time", may_have_run=may_have_run) from None

    def cancel(self, req_id: str, *, within: float, fields: Mapping[str, Any]) -> None:
        """In the background. The call would have had `within` seconds; `fields`: its trace, and for whom it is."""
        if self._link.failure is not None:
            return
        data = {"agent": self._agent, "req_id": req_id, **fields}
        task = self._spawn(self._cancel(data, min(within, QUERY_S)))
        self._cancels.add(task)
        task.add_done_callback(self._cancels.discard)

    async def flush(self) -> None:
        if self._cancels:
            await asyncio.wait(self._cancels, timeout=GRACE_S)

    async def _cancel(self, data: dict[str, Any], within: float) -> None:
        backoff = Backoff(0.15, 2.0)
        try:
            async with asyncio.timeout(within):
                while True:
                    connection = await self._link.ready()
                    try:
                        reply = await connection.request("server:tool_call_cancel", data, timeout=within)
                    except ConnectionBroken:
                        continue
                    if not isinstance(errors.flat_error(reply), PASSING):
                        return
                    await asyncio.sleep(backoff.next())  # the tool still runs
        except (TimeoutError, errors.SmcpError) as error:
            logger.info("the cancel of %s was not acknowledged: %r", data["req_id"], error)

    async def ask(self, event: str, computer: str | None, fields: Mapping[str, Any]) -> Any:
        """As `send`, in a span, with the models and the time-out of the event's row in the catalog. Fields that are
        None are not sent. Raises Malformed; SmcpError: as `send`."""
        row = CATALOG[event]
        assert row.reply is not None
        assert row.seconds is not None
        given = {name: value for name, value in fields.items() if value is not None}
        request: Any = checked(row.request, agent=self._agent, req_id=uuid4().hex, **given)
        attributes = {} if computer is None else {"smcp.computer": computer}
        with request_span(event, self._office, self._agent, request.req_id, attributes) as traced:
            data = {**request.model_dump(exclude_unset=True), **traced.fields}
            expected = row.reply.model_fields.keys() - {"req_id"}
            answer = await self.send(event, data, timeout=row.seconds, expected=expected)
            who = "the gateway" if event.startswith("server:") else replier(computer)
            return reply_of(row.reply, answer, f"the answer of {who} to {event}")

    async def query(self, event: str, computer: str, **fields: Any) -> Any:
        """A Computer's reply to a query. Raises as `ask`."""
        return await self.ask(event, computer, {"computer": computer, **fields})

    async def ask_mcp(
        self, event: str, params: Mapping[str, Any], *, computer: str | None, server: str | None
    ) -> McpAnswer:
        """The result of an MCP request in the envelope of computer.txt (resources chapter, 5). Raises McpError: the
        answer is a JSON-RPC error; SmcpError: as `send`."""
        payload = {"jsonrpc": "2.0", "id": 1, "method": event.removeprefix("client:"), "params": dict(params)}
        envelope = {"roomId": self._office, "computerId": computer, "serverId": server, "payload": payload}
        reply: ResourceRet = await self.ask(event, computer, envelope)
        error, result = reply.payload.error, reply.payload.result
        if error is not None:
            raise errors.McpError(error.message, rpc_code=error.code, data=error.data)
        assert result is not None
        sender = replier(reply.computerId or computer, reply.serverId or server)
        return McpAnswer(result, reply.computerId, sender)


class _Tries:
    def __init__(self, event: str, data: dict[str, Any], now: float, timeout: float) -> None:
        self.event = event
        self.data = data
        self.ends_at = now + timeout
        self.grace = GRACE_S if timeout == int(timeout) else 0.0
        """None for a fraction of a second: the server side does not know it, and answers after it."""
        self.began = 0.0
        self.sent_at: float | None = None
        """When it was first sent, if that try may have arrived (`clock`)."""
        self._stamped_at = 0.0
        self._first_failure: Exception | None = None
        """How the first attempt that may have arrived failed: the cause of the error if its repeat is refused."""
        self.lost: errors.Unavailable | None = None
        """The last 503 that said that it may have run."""
        self.rejoined = False
        """Whether the last try was refused with 4103: twice in a row is an answer."""
        self._backoff = Backoff(0.15, 2.0)

    def begin(self, now: float) -> None:
        self.began, self._stamped_at = now, clock()
        if "timeout" in self.data:
            self.data["timeout"] = max(1, min(self.data["timeout"], math.ceil(self.ends_at - now)))
        if self.sent_at is not None and self.event == TOOL_CALL:
            self.data[REPEAT] = int(1000 * (self._stamped_at - self.sent_at))

    def broke(self, broken: ConnectionBroken) -> None:
        if broken.sent and self.sent_at is None:
            self.sent_at, self._first_failure = self._stamped_at, broken
        self.rejoined = False

    def pause_after(self, error: errors.Unavailable, now: float) -> float:
        """Seconds to wait before the repeat. Raises the error where there is to be none."""
        cause = self._first_failure
        if error.details.get("may_have_run") is True:
            if self.sent_at is None:
                self.sent_at, self._first_failure = self._stamped_at, error
            self.lost = error
        self.rejoined = False
        pause = self._backoff.next()
        final = any(error.details.get(name) is True for name in (GONE, UNKNOWN_REPEAT))
        if self.sent_at is None or final or now + pause > self.ends_at:
            raise error from cause
        return pause


async def _until_lost(connection: Connection, deadline: float, error: errors.SmcpError) -> None:
    """The gateway closes the connection when the calls that run on it have ended. Raises `error` where it does not."""
    try:
        async with asyncio.timeout_at(deadline):
            await connection.lost.wait()
    except TimeoutError:
        raise error from None


def checked(model: type[Model], /, **fields: Any) -> Model:
    """A request with these fields. Raises Malformed where the server would refuse it, with `details.field`."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise malformed(error) from error


def reply_of(model: type[Model], reply: Mapping[str, Any], what: str) -> Model:
    """A reply, parsed. `what` names it for people. Raises BadReply, with the first wrong field in `details.field`."""
    try:
        return model.model_validate(reply)
    except ValidationError as error:
        wrong = malformed(error)
        raise errors.BadReply(f"{what} is malformed: {wrong.message}", details=wrong.details) from error


def replier(computer: str | None, server: str | None = None) -> str:
    whose = "a Computer" if computer is None else f"Computer {computer!r}"
    return whose if server is None else f"MCP server {server!r} of {whose}"


def mapping_of(field: str, values: object) -> dict[str, Any]:
    """The `params` of a call, or the `chosen` arguments of a completion; None is none. Raises Malformed."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise refused(field, f"a mapping by name, not {type(values).__name__}")
    return dict(values)


class Traced(NamedTuple):
    span: Span
    fields: Mapping[str, str]
    """The fields of the request for it: `traceparent`, or none."""
    trace_id: str
    """32 hex digits: the application's trace, or the one that follows from the req_id."""

    def failed(self, kind: str) -> None:
        self.span.set_attribute("error.type", kind)
        self.span.set_status(Status(StatusCode.ERROR))


@lru_cache(maxsize=1)
def _tracer(provider: TracerProvider) -> Tracer:
    return provider.get_tracer("smcp_agent")


@contextmanager
def request_span(event: str, office: str, agent: str, req_id: str, attributes: Mapping[str, str]) -> Iterator[Traced]:
    """The span `<event>`; an SmcpError that leaves the block marks it with its code."""
    # If no trace was sampled that begins here, the gateway is not told: else it would not record a failed call either.
    is_root = not trace.get_current_span().get_span_context().is_valid
    own_id = trace_id(office, agent, req_id)
    token = otel_context.attach(otel_context.set_value(TRACE_ID_KEY, own_id))
    # start_as_current_span does the same with three more context managers, a tenth of the SDK's time for a call
    span = _tracer(trace.get_tracer_provider()).start_span(
        event,
        kind=SpanKind.CLIENT,
        attributes={"smcp.event": event, "smcp.req_id": req_id, "smcp.office": office, **attributes},
    )
    otel_context.attach(trace.set_span_in_context(span))
    fields: dict[str, str] = {}
    if span.is_recording() or not is_root:
        _PROPAGATOR.inject(fields)
    fields.pop("tracestate", None)
    traced = Traced(span, fields, f"{span.get_span_context().trace_id if fields else own_id:032x}")
    try:
        yield traced
    except errors.SmcpError as error:
        traced.failed(str(int(error.code)))
        raise
    except asyncio.CancelledError:
        traced.failed("cancelled")
        raise
    finally:
        span.end()
        otel_context.detach(token)
