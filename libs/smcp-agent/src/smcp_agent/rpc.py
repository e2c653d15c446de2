"""Requests over a link that may break in between, and the cancels of calls that nobody waits for any more."""

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar
from uuid import uuid4

from pydantic import BaseModel, ValidationError

from smcp_agent.connecting.connection import AckTimedOut, Connection, ConnectionBroken
from smcp_agent.connecting.link import Link, NobodyThere
from smcp_agent.errors import (
    BadReply,
    ConnectionLost,
    Malformed,
    McpError,
    NoAnswer,
    NotInOffice,
    SmcpError,
    Unavailable,
    received_error,
)
from smcp_agent.tracing import request_span
from smcp_proto.schemas import AgentCallData, RequestEnvelope, ResourceRet
from smcp_proto.schemas.tools import REPEAT
from smcp_proto.validation import malformed

GRACE_S: Final = 2.0
"""The server side answers 408 at the time-out; the SDK gives up this much later."""
SILENCE_SHARE: Final = 0.45
SILENCE_S: Final = 1.5
"""Where a gateway fell silent, what was in flight there has to be asked again elsewhere within this share of the time
in which the silence was noticed (a gateway's pings are 0.7 of its lease, so that is the rest of the lease), and no less
than these seconds."""
RESUME_S: Final = 0.8
"""What was in flight at a gateway that died gets its result or an error within a second: so long it is waited for that
a gateway runs again."""
MAX_REPEATS: Final = 8
"""A request that breaks so many connections is likely the reason why they break."""
TOOL_CALL: Final = "client:tool_call"
CANCEL_S: Final = 30.0
FLUSH_S: Final = 2.0

logger = logging.getLogger(__name__)

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


@dataclass(slots=True)
class _Tries:
    """Of one request."""

    sent: bool = False
    """Whether one that broke off may have reached the server."""


class Requests:
    """Sends requests, repeating one whose connection broke.

    The repeat carries the same req_id. A Computer keys tool calls by office, Agent and req_id, so a repeat joins the
    call that is running or gets the result that is kept, and where the result was dropped it says so. A Computer that
    was started again meanwhile has no such table: so a call that may have been sent before carries `a2c_repeat`, and
    a Computer that does not know it answers 503 with `details.may_have_run` and does not run it. What was answered,
    an error included, is never repeated; only what was refused before it ran is: a 4103, and a 503 of a gateway that
    sends its clients away (`details.moving`).

    A connection that broke off is waited for as long as the request may take. Two exceptions for what had been sent end
    with ConnectionLost. Where no gateway runs any more at any URL, this one died, and the caller hears of it after
    `resume_within` seconds. And a connection that fell silent had its gateway's whole patience already: there it is
    where no gateway takes the agent in soon.
    """

    def __init__(self, link: Link, spawn: Spawn, *, resume_within: float) -> None:
        self._link = link
        self._spawn = spawn
        self._resume_within = resume_within
        self._cancels: set[asyncio.Task[None]] = set()

    async def ask(
        self, event: str, data: dict[str, Any], *, timeout: float, expected: Collection[str]
    ) -> dict[str, Any]:
        """The reply to `event`; it has one of the `expected` fields, so that it cannot be taken for an error.

        A `timeout` in `data` shrinks with each repeat to the whole seconds that are left.

        Raises:
            SmcpError: what the server answered; NoAnswer after `timeout` + 2 s; ConnectionLost; BadReply; JoinRefused
                and what else keeps the agent out of its office; Closed. Whatever it is, it has `details.may_have_run`
                where an earlier try of a tool call may have been sent.
        """
        tries = _Tries()
        try:
            return await self._ask(event, data, tries, timeout=timeout, expected=expected)
        except SmcpError as error:
            if tries.sent and event == TOOL_CALL:  # whatever it says, it says it of the last try
                error.details["may_have_run"] = True
            raise

    async def _ask(
        self, event: str, data: dict[str, Any], tries: _Tries, *, timeout: float, expected: Collection[str]
    ) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout + GRACE_S
        rejoined, breaks = False, 0
        back_by, patience = deadline, None
        while True:
            connection = await self._ready(back_by, patience, sent=tries.sent)
            back_by, patience = deadline, None
            left = deadline - loop.time()
            _for_this_try(event, data, left, sent=tries.sent)
            try:
                reply = await connection.request(event, data, timeout=left)
            except ConnectionBroken as broken:
                tries.sent = tries.sent or broken.sent
                patience = loop.time() + self._resume_within if broken.sent else None
                if broken.sent and connection.silent:
                    back_by = min(deadline, loop.time() + max(SILENCE_S, SILENCE_SHARE * connection.heartbeat_s))
                breaks += 1
                if breaks > MAX_REPEATS:
                    raise ConnectionLost(
                        f"the connection broke {breaks} times during this request: {broken.reason}",
                        may_have_run=tries.sent,
                    ) from broken
                continue
            except AckTimedOut:
                raise NoAnswer(f"no answer to {event} within {timeout + GRACE_S:g} s") from None
            error = received_error(reply, expected=expected)
            if isinstance(error, NotInOffice) and not rejoined:
                # refused before it ran: join again, then ask again
                rejoined = True
                self._link.drop(connection)
                continue
            if isinstance(error, Unavailable) and error.details.get("moving") is True:
                # refused before it ran, by a gateway that sends its clients away: ask the next one
                await _until_lost(connection, deadline, error)
                continue
            if error is not None:
                raise error
            if not isinstance(reply, dict):
                raise BadReply(f"the reply to {event} is no object")
            return reply

    def cancel(self, agent: str, req_id: str, *, within: float, fields: Mapping[str, str] | None = None) -> None:
        """Tell the office in the background that nobody waits for this call any more.

        `within` is the time (seconds) that the call would have had: after it there is nothing left to cancel.
        `fields` go with the cancel: it belongs to the call's trace.
        """
        if self._link.failed:
            return
        task = self._spawn(self._cancel({"agent": agent, "req_id": req_id, **(fields or {})}, min(within, CANCEL_S)))
        self._cancels.add(task)
        task.add_done_callback(self._cancels.discard)

    async def flush(self) -> None:
        """Wait, for at most 2 s, until the cancels have arrived."""
        if self._cancels:
            await asyncio.wait(self._cancels, timeout=FLUSH_S)

    async def _cancel(self, data: dict[str, str], within: float) -> None:
        try:
            async with asyncio.timeout(within):
                while True:
                    connection = await self._link.ready()
                    try:
                        await connection.request("server:tool_call_cancel", data, timeout=within)
                    except ConnectionBroken:
                        continue
                    return
        except (TimeoutError, AckTimedOut, SmcpError) as error:
            logger.info("the cancel of %s was not acknowledged: %r", data["req_id"], error)

    async def _ready(self, deadline: float, patience: float | None, *, sent: bool) -> Connection:
        try:
            async with asyncio.timeout_at(deadline):
                return await self._link.ready(patience=patience)
        except NobodyThere:
            raise ConnectionLost("the gateway is gone, and no other is there", may_have_run=sent) from None
        except TimeoutError:
            raise ConnectionLost("the connection was not back in time", may_have_run=sent) from None


async def _until_lost(connection: Connection, deadline: float, error: SmcpError) -> None:
    """The gateway closes the connection when the calls that run on it have ended. Raises `error` where it does not."""
    try:
        async with asyncio.timeout_at(deadline):
            await connection.lost.wait()
    except TimeoutError:
        raise error from None


def _for_this_try(event: str, data: dict[str, Any], left: float, *, sent: bool) -> None:
    if "timeout" in data:
        data["timeout"] = max(1, min(data["timeout"], math.ceil(left - GRACE_S)))
    if sent and event == TOOL_CALL:
        data[REPEAT] = True


QUERY_S: Final = 30.0
"""The server side has so long for a question to a Computer."""


Model = TypeVar("Model", bound=BaseModel)


class Answered(NamedTuple):
    """The answer to an MCP request."""

    result: dict[str, Any]
    computer: str | None
    """Whose it is, as far as that was said."""
    server: str | None
    """The MCP server, as far as that was said, here or in the question."""

    def what(self, name: str, asked: str | None) -> str:
        """What it is to be, for people: `name`, and who sent it. `asked`: the Computer that was asked."""
        return f"{name} that {replier(self.computer or asked, self.server)} sent"


class Asker:
    """Asks in the name of an Agent.

    Args:
        office, agent: who asks, and where.
        requests: carries what is asked.
    """

    def __init__(self, office: str, agent: str, requests: Requests) -> None:
        self.office = office
        self._agent = agent
        self._requests = requests

    def question(self, model: type[Model], computer: str, **fields: Any) -> Model:
        """A question to a Computer, with those of the fields that are not None.

        Raises:
            Malformed: the server would refuse it.
        """
        asked = {name: value for name, value in fields.items() if value is not None}
        return checked(model, agent=self._agent, req_id=uuid4().hex, computer=computer, **asked)

    async def ask(
        self,
        event: str,
        request: AgentCallData | RequestEnvelope,
        reply: type[Model],
        expected: str,
        timeout: float,
        computer: str | None = None,
    ) -> Model:
        """The reply to a request; it has the field `expected`, so that it cannot be taken for an error.

        Raises:
            SmcpError: as `Requests.ask`.
        """
        attributes = {} if computer is None else {"smcp.computer": computer}
        with request_span(event, self.office, self._agent, request.req_id or "", attributes) as traced:
            data = {**request.model_dump(exclude_unset=True), **traced.fields}
            answer = await self._requests.ask(event, data, timeout=timeout, expected=(expected,))
            who = "the gateway" if event.startswith("server:") else replier(computer)
            return reply_of(reply, answer, f"the answer of {who} to {event}")

    async def ask_mcp(
        self,
        event: str,
        model: type[RequestEnvelope],
        params: Mapping[str, Any],
        *,
        computer: str | None,
        server: str | None,
    ) -> Answered:
        """The result of an MCP request in the envelope of computer.txt (resources chapter, 5).

        Args:
            event: `client:<MCP's method>`.
            params: of the MCP request.
            computer: None: all of the office, where the event allows it.
            server: an MCP server; None: the Computer finds out.

        Raises:
            McpError: the answer is a JSON-RPC error.
            SmcpError: as `ask`.
        """
        payload = {"jsonrpc": "2.0", "id": 1, "method": event.removeprefix("client:"), "params": dict(params)}
        fields = {"computerId": computer, "serverId": server}
        request = checked(
            model,
            roomId=self.office,
            agent=self._agent,
            req_id=uuid4().hex,
            payload=payload,
            **{name: value for name, value in fields.items() if value is not None},
        )
        reply = await self.ask(event, request, ResourceRet, "payload", QUERY_S, computer)
        error, result = reply.payload.error, reply.payload.result
        if error is not None:
            raise McpError(error.message, rpc_code=error.code, data=error.data)
        assert result is not None
        return Answered(result, reply.computerId, reply.serverId or server)


def checked(model: type[Model], **fields: Any) -> Model:
    """A request with these fields.

    Raises:
        Malformed: the server would refuse it; `details.field` names the first field that is wrong.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise malformed(error) from error


def reply_of(model: type[Model], reply: Mapping[str, Any], what: str) -> Model:
    """A reply, read. `what` it is for people: who said it, and to what.

    Raises:
        BadReply: it is none; `details.field` names the first field that is wrong.
    """
    try:
        return model.model_validate(reply)
    except ValidationError as error:
        wrong = malformed(error)
        raise BadReply(f"{what} is malformed: {wrong.message}", details=wrong.details) from error


def replier(computer: str | None, server: str | None = None) -> str:
    """Who replied, for people, as far as that is known."""
    whose = "a Computer" if computer is None else f"Computer {computer!r}"
    return whose if server is None else f"MCP server {server!r} of {whose}"


SHORTEST_S: Final = 1
LONGEST_S: Final = 3600
SECONDS: Final = f"whole seconds from {SHORTEST_S} to {LONGEST_S}"


def whole_seconds(timeout: object) -> int:
    """The `timeout` of a call; `30.0` is 30.

    Raises:
        Malformed: it is not in whole seconds from 1 to 3600 (events.txt, `client:tool_call`).
    """
    if isinstance(timeout, float) and timeout.is_integer():
        timeout = int(timeout)
    if not isinstance(timeout, int) or isinstance(timeout, bool) or not SHORTEST_S <= timeout <= LONGEST_S:
        raise _refused("timeout", SECONDS)
    return timeout


def params_of(params: object) -> dict[str, Any]:
    """The `params` of a call; None is none.

    Raises:
        Malformed: they are no mapping by name.
    """
    if params is None:
        return {}
    if not isinstance(params, Mapping):
        raise _refused("params", f"a mapping of parameters by name, not {type(params).__name__}")
    return dict(params)


def arguments_of(chosen: object) -> dict[str, Any]:
    """The `chosen` arguments of a completion; None is none.

    Raises:
        Malformed: they are no mapping by name.
    """
    if chosen is None:
        return {}
    if not isinstance(chosen, Mapping):
        raise _refused("chosen", f"a mapping of arguments by name, not {type(chosen).__name__}")
    return dict(chosen)


def _refused(field: str, reason: str) -> Malformed:
    return Malformed(f"{field}: {reason}", details={"field": field, "reason": reason})
