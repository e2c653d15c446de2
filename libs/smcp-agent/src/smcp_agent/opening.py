"""What a server says first on a connection: engine.io's open packet. python-engineio keeps only a part of it."""

import json
from typing import Any

import aiohttp


class Opening:
    """Reads along on one connection.

    Attributes:
        max_payload: bytes of the largest message that the server takes; it cuts off who sends a larger one. None as
            long as it has not said so.
    """

    def __init__(self) -> None:
        self.max_payload: int | None = None

    def http_session(self) -> aiohttp.ClientSession:
        """The session for the connection; both transports are read."""
        hear = self._hear

        class WebSocket(aiohttp.ClientWebSocketResponse):
            async def receive(self, timeout: float | None = None) -> Any:
                message = await super().receive(timeout)
                hear(message.data)
                return message

        class Response(aiohttp.ClientResponse):
            async def read(self) -> bytes:
                body = await super().read()
                hear(body)
                return body

        return aiohttp.ClientSession(
            cookie_jar=aiohttp.CookieJar(unsafe=True), ws_response_class=WebSocket, response_class=Response
        )

    def _hear(self, said: object) -> None:
        if self.max_payload is not None or not isinstance(said, str | bytes):
            return
        text = said if isinstance(said, str) else said.decode(errors="replace")
        if not text.startswith("0{"):
            return
        try:
            opened = json.loads(text[1:].split("\x1e", 1)[0])
        except ValueError:
            return  # no open packet: python-engineio says so
        limit = opened.get("maxPayload")
        if type(limit) is int and limit > 0:
            self.max_payload = limit
