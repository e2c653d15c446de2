"""Adapter to the MCP SDK: watched streams, and raw results. `requests` sends over it.

The SDK's session does not report that the server went away, and refuses a whole list for one invalid field. So both
streams of a transport are wrapped: the wrappers see the end of the connection, and take the answers of our own requests
as the server sent them. No private name of the SDK is used. Three quirks of version 2.3 matter (hence `mcp<2.4`):

- It looks for `last_context` on the stream that it reads.
- Its HTTP transports do not answer a request whose answer they could not read (`errors`).
- A failed POST of its SSE transport is only logged, and no request fails (`transports`).
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
import mcp_types as types
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp.client.session import ClientRequestContext
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse
from pydantic import ValidationError
from pydantic_core import from_json

from smcp_bus import exact_json
from smcp_bus.tool_progress import ProgressThrottle
from smcp_computer.mcp.errors import ServerError, ServerNotRunning, reparsed
from smcp_computer.redaction import MAX_ERROR, Redactor
from smcp_proto import tool_results

if TYPE_CHECKING:
    from smcp_computer.elicitation import ToolCall

_OF_PROTOCOL: Final = "io.modelcontextprotocol/"
MAX_REQUESTS: Final = 128
"""Requests of one server that wait for their answers, or for the server to read them: twice the elicitations that a
Computer has open. The SDK has a task for each."""

Streams = tuple[Any, Any]
"""The streams of a transport: a stream of messages (or exceptions) to read, and one to write."""
Answer = dict[str, Any] | types.ErrorData
"""The result of a request, or its error."""


_LARGE: Final = f"it failed; what it says about that has more than {MAX_ERROR} bytes, and is left out"
"""In place of what is too large to be redacted while others wait."""


class Watch:
    """Wraps the streams of one connection.

    Attributes:
        ended: set when the server's side of it ended.
        why: why it ended, where that is known.
        heard: when the last message came, by `time.monotonic()`.
        refused: how HTTP, and not the server, answered the last request; empty where the server did.
        max_values: how many values a message of the server may hold.
    """

    def __init__(
        self, server: str, redactor: Redactor | None = None, *, max_values: int = exact_json.MAX_VALUES
    ) -> None:
        self.server = server
        self.max_values = max_values
        self.ended = asyncio.Event()
        self.why = ""
        self.heard = time.monotonic()
        self.refused = ""
        self.redactor = redactor or Redactor()
        self.stamp: dict[str, Any] = {}
        """What the SDK puts into the `_meta` of its requests: a server of MCP 2026 wants it in each."""
        self._write: Any = None
        self._asked: Counter[str | int] = Counter()
        """The server's requests whose answers are not there, by id."""
        self._unread = 0
        """Answers that the server has not read. To cancel their requests ends nothing."""
        self._fewer = asyncio.Event()
        self._answers: dict[str | int, asyncio.Future[Answer]] = {}
        """Awaited past the SDK's session (`session`), by id."""
        self.followed: dict[int, ProgressThrottle] = {}
        """Where the progress of calls goes, by their `progressToken`."""
        self.elicitors: dict[int, ToolCall] = {}
        """Of the calls that run."""

    def wrap(self, streams: Streams) -> Streams:
        read, self._write = streams
        return _WatchedRead(read, self), _WatchedWrite(self._write, self)

    @contextmanager
    def answer(self, id_: int) -> Iterator[asyncio.Future[Answer]]:
        """The answer to the request `id_`, which does not reach the SDK's session."""
        answer = self._answers[id_] = asyncio.get_running_loop().create_future()
        try:
            yield answer
        finally:
            del self._answers[id_]

    async def elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Answer `elicitation/create`. It does not name its call, so it is refused while calls run that differ in their
        caller, tool or parameters: the user would consent to another call."""
        elicitors = self.elicitors.values()
        if len({each.identity for each in elicitors}) != 1:
            why = (
                "another call of this MCP server runs or waits for its user's answer, and MCP 2025 does not say which "
                "of the calls asks. Call the tool again later"
                if elicitors
                else "no call of this MCP server runs"
            )
            return types.ErrorData(code=types.INVALID_REQUEST, message=f"elicitation refused: {why}")
        return await min(elicitors, key=lambda each: len(each.unanswered)).elicit(params)

    def _progressed(self, params: Mapping[str, Any]) -> None:
        token = params.get("progressToken")
        if type(token) is int and (followed := self.followed.get(token)) is not None:  # `True` is an int, and equals 1
            followed.read(params)  # others are of a call that is over, or that nobody follows

    def unsent(self, message: bytes, why: str) -> None:
        """Fail the request that this message is, if it is one: the server did not get it."""
        answer = self._answers.get(from_json(message or b"{}").get("id"))
        if answer is not None and not answer.done():
            answer.set_exception(ServerNotRunning(self.server, why))

    def answered(self, line: str | bytes) -> bool:
        """Whether a line of a program was a result that is awaited past the SDK's session, or the progress of a call.
        The request has it now: on the way through streams and tasks it would cost a third of the call (bench/README).
        """
        if not self._answers:
            return False
        try:
            message = from_json(line)
        except ValueError:
            return False
        match message:
            case {"jsonrpc": "2.0", "id": int(id_), "result": dict(result)} if id_ in self._answers and id_ is not True:
                self.heard = time.monotonic()
                self._settle(id_, self._redacted(result))
                return True
            case {"jsonrpc": "2.0", "method": "notifications/progress", "params": dict(params)}:
                self.heard = time.monotonic()
                self._progressed(params)
                return True
            case _:
                return False

    async def write(self, message: Mapping[str, Any], headers: dict[str, str] | None) -> None:
        """Send a message past the SDK's session, over HTTP with these headers. Raises anyio's errors of streams: the
        connection has ended."""
        if self.ended.is_set():
            raise anyio.ClosedResourceError
        if headers is None:
            await self._write.write(exact_json.written(message).decode())
        else:
            item = types.jsonrpc_message_adapter.validate_python(message, by_name=False)
            await self._write.send(SessionMessage(item, ClientMessageMetadata(headers=headers)))

    async def wait_below_limit(self) -> None:
        """Wait until the server may ask again. What it says is not read meanwhile."""
        while self._asked.total() + self._unread >= MAX_REQUESTS and not self.ended.is_set():
            self._fewer.clear()
            await self._fewer.wait()

    async def send(self, item: SessionMessage) -> None:
        """Send what the SDK's session says. Raises as `write`."""
        answers = 0
        match item.message:
            case JSONRPCRequest(params=params):
                meta = (params or {}).get("_meta") or {}
                self.stamp = {key: value for key, value in meta.items() if key.startswith(_OF_PROTOCOL)}
            case JSONRPCResponse(id=id_) | JSONRPCError(id=id_):
                self._over(id_)
                answers = 1
        self._unread += answers
        try:
            await self._write.send(item)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self.end()
            raise
        finally:
            self._unread -= answers
            self._fewer.set()

    def _over(self, id_: str | int | None) -> None:
        if id_ is not None:
            self._asked -= Counter([coerce_request_id(id_)])  # not all of them: a server may give one id to many
        self._fewer.set()

    def received(self, item: SessionMessage | Exception) -> bool:
        """Whether that is not for the SDK's session: an answer which it does not await, or the progress of a call."""
        self.heard = time.monotonic()
        if isinstance(item, Exception):
            return False
        self._redact(item.message)
        match item.message:
            case JSONRPCResponse(id=id_, result=answer) | JSONRPCError(id=id_, error=answer) if id_ in self._answers:
                self._settle(id_, answer)
                return True
            case JSONRPCNotification(method="notifications/progress", params=params):
                self._progressed(params or {})
                return True
            case JSONRPCNotification(method="notifications/cancelled", params=params):
                self._over(cancelled_request_id_from_params(params))
            case JSONRPCRequest(id=id_):
                self._asked[coerce_request_id(id_)] += 1
        return False

    def _settle(self, id_: str | int, answer: Answer) -> None:
        if not (awaited := self._answers[id_]).done():
            awaited.set_result(answer)

    def _redacted(self, result: dict[str, Any]) -> Any:
        if result.get("isError") is not True:
            return result
        try:
            redacted = self.redactor.redact_json(result)
        except ValueError:
            return tool_results.failed(_LARGE)
        return redacted if isinstance(redacted, dict) else tool_results.failed(redacted)

    def _redact(self, message: JSONRPCMessage) -> None:
        """Texts of errors lose their secrets before anything else sees them: Agents, and the SDK's spans."""
        match message:
            case JSONRPCResponse(result=result):
                message.result = self._redacted(result)
            case JSONRPCError(error=error) if not isinstance(error.data, ServerError):
                if "input_value=" in error.message:  # pydantic quotes a part, in which no secret would be found
                    error.message = "the answer cannot be read"
                try:
                    error.data = self.redactor.redact_json(error.data)
                    error.message = str(self.redactor.redact_json(error.message))
                except ValueError:
                    error.message, error.data = _LARGE, None

    def end(self, why: str = "") -> None:
        """The connection has ended: no call gets an answer any more."""
        self.why = self.why or why
        self.ended.set()
        self._fewer.set()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(MCPError(code=types.CONNECTION_CLOSED, message="the connection has ended"))


class _Watched:
    def __init__(self, inner: Any, watch: Watch) -> None:
        self._inner = inner
        self._watch = watch

    async def aclose(self) -> None:
        await self._inner.aclose()


class _WatchedRead(_Watched, ObjectReceiveStream[SessionMessage | Exception]):
    @property
    def last_context(self) -> Any:
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        while True:
            await self._watch.wait_below_limit()
            try:
                item: SessionMessage | Exception = await self._inner.receive()
            except (anyio.EndOfStream, anyio.ClosedResourceError):
                self._watch.end()
                raise
            if isinstance(item, ValidationError):  # the SDK would drop it, and its request would wait in vain
                item = reparsed(self._watch.server, item)
            if not self._watch.received(item):
                return item


class _WatchedWrite(_Watched, ObjectSendStream[SessionMessage]):
    async def send(self, item: SessionMessage) -> None:
        await self._watch.send(item)
