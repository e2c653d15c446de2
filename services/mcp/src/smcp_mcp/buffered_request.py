"""An HTTP request whose body is kept in memory, so that this process or one of several peers can answer it."""

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Final
from uuid import uuid4

import mcp_types
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import unsupported_protocol_version_rejection
from mcp_types.methods import CLIENT_REQUESTS
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from smcp_bus import exact_json
from smcp_proto.errors import RateLimited, TooLarge
from smcp_proto.validation import malformed, refused

PASSED_ON: Final = "smcp-passed-on"
"""The header of a peer's request."""
BODY_S: Final = 60.0
"""How long a request's body may take, and a client to read a part of its answer: 8 MiB come over
1.2 Mbit/s in that time."""
GATE: Final = "smcp_mcp.gate"
"""Where the state of a scope has the `Gate` of its connection."""
FIRST_BYTES: Final = 16 * 1024
FIRST_VALUES: Final = 1000
"""Of `initialize`, and of the notification that follows it: a session keeps both until it ends. Real ones have under
4 kB, but an icon may be in them."""
KEPT_BYTES: Final = 8 * 1024
"""What a session may keep of its newest request and answer; as values they take 23 times as much."""
LONGEST_ID: Final = 256
"""Characters of the id of a request: the MCP SDK keeps some ids as long as the session lives."""
_EXCHANGE: Final = "smcp_mcp.exchange"
_LISTEN: Final = "subscriptions/listen"
_EVENT_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")


class BufferedRequest:
    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # no event is kept, and the MCP SDK answers nothing to a client that wants those after one
        scope["headers"] = [header for header in scope["headers"] if header[0] != b"last-event-id"]
        self.request = Request(scope)
        self.body: bytes | None = None
        """The body, once it is read and until `receive` returns it."""
        self.method: object = None
        """The method of the JSON-RPC message in the body; None if there is none."""
        self.streams = False
        """The answer is a stream of notifications, and no call. Known once the body was read: a client of MCP
        2025-11-25 could write any `Mcp-Method` into its headers."""
        headers = self.request.headers
        self._version = headers.get("mcp-protocol-version", LATEST_HANDSHAKE_VERSION)
        self._handshakes = self._version in HANDSHAKE_PROTOCOL_VERSIONS
        self.passed_on = PASSED_ON in headers
        self.has_session = self._handshakes and "mcp-session-id" in headers
        self.may_begin_session = self._handshakes and not self.has_session
        self._id: str | int | None = None
        self._receive = receive
        self._send = send
        self._started = False
        self._events = False
        self.count_bytes: Callable[[int], object] = lambda size: None
        """Called with the size of the request's body, and of each part of the answer's."""
        self.unread: Callable[[], AbstractContextManager[Callable[[int], None]]] = lambda: nullcontext(
            lambda size: None
        )
        """Holds the bytes of an answer's part, above 64 KiB, until the client has read it; may raise RateLimited."""
        self.session = ExitStack()
        """What ends with the session that the request begins."""
        self._counted = ExitStack()
        self._users: int | None = 0
        """Who works for the request; None: it has ended."""
        self.size = 0
        """Bytes of the body, once it was read, and of the answer so far. A session keeps both: see `forgotten`."""
        self._whole = True
        """The last event that was sent is complete."""
        self.answered = False
        """The answer was sent to its end."""
        self.gone = False
        """Nobody reads an answer any more."""
        self._when_gone: set[Callable[[], None]] = set()
        scope[_EXCHANGE] = self

    def check_first_request(self) -> None:
        """Raises MCPError: no client begins with this request. An office is not joined for it, as nobody would use
        the seat until it is left."""
        if not self._handshakes and (unknown := unsupported_protocol_version_rejection(self._version)) is not None:
            raise MCPError(unknown.code, unknown.message, unknown.data)
        if self.request.method != "POST" or not isinstance(self.method, str):
            raise MCPError(mcp_types.INVALID_REQUEST, "method: is missing: the body is not a request of JSON-RPC")
        if self._handshakes and self.method != "initialize":
            raise MCPError(mcp_types.INVALID_REQUEST, "method: has to be `initialize` where there is no session")
        if (self.method, self._version) not in CLIENT_REQUESTS:
            raise MCPError(mcp_types.METHOD_NOT_FOUND, "Method not found")

    async def read(self, limit: int, max_values: int, hold: Callable[[int], None]) -> None:
        """Read the body; `hold` is called with the size of each part before it is kept, and may raise.

        Raises Malformed: it is not a JSON-RPC message; TooLarge, also if the client is gone; TimeoutError (`BODY_S`).
        """
        body = bytearray()
        more = True
        async with asyncio.timeout(BODY_S):
            while more:
                message = await self._receive()
                part = message.get("body", b"")
                if message["type"] == "http.disconnect" or len(body) + len(part) > limit:
                    raise TooLarge(f"the request has more than {limit} bytes", details={"limit": limit})
                hold(len(part))
                body += part
                more = message.get("more_body", False)
        self.body, self.size = bytes(body), len(body)
        self.count_bytes(self.size)
        await exact_json.check_cost(self.body, max_values, "the request")
        message = exact_json.read_object(self.body)
        self.method, given = message.get("method"), message.get("id")
        self._id = given if "method" in message and type(given) in (str, int) else None
        if self.request.method == "POST":
            _check_message(message)
        self.streams = self.request.method == "GET" or self.method == _LISTEN
        if self.method in ("initialize", "notifications/initialized"):
            if self.size > FIRST_BYTES:
                raise TooLarge(f"`{self.method}` has more than {FIRST_BYTES} bytes", details={"limit": FIRST_BYTES})
            await exact_json.check_cost(self.body, FIRST_VALUES, f"`{self.method}`")
        if self.size > exact_json.SMALL_BYTES:  # the MCP SDK parses it again: let other tasks run first
            await asyncio.sleep(0)

    async def receive(self) -> Message:
        if self.body is not None:
            body, self.body = self.body, None  # the MCP SDK makes a copy, and keeps the newest of each session
            return {"type": "http.request", "body": body, "more_body": False}
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.gone = True
            for then in list(self._when_gone):
                then()
        return message

    @contextmanager
    def in_use(self) -> Iterator[ExitStack]:
        """What it gives ends when nobody works for the request any more: a call of MCP 2025 runs on in its session
        when the client disconnects. Raises MCPError: the request has ended."""
        if self._users is None:
            raise MCPError(mcp_types.INTERNAL_ERROR, "the client has disconnected")
        self._users += 1
        try:
            yield self._counted
        finally:
            self._users -= 1
            if not self._users:
                self._users = self.body = None
                self._counted.close()

    def forgotten(self) -> tuple[Scope, Receive, Send]:
        """A small request in its session, answered to nobody: the MCP SDK keeps the newest request and answer of each
        session."""
        ping = exact_json.written({"jsonrpc": "2.0", "id": uuid4().hex, "method": "ping"})
        sent: list[Message] = [{"type": "http.request", "body": ping, "more_body": False}]

        async def receive() -> Message:
            if not sent:
                await asyncio.Event().wait()
            return sent.pop()

        async def send(message: Message) -> None:
            pass

        headers = [header for header in self.request.scope["headers"] if header[0] != b"content-length"]
        return {**self.request.scope, "headers": headers}, receive, send

    @staticmethod
    def of(request: Request) -> "BufferedRequest":
        exchange: BufferedRequest = request.scope[_EXCHANGE]
        return exchange

    @contextmanager
    def when_gone(self, then: Callable[[], None]) -> Iterator[None]:
        """Call `then` if the client is gone, or goes while the body runs."""
        if self.gone:
            then()
        self._when_gone.add(then)
        try:
            yield
        finally:
            self._when_gone.discard(then)

    async def disconnected(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def send(self, message: Message) -> None:
        body = message.get("body", b"")
        if message["type"] == "http.response.start":
            self._started = True
            headers = dict(message["headers"])
            self._events = headers.get(b"content-type", b"").startswith(b"text/event-stream")
        else:
            self.answered = not message.get("more_body", False)
        if body:
            self._whole = body.endswith(_EVENT_ENDS)
            self.size += len(body)
            self.count_bytes(len(body))
        try:
            async with asyncio.timeout(BODY_S):
                if len(body) <= exact_json.SMALL_BYTES:
                    await self._send(message)
                else:
                    with self.unread() as hold:
                        hold(len(body))
                        await self._send({**message, "more_body": True})
                        await self._send({**message, "body": b""})  # uvicorn waits before it until the body is read
        except (TimeoutError, RateLimited):  # what was not read is kept until the connection ends
            self.request.scope["state"][GATE].close("late")

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def send_body(self, body: bytes, *, more: bool) -> None:
        await self.send({"type": "http.response.body", "body": body, "more_body": more})

    async def refuse(
        self,
        status: int,
        message: str,
        *,
        code: int = mcp_types.INTERNAL_ERROR,
        data: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Answer with a JSON-RPC error, or end an answer that has begun by it. Returns `refused`."""
        error = {"code": code, "message": message} | ({"data": data} if data else {})
        body = exact_json.written({"jsonrpc": "2.0", "id": self._id, "error": error})  # any id, however large
        if not self._started:
            said = {"content-type": "application/json", "content-length": str(len(body)), "cache-control": "no-store"}
            if data and "retry_after_s" in data:
                said["retry-after"] = str(math.ceil(data["retry_after_s"]))
            await self.start(status, Headers({**said, **(headers or {})}).raw)
            await self.send_body(body, more=False)
        elif self._events and self._whole:
            await self.send_body(b"event: message\r\ndata: " + body + b"\r\n\r\n", more=False)
        return "refused"

    async def break_off(self, why: str) -> None:
        """End the answer to a request whose outcome is not known."""
        if self.streams and self._started:
            await self.send_body(b"", more=False)
        else:
            await self.refuse(503, why, data=None if self.streams else {"may_have_run": True})


def _check_message(message: object) -> None:
    """Raises Malformed: it is not a JSON-RPC message. The MCP SDK would not answer it, or with the text of pydantic."""
    kinds: dict[str, type[BaseModel]]
    kinds = {"result": mcp_types.JSONRPCResponse, "error": mcp_types.JSONRPCError, "id": mcp_types.JSONRPCRequest}
    given = message if isinstance(message, dict) else {}
    if "method" in given and type(given.get("id", 0)) not in (int, str):
        raise refused("id", "must be a string or a whole number")
    if len(str(given.get("id", ""))) > LONGEST_ID:
        raise refused("id", f"has more than {LONGEST_ID} characters")
    try:
        next((kinds[each] for each in kinds if each in given), mcp_types.JSONRPCNotification).model_validate(message)
    except ValidationError as error:
        raise malformed(error) from None
