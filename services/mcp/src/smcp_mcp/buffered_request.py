"""One HTTP request whose body is kept, so that this process or one peer after the other can answer it."""

import asyncio
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import orjson
from mcp_types import INTERNAL_ERROR
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from smcp_proto.validation import refused

PASSED_ON: Final = "smcp-passed-on"
"""The header of a request that comes from a peer."""
BODY_S: Final = 60.0
"""How long a request's body may take: 8 MiB come over 1.2 Mbit/s in that time."""
_EXCHANGE: Final = "smcp_mcp.exchange"
_LISTEN: Final = "subscriptions/listen"
_RESPONSE: Final = re.compile(rb'data: \{"jsonrpc":"2\.0","id":(?:\d+|"[^"]*"),"(?:result|error)"')
"""As the MCP SDK writes a response into a stream of events, where progress and elicitations come before it."""
_EVENT_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")


class BufferedRequest:
    """Made before anything of the answer was sent."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.request = Request(scope)
        self.body = b""
        self.streams = False
        """The answer is a stream of notifications, open for as long as the client wants, and no call. Known once the
        body was read: a client of MCP 2025-11-25 could write any `Mcp-Method` into its headers."""
        self._receive = receive
        self._send = send
        self._body_given = False
        self._started = False
        self._events = False
        """The answer is a stream of events."""
        self.before_answer: Callable[[], None] = lambda: None
        """Called before the client gets the answer: what comes first on a stream of events is none. Idempotent."""
        self.sent = 0
        """Bytes of the answer's body."""
        self._whole = True
        """No event is sent by half."""
        self._gone = False
        self._when_gone: set[Callable[[], None]] = set()
        scope[_EXCHANGE] = self

    @property
    def passed_on(self) -> bool:
        """A peer passed it on."""
        return PASSED_ON in self.request.headers

    def check_beginning(self) -> None:
        """Raises Malformed: no client begins with this request. An office is not joined for it, as nobody would use
        the seat until it is left."""
        if "mcp-session-id" in self.request.headers:
            return
        version, method = self.request.headers.get("mcp-protocol-version"), self._message().get("method")
        if not isinstance(method, str):
            raise refused("method", "is missing: the body is not a request of JSON-RPC")
        if version in (None, *HANDSHAKE_PROTOCOL_VERSIONS) and method != "initialize":
            raise refused("method", "has to be `initialize` where there is no session")

    async def read(self, limit: int, hold: Callable[[int], None]) -> bool:
        """Read the body. False: it has more bytes than `limit`, or the client is gone.

        Args:
            hold: called with the size of each part before it is kept; what it raises is raised.

        Raises:
            TimeoutError: the body was not complete within `BODY_S`.
        """
        body = bytearray()
        more = True
        async with asyncio.timeout(BODY_S):
            while more:
                message = await self._receive()
                part = message.get("body", b"")
                if message["type"] == "http.disconnect" or len(body) + len(part) > limit:
                    return False
                hold(len(part))
                body += part
                more = message.get("more_body", False)
        self.body = bytes(body)
        self.streams = self.request.method == "GET" or self._message().get("method") == _LISTEN
        return True

    async def receive(self) -> Message:
        """ASGI's `receive`, which begins with the body that was read."""
        if not self._body_given:
            self._body_given = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._gone = True
            for then in list(self._when_gone):
                then()
        return message

    @staticmethod
    def of(request: Request) -> "BufferedRequest":
        """The one that this request is read from."""
        exchange: BufferedRequest = request.scope[_EXCHANGE]
        return exchange

    @contextmanager
    def when_gone(self, then: Callable[[], None]) -> Iterator[None]:
        """Call `then` if the client is gone, or goes while the body runs and the answer is being sent."""
        if self._gone:
            then()
        self._when_gone.add(then)
        try:
            yield
        finally:
            self._when_gone.discard(then)

    async def disconnected(self) -> None:
        """Wait until the client is gone."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def send(self, message: Message) -> None:
        """ASGI's `send`."""
        if message["type"] == "http.response.start":
            self._started = True
            headers = dict(message["headers"])
            self._events = headers.get(b"content-type", b"").startswith(b"text/event-stream")
            if not self._events:
                self.before_answer()
        elif body := message.get("body"):
            if self._events and _RESPONSE.search(body, 0, 4096):
                self.before_answer()
            self._whole = body.endswith(_EVENT_ENDS)
            self.sent += len(body)
        await self._send(message)

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def send_body(self, body: bytes, *, more: bool) -> None:
        await self.send({"type": "http.response.body", "body": body, "more_body": more})

    async def refuse(
        self, status: int, message: str, *, code: int = INTERNAL_ERROR, data: Mapping[str, Any] | None = None
    ) -> None:
        """Answer with a JSON-RPC error. Where the answer has begun, it ends the stream of events, or the connection.

        `retry_after_s` in `data` becomes the header `Retry-After`, too, in whole seconds.
        """
        error = {"code": code, "message": message} | ({"data": data} if data else {})
        body = orjson.dumps({"jsonrpc": "2.0", "id": self._request_id(), "error": error})
        if not self._started:
            headers = {
                "content-type": "application/json",
                "content-length": str(len(body)),
                "cache-control": "no-store",
            }
            if data and "retry_after_s" in data:
                headers["retry-after"] = str(math.ceil(data["retry_after_s"]))
            await self.start(status, Headers(headers).raw)
            await self.send_body(body, more=False)
        elif self._events and self._whole:
            await self.send_body(b"event: message\r\ndata: " + body + b"\r\n\r\n", more=False)

    async def break_off(self, why: str) -> None:
        """End the answer of a request that was begun, and whose outcome nobody knows."""
        if not self.streams:
            await self.refuse(503, why, data={"may_have_run": True})
        elif self._started:
            await self.send_body(b"", more=False)
        else:
            await self.refuse(503, why)

    def _request_id(self) -> str | int | None:
        found = self._message().get("id")
        return found if isinstance(found, str | int) else None

    def _message(self) -> dict[str, Any]:
        """The JSON-RPC message in the body; empty where there is none."""
        try:
            found = orjson.loads(self.body)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}
